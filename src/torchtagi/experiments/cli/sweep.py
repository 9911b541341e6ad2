"""`tagi sweep`: how much a hyperparameter matters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from rich.markup import escape

from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.cli import compare as common
from torchtagi.experiments.cli.shared import AsJson, console
from torchtagi.experiments.compare import Study, collect_sweep
from torchtagi.experiments.compare import sweep as run_sweep
from torchtagi.experiments.compare.runner import SWEEP, reading
from torchtagi.experiments.report.comparison_plots import sweep_figure
from torchtagi.experiments.runs.folder import Row


def sweep(
    task: common.TaskName,
    methods: common.Methods = "tagi,sgd,adam,vogn",
    epochs: Annotated[int, common.count("Of each run.")] = 1,
    seeds: common.Seeds = 1,
    arch: common.Arch = None,
    samples: common.Samples = None,
    test_samples: common.TestSamples = None,
    threads: common.Threads = None,
    out: common.Out = None,
    minutes: common.Minutes = None,
    show: common.Show = False,
    as_json: AsJson = False,
) -> None:
    """Final test error over the learning rate of baselines, and over σ_V of TAGI. Ctrl-C stops
    cleanly; the same command goes on, and shares the runs if started in several terminals."""
    study = Study(task, arch or find_task(task).default_network, epochs, samples, test_samples)
    folder = out or Path("runs") / f"sweep-{study.name}"
    if show:
        with reading(folder / SWEEP):
            finish(folder, collect_sweep(folder), as_json)
        return
    with common.training(folder, SWEEP, study, threads, minutes, quiet=as_json) as runner:
        rows = run_sweep(runner, common.split_names(methods), range(seeds))
    finish(folder, rows, as_json)


def finish(folder: Path, rows: list[Row], as_json: bool) -> None:
    if any(row["value"] != "learned" for row in rows):
        common.draw(folder, {"sweep": lambda: sweep_figure(rows)})
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = common.plain_table(["axis", "value", "error %", "worst %", "NLL", "seeds", "diverged"])
    for row, after in zip(rows, [*rows[1:], None], strict=True):
        scores = [
            "–" if row[name] is None else f"{row[name]:.{digits}f}"
            for name, digits in (("error", 2), ("error_max", 2), ("nll", 4))
        ]
        cells = [row["axis"], row["value"], *scores, str(row["seeds"]), str(row["diverged"])]
        table.add_row(*map(escape, cells), end_section=after is None or after["axis"] != row["axis"])
    console.print(table)
    console.print(f"sweep: [bold]{escape(str(folder / SWEEP))}[/bold], its picture in plots")
