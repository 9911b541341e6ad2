"""`tagi sweep`: how much a hyperparameter matters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.classify.tasks import TASKS, find_task
from torchtagi.experiments.cli.compare import Methods, Minutes, Seeds, Threads, split_names, watcher
from torchtagi.experiments.cli.progress import Interruption
from torchtagi.experiments.cli.shared import AsJson, console, say, whole_number
from torchtagi.experiments.compare import Stopped, Sweep
from torchtagi.experiments.compare.sweep import SWEEP, collect_sweep
from torchtagi.experiments.compare.sweep import sweep as run_sweep
from torchtagi.experiments.report import plots
from torchtagi.experiments.report.comparison_plots import sweep_figure
from torchtagi.experiments.runs.folder import Row


def sweep(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")],
    methods: Methods = "tagi,sgd,adam,vogn",
    epochs: Annotated[int, typer.Option(parser=whole_number, metavar="N", help="Of each run.")] = 1,
    seeds: Seeds = 1,
    arch: Annotated[str | None, typer.Option(help="The network, the same for all.")] = None,
    samples: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Learn from the first so many images only.")
    ] = None,
    test_samples: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Test on the first so many images only.")
    ] = None,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; runs/sweep-… unless given.")] = None,
    minutes: Minutes = None,
    show: Annotated[bool, typer.Option("--show", help="Train nothing, show what is finished.")] = False,
    as_json: AsJson = False,
) -> None:
    """Final test error over the learning rate of rivals, and over σ_V and the batch size of TAGI. Ctrl-C stops
    cleanly; the same command goes on, and shares the runs if started in several terminals."""
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    asked = Sweep(task, arch or find_task(task).default_network, epochs, samples, test_samples)
    folder = out or Path("runs") / asked.name
    if show:
        finish(folder, collect_sweep(folder), as_json)
        return
    with Interruption() as interruption:
        try:
            rows = run_sweep(
                asked,
                split_names(methods),
                list(range(seeds)),
                folder,
                threads=torch.get_num_threads() if threads is None else threads,
                watch=watcher(interruption, minutes, quiet=as_json),
            )
        except Stopped:
            collect_sweep(folder)
            if not as_json:
                console.print(f"stopped; the same command goes on in [bold]{escape(str(folder))}[/bold]")
            raise typer.Exit(128 + interruption.signal if interruption.signal else 0) from None
    finish(folder, rows, as_json)


def finish(folder: Path, rows: list[Row], as_json: bool) -> None:
    try:
        plots.require_matplotlib()
        if rows:
            write_atomically(folder / "plots" / "sweep.png", plots.as_png(sweep_figure(rows)))
    except plots.PlotsUnavailableError as error:
        say(str(error))
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("axis", "value", "error %", "worst %", "NLL", "seeds", "diverged"):
        table.add_column(name, justify="left" if name == "axis" else "right", no_wrap=True)
    for index, row in enumerate(rows):
        numbers = [
            "–" if row[name] is None else f"{row[name]:.{digits}f}"
            for name, digits in (("error", 2), ("error_max", 2), ("nll", 4))
        ]
        last = index + 1 == len(rows) or rows[index + 1]["axis"] != row["axis"]
        table.add_row(
            row["axis"], row["value"], *numbers, str(row["seeds"]), str(row["diverged"]), end_section=last
        )
    console.print(table)
    console.print(f"sweep: [bold]{escape(str(folder / SWEEP))}[/bold], its picture in plots")
