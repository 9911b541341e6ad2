"""`tagi compare`: TAGI and the baselines side by side."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.baselines import METHODS, find_method
from torchtagi.experiments.baselines.methods import Hyperparameters
from torchtagi.experiments.classify.tasks import TASKS, find_task
from torchtagi.experiments.cli.progress import Interruption
from torchtagi.experiments.cli.shared import AsJson, Offline, console, say, whole_number
from torchtagi.experiments.compare import Runner, Stopped, Study, collect
from torchtagi.experiments.compare import compare as run_comparison
from torchtagi.experiments.compare.runner import COMPARISON, reading
from torchtagi.experiments.compare.study import FEW, FEW_BATCH, MOST_EPOCHS, USUAL_EPOCHS, usual_epochs
from torchtagi.experiments.compare.table import COLUMNS, COSTS, SCORES, cell, chosen_text, runs_of
from torchtagi.experiments.report import comparison_plots, plots
from torchtagi.experiments.runs.folder import Row
from torchtagi.fitting import EpochEnd, Step

EPOCHS_HELP = f"{USUAL_EPOCHS} unless given; with --samples as many as show 30,000 images, {MOST_EPOCHS} at most."
SAMPLES_HELP = f"Learn from so many images, drawn by the seed; baselines take batches of {FEW_BATCH} up to {FEW:,}."


def at_least_one(text: str) -> int:
    number = whole_number(text)
    if number < 1:
        raise typer.BadParameter(f"must be at least 1, got {number}")
    return number


def count(text: str) -> Any:
    """An option that is a whole number, and its help."""
    return typer.Option(parser=at_least_one, metavar="N", help=text)


TaskName = Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")]
Methods = Annotated[str, typer.Option(metavar="A,B,…", help=f"Of tagi, {', '.join(METHODS)}.")]
Seeds = Annotated[int, count("Seeds 0 to N − 1.")]
Arch = Annotated[str | None, typer.Option(help="The network, the same for all.")]
Samples = Annotated[int | None, count(SAMPLES_HELP)]
TestSamples = Annotated[int | None, count("Test on the first so many images only.")]
Threads = Annotated[int | None, count("CPU threads.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="The folder; below runs/ unless given.")]
Minutes = Annotated[float | None, typer.Option(metavar="M", help="Stop after so long; the same command goes on.")]
Show = Annotated[bool, typer.Option("--show", help="Train nothing, show what is finished.")]


def compare(
    task: TaskName,
    methods: Methods = "tagi,adam,mc-dropout,vogn,ensemble",
    epochs: Annotated[int | None, count(EPOCHS_HELP)] = None,
    seeds: Seeds = 3,
    arch: Arch = None,
    samples: Samples = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Each image is seen once, in batches of 1 and of 16.")
    ] = False,
    augment: Annotated[bool, typer.Option(help="Augment images as `tagi train` does, for all methods.")] = True,
    tune: Annotated[
        bool, typer.Option(help="Tune baselines on images held out of the training set, or take their defaults.")
    ] = True,
    tune_samples: Annotated[int, count("Training images that tuning uses.")] = 20_000,
    tune_epochs: Annotated[int | None, count("Of a tuning run; as --epochs unless given.")] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="METHOD.NAME=VALUE", help="A hyperparameter; the method is not tuned then."),
    ] = None,
    test_samples: TestSamples = None,
    threads: Threads = None,
    out: Out = None,
    minutes: Minutes = None,
    show: Show = False,
    as_json: AsJson = False,
    offline: Offline = False,
) -> None:
    """Train TAGI and the baselines on the same images, and set their results side by side. Ctrl-C stops cleanly;
    the same command goes on, and may name other methods or more seeds. Started in several terminals it shares the
    runs among them."""
    if stream and epochs not in (None, 1):
        raise ValueError(f"--stream sees each image once: --epochs must be 1, got {epochs}")
    network = arch or find_task(task).default_network
    length = 1 if stream else usual_epochs(samples) if epochs is None else epochs
    tuning = (tune_samples, tune_epochs or length)
    study = Study(task, network, length, samples, test_samples, stream, augment, *tuning)
    folder = out or Path("runs") / f"compare-{study.name}"
    if show:
        finish(folder, collect(folder), as_json)
        return
    with training(folder, COMPARISON, study, threads, minutes, quiet=as_json) as runner:
        chosen = parse_given(given or [])
        found = run_comparison(runner, split_names(methods), range(seeds), chosen, tune, download=not offline)
    finish(folder, found, as_json)


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
        values = found.setdefault(method, {})
        try:
            values[name] = json.loads(value)
        except json.JSONDecodeError:
            values[name] = value
    return found


@contextmanager
def training(
    folder: Path, file: str, study: Study, threads: int | None, minutes: float | None, quiet: bool
) -> Iterator[Runner]:
    """A runner that says a line a measured epoch, and stops on a signal or when the time is up."""
    end = None if minutes is None else time.monotonic() + 60 * minutes

    def watch(name: str, event: Step | EpochEnd | None) -> bool:
        if isinstance(event, EpochEnd) and not quiet and "error" in event.row:
            row = event.row
            scores = f"error {row['error']:.2f} %, NLL {row['nll']:.4f}, {row['seconds']:.0f} s"
            console.print(f"{escape(name)}: epoch {row['epoch']}, {scores}")
        return bool(interruption.signal) or (end is not None and time.monotonic() > end)

    with Interruption() as interruption:
        try:
            cores = torch.get_num_threads() if threads is None else threads
            yield Runner(folder, file, study, cores, watch)
        except Stopped:
            if not quiet:
                console.print(f"stopped; the same command goes on in [bold]{escape(str(folder))}[/bold]")
            raise typer.Exit(128 + interruption.signal if interruption.signal else 0) from None


def finish(folder: Path, content: Row, as_json: bool) -> None:
    """The tables, the pictures, and where they are."""
    with reading(folder / COMPARISON):
        runs, study = runs_of(content), content["study"]
        errors = comparison_plots.stream_curves if study["stream"] else comparison_plots.error_curves
        draw(folder, {"error": lambda: errors(runs), "reliability": lambda: comparison_plots.reliability(runs)})
        if as_json:
            print(json.dumps(content, indent=1))
            return
        title = f"{study['task']}, {study['network']}: test set, means over seeds"
        console.print(score_table(title, content, SCORES))
        console.print(score_table("cost", content, COSTS))
        for row in content["rows"]:
            console.print(escape(chosen_text(row)))
    console.print(f"comparison: [bold]{escape(str(folder / COMPARISON))}[/bold], plots beside it")


def score_table(title: str, content: Row, columns: tuple[str, ...]) -> Table:
    table = plain_table(["method", *(COLUMNS[name] for name in columns)])
    table.title, table.title_justify = escape(title), "left"
    for row in content["rows"]:
        cells = [row["entry"], *(cell(row, name, spread=name == "error") for name in columns)]
        table.add_row(*(escape(text) for text in cells))
    return table


def plain_table(heads: list[str]) -> Table:
    """Narrow enough for 80 columns; the first column is text, the others are numbers."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for index, head in enumerate(heads):
        table.add_column(escape(head), justify="right" if index else "left", no_wrap=not index, overflow="fold")
    return table


def draw(folder: Path, figures: dict[str, Callable[[], plots.Figure]]) -> None:
    try:
        plots.require_matplotlib()
    except plots.PlotsUnavailableError as error:
        say(str(error))
        return
    for name, figure in figures.items():
        write_atomically(folder / "plots" / f"{name}.png", comparison_plots.small_png(figure()))
