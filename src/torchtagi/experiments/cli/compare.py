"""`tagi compare`: TAGI and its rivals side by side."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.baselines import METHODS, find_method
from torchtagi.experiments.baselines.methods import Hyperparameters, Value
from torchtagi.experiments.classify.loop import Step
from torchtagi.experiments.classify.tasks import TASKS, find_task
from torchtagi.experiments.cli.progress import Interruption
from torchtagi.experiments.cli.shared import AsJson, Offline, console, say, whole_number
from torchtagi.experiments.compare import Comparison, Stopped, Study
from torchtagi.experiments.compare.compare import RESULT, collect
from torchtagi.experiments.compare.compare import compare as run_comparison
from torchtagi.experiments.compare.running import Watch
from torchtagi.experiments.compare.study import (
    FEW,
    FEW_BATCH,
    MOST_EPOCHS,
    TARGETS,
    USUAL_EPOCHS,
    USUAL_IMAGES,
    usual_epochs,
)
from torchtagi.experiments.compare.table import COLUMNS, cell, chosen_text
from torchtagi.experiments.report import plots
from torchtagi.experiments.report.comparison_plots import comparison_figures
from torchtagi.experiments.runs.folder import read_json
from torchtagi.experiments.runs.resumable import EpochEnd

SCORES = ("error", "nll", "ece", "brier")
AUROCS = ("auroc_ovr", "auroc_misclassification", "ood_auroc")
COSTS = ("seconds_per_epoch", "relative_cost", "seconds_to_target", "predict_seconds_per_1000")

EPOCHS_HELP = (
    f"Unless given {USUAL_EPOCHS}; with --samples as many as show {USUAL_IMAGES:,} images, "
    f"from {USUAL_EPOCHS} to {MOST_EPOCHS}."
)
SAMPLES_HELP = (
    f"Learn from so many images only, drawn by the seed; up to {FEW:,} rivals take batches of {FEW_BATCH}."
)

Methods = Annotated[
    str, typer.Option(metavar="A,B,…", help=f"Of tagi, {', '.join(METHODS)}; those of earlier pieces stay.")
]
Seeds = Annotated[int, typer.Option(parser=whole_number, metavar="N", help="Seeds 0 to N − 1.")]
Minutes = Annotated[
    float | None, typer.Option(metavar="M", help="Stop after so long with a checkpoint; the same command goes on.")
]
Threads = Annotated[int | None, typer.Option(parser=whole_number, metavar="N", help="CPU threads.")]


def compare(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")],
    methods: Methods = "tagi,adam,mc-dropout,vogn,ensemble",
    epochs: Annotated[int | None, typer.Option(parser=whole_number, metavar="N", help=EPOCHS_HELP)] = None,
    seeds: Seeds = 3,
    arch: Annotated[str | None, typer.Option(help="The network, the same for all.")] = None,
    samples: Annotated[int | None, typer.Option(parser=whole_number, metavar="N", help=SAMPLES_HELP)] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Each image is seen once, in batches of 1 and of 16.")
    ] = False,
    augment: Annotated[bool, typer.Option(help="Vary images as `tagi train` does, for all methods.")] = True,
    target: Annotated[
        float | None,
        typer.Option(
            metavar="%", help="The test error whose time is taken; 2 for mnist, 40 for cifar10. With --show too."
        ),
    ] = None,
    tune: Annotated[
        bool, typer.Option(help="Tune rivals on images held out of the training set, or take their defaults.")
    ] = True,
    tune_samples: Annotated[
        int, typer.Option(parser=whole_number, metavar="N", help="Training images that tuning uses.")
    ] = 20_000,
    tune_epochs: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help="Of a tuning run; as --epochs unless given."),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="METHOD.NAME=VALUE", help="A hyperparameter; the method is not tuned then."),
    ] = None,
    test_samples: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Test on the first so many images only.")
    ] = None,
    threads: Threads = None,
    out: Annotated[Path | None, typer.Option(help="The comparison's folder; runs/compare-… unless given.")] = None,
    minutes: Minutes = None,
    show: Annotated[bool, typer.Option("--show", help="Train nothing, show what is finished.")] = False,
    as_json: AsJson = False,
    offline: Offline = False,
) -> None:
    """Train TAGI and its rivals on the same images, and set their results side by side. Ctrl-C stops cleanly; the
    same command goes on, and may name other methods or more seeds. Started in several terminals it shares the runs
    among them."""
    kind = find_task(task)
    if stream and epochs not in (None, 1):
        raise ValueError(f"--stream sees each image once: --epochs must be 1, got {epochs}")
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, got {seeds}")
    length = 1 if stream else usual_epochs(samples) if epochs is None else epochs
    study = Study(
        task=task,
        network=arch or kind.default_network,
        epochs=length,
        samples=samples,
        test_samples=test_samples,
        stream=stream,
        augment=augment,
        target_error=TARGETS[task] if target is None else target,
        tune_samples=tune_samples,
        tune_epochs=length if tune_epochs is None else tune_epochs,
    )
    folder = out or Path("runs") / study.name
    if show:
        finish(collect(folder, target), as_json)
        return
    with Interruption() as interruption:
        try:
            found = run_comparison(
                study,
                split_names(methods),
                list(range(seeds)),
                folder,
                threads=torch.get_num_threads() if threads is None else threads,
                given=parse_given(given or []),
                tuned=tune,
                watch=watcher(interruption, minutes, quiet=as_json),
                say=(lambda message: None) if as_json else say,
                download=not offline,
            )
        except Stopped:
            collect(folder)
            if not as_json:
                console.print(f"stopped; the same command goes on in [bold]{escape(str(folder))}[/bold]")
            raise typer.Exit(128 + interruption.signal if interruption.signal else 0) from None
    finish(found, as_json)


def split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_given(texts: list[str]) -> dict[str, Hyperparameters]:
    """`adam.learning_rate=0.003` → {"adam": {"learning_rate": 0.003}}."""
    found: dict[str, Hyperparameters] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        method, dot, name = place.partition(".")
        if not (equals and dot and name):
            raise ValueError(f"--set must be METHOD.NAME=VALUE, got {text!r}")
        if method != "tagi":
            find_method(method)
        found.setdefault(method, {})[name] = number_or_text(value)
    return found


def number_or_text(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def watcher(interruption: Interruption, minutes: float | None, quiet: bool) -> Watch:
    """Says a line an epoch, and asks for a stop on a signal or when the time is up."""
    end = None if minutes is None else time.monotonic() + 60 * minutes

    def watch(name: str, event: Step | EpochEnd | None) -> bool:
        if isinstance(event, EpochEnd) and not quiet and "error" in event.row:
            row = event.row
            console.print(
                f"{escape(name)}: epoch {row['epoch']}, error {row['error']:.2f} %, NLL {row['nll']:.4f}, "
                f"{row['seconds']:.0f} s"
            )
        return bool(interruption.signal) or (end is not None and time.monotonic() > end)

    return watch


def finish(found: Comparison, as_json: bool) -> None:
    """The tables, the pictures, and where they are."""
    draw(found)
    if as_json:
        print(json.dumps(read_json(found.folder / RESULT), indent=1))
        return
    title = f"{found.study.task}, {found.study.network}: mean of the seeds on the test set"
    if found.study.stream:  # long names, and one more column: two tables fit 80 columns, one does not
        console.print(score_table(title, found, ("train_error", *SCORES), seeds=True))
        console.print(score_table("telling right from wrong", found, AUROCS))
    else:
        console.print(score_table(title, found, (*SCORES, *AUROCS), seeds=True))
    console.print(score_table(f"cost, and the way to {found.study.target_error:g} % error", found, COSTS))
    for row in found.rows:
        console.print(f"{row['entry']}: {escape(chosen_text(row))}")
    console.print(f"comparison: [bold]{escape(str(found.folder / RESULT))}[/bold], table.md and plots beside it")


def score_table(title: str, found: Comparison, columns: tuple[str, ...], seeds: bool = False) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("method", no_wrap=True)
    if seeds:
        table.add_column("seeds", justify="right")
    for name in columns:
        table.add_column(COLUMNS[name], justify="right", overflow="fold", min_width=13 if name == "error" else None)
    for row in found.rows:
        count = f"{row['seeds']}" + (f" ({row['diverged']} diverged)" if row["diverged"] else "")
        table.add_row(
            row["entry"], *([count] if seeds else []), *(cell(row, c, spread=c == "error") for c in columns)
        )
    return table


def draw(found: Comparison) -> None:
    try:
        plots.require_matplotlib()
    except plots.PlotsUnavailableError as error:
        say(str(error))
        return
    for name, figure in comparison_figures(found.members, found.study.stream).items():
        write_atomically(found.folder / "plots" / f"{name}.png", plots.as_png(figure("light")))
