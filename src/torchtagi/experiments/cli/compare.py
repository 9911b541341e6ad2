"""`tagi compare` and `tagi sweep`: TAGI and the baselines side by side, and how much a hyperparameter matters."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.baselines.methods import METHODS, Hyperparameters
from torchtagi.experiments.classify.tasks import TASKS, find_task
from torchtagi.experiments.cli import shared
from torchtagi.experiments.cli.progress import stoppable
from torchtagi.experiments.cli.shared import console, new_table, number, print_json, split_names
from torchtagi.experiments.compare.compare import collect
from torchtagi.experiments.compare.compare import compare as run_comparison
from torchtagi.experiments.compare.runner import Runner
from torchtagi.experiments.compare.study import FEW, FEW_BATCH, MOST_EPOCHS, USUAL_EPOCHS, Study, usual_epochs
from torchtagi.experiments.compare.sweep import collect_sweep
from torchtagi.experiments.compare.sweep import sweep as run_sweep
from torchtagi.experiments.compare.table import COLUMNS, COSTS, SCORES, cell, chosen_text, runs_of
from torchtagi.experiments.data import find_named
from torchtagi.experiments.report import comparison_plots, plots
from torchtagi.experiments.report.measures import shown
from torchtagi.experiments.runs.folder import COMPARISON, SWEEP, Row, reading
from torchtagi.fitting import EpochEnd, Step

EPOCHS_HELP = f"{USUAL_EPOCHS} unless given; with --samples as many as show 30,000 images, {MOST_EPOCHS} at most."
SAMPLES_HELP = f"Learn from so many images, drawn by the seed; baselines take batches of {FEW_BATCH} up to {FEW:,}."

TaskName = Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")]
Methods = Annotated[str, typer.Option(metavar="A,B,…", help=f"Of tagi, {', '.join(METHODS)}.")]
Seeds = Annotated[int, number("Seeds 0 to N − 1.")]
Arch = Annotated[str | None, typer.Option(help="The network, the same for all.")]
Samples = Annotated[int | None, number(SAMPLES_HELP)]
Show = Annotated[bool, typer.Option("--show", help="Train nothing, show what is finished.")]


def compare(
    task: TaskName,
    methods: Methods = "tagi,adam,mc-dropout,vogn,ensemble",
    epochs: Annotated[int | None, number(EPOCHS_HELP)] = None,
    seeds: Seeds = 3,
    arch: Arch = None,
    samples: Samples = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Each image is seen once, in batches of 1 and of 16.")
    ] = False,
    tune: Annotated[
        bool, typer.Option(help="Tune baselines on images held out of the training set, or take their defaults.")
    ] = True,
    tune_samples: Annotated[int, number("Training images that tuning uses.")] = 20_000,
    tune_epochs: Annotated[int | None, number("Of a tuning run; as --epochs unless given.")] = None,
    given: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="METHOD.NAME=VALUE", help="A hyperparameter; the method is not tuned then."),
    ] = None,
    test_samples: shared.TestSamples = None,
    threads: shared.Threads = None,
    out: shared.OutFolder = None,
    show: Show = False,
    as_json: shared.AsJson = False,
) -> None:
    """Train TAGI and the baselines on the same images, and set their results side by side. Ctrl-C stops cleanly;
    the same command goes on, and may name other methods or more seeds. Started in several terminals it shares the
    runs among them."""
    if stream and epochs not in (None, 1):
        raise ValueError(f"--stream sees each image once: --epochs must be 1, got {epochs}")
    network = arch or find_task(task).default_network
    length = 1 if stream else usual_epochs(samples) if epochs is None else epochs
    study = Study(task, network, length, samples, test_samples, stream, tune_samples, tune_epochs or length)
    folder = out or Path("runs") / f"compare-{study.name}"
    if show:
        content = collect(folder)
    else:
        with training(folder, COMPARISON, study, threads, quiet=as_json) as runner:
            chosen = parse_given(given or [])
            content = run_comparison(runner, split_names(methods), range(seeds), chosen, tune)
    with reading(folder / COMPARISON):
        runs, study_row = runs_of(content), content["study"]
        errors = comparison_plots.stream_curves if study_row["stream"] else comparison_plots.error_curves
        draw(folder, error=errors(runs), reliability=comparison_plots.reliability(runs))
        if as_json:
            print_json(content)
            return
        title = f"{study_row['task']}, {study_row['network']}: test set, means over seeds"
        console.print(score_table(title, content, SCORES))
        console.print(score_table("cost", content, COSTS))
        for row in content["rows"]:
            console.print(chosen_text(row))
    console.print(f"comparison: {folder / COMPARISON}, plots beside it")


def sweep(
    task: TaskName,
    methods: Methods = "tagi,sgd,adam,vogn",
    epochs: Annotated[int, number("Of each run.")] = 1,
    seeds: Seeds = 1,
    arch: Arch = None,
    samples: Samples = None,
    test_samples: shared.TestSamples = None,
    threads: shared.Threads = None,
    out: shared.OutFolder = None,
    show: Show = False,
    as_json: shared.AsJson = False,
) -> None:
    """Final test error over the learning rate of baselines, and over σ_V of TAGI. Ctrl-C stops
    cleanly; the same command goes on, and shares the runs if started in several terminals."""
    study = Study(task, arch or find_task(task).default_network, epochs, samples, test_samples)
    folder = out or Path("runs") / f"sweep-{study.name}"
    if show:
        rows = collect_sweep(folder)
    else:
        with training(folder, SWEEP, study, threads, quiet=as_json) as runner:
            rows = run_sweep(runner, split_names(methods), range(seeds))
    with reading(folder / SWEEP):
        if any(row["value"] != "learned" for row in rows):
            draw(folder, sweep=comparison_plots.sweep_figure(rows))
        if as_json:
            print_json(rows)
            return
        table = new_table("axis", "value", "error", "worst", "NLL", "seeds", "diverged")
        for row, after in zip(rows, [*rows[1:], {"axis": None}], strict=True):
            errors = (shown("error", row[name]) for name in ("error", "error_max"))
            cells = (row["axis"], row["value"], *errors, shown("nll", row["nll"]), row["seeds"], row["diverged"])
            table.add_row(*map(str, cells), end_section=after["axis"] != row["axis"])
        console.print(table)
    console.print(f"sweep: {folder / SWEEP}, its picture in plots")


def parse_given(texts: list[str]) -> dict[str, Hyperparameters]:
    """`adam.learning_rate=0.003` → {"adam": {"learning_rate": 0.003}}."""
    found: dict[str, Hyperparameters] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        method, dot, name = place.partition(".")
        if not (equals and dot and name):
            raise ValueError(f"--set must be METHOD.NAME=VALUE, got {text!r}")
        if method != "tagi":
            find_named("method", method, METHODS)
        values = found.setdefault(method, {})
        try:
            values[name] = json.loads(value)
        except json.JSONDecodeError:
            values[name] = value
    return found


@contextmanager
def training(folder: Path, file: str, study: Study, threads: int | None, quiet: bool) -> Iterator[Runner]:
    """A runner that says a line a measured epoch, and stops on a signal."""

    def watch(name: str, event: Step | EpochEnd | None) -> bool:
        if isinstance(event, EpochEnd) and not quiet and "error" in event.row:
            error, nll, seconds = (shown(part, event.row[part]) for part in ("error", "nll", "seconds"))
            console.print(f"{name}: epoch {event.row['epoch']}, error {error}, NLL {nll}, {seconds} s")
        return bool(received)

    with stoppable(folder, quiet) as received:
        yield Runner(folder, file, study, threads or torch.get_num_threads(), watch)


def score_table(title: str, content: Row, columns: tuple[str, ...]) -> Table:
    table = new_table("method", *(COLUMNS[name] for name in columns), title=title)
    for row in content["rows"]:
        table.add_row(row["entry"], *(cell(row, name, spread=name == "error") for name in columns))
    return table


def draw(folder: Path, **figures: plots.Figure) -> None:
    for name, figure in figures.items():
        write_atomically(folder / "plots" / f"{name}.png", plots.as_png(figure))
