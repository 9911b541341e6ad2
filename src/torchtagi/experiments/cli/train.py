"""`tagi train`: the loop with a progress bar, a line an epoch, and a clean way out."""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated, Any, Protocol

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from torchtagi.experiments import data
from torchtagi.experiments.classify.config import TrainConfig, configure
from torchtagi.experiments.classify.tasks import TASKS, find_task
from torchtagi.experiments.classify.train import EpochEnd, Step, Training
from torchtagi.experiments.cli.shared import console, one_line_errors, say, whole_number
from torchtagi.experiments.gan.config import METHODS
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.report.page import write_report
from torchtagi.experiments.report.plots import PlotsUnavailableError
from torchtagi.experiments.runs.config import with_changes
from torchtagi.experiments.runs.folder import Row, Run, RunError, check_free
from torchtagi.inference.update import RULES
from torchtagi.nn.affine import PRECISIONS

REFRESH_SECONDS = 0.1
EPOCH_LINE = "{:>6} {:>9} {:>8} {:>8} {:>9} {:>8} {:>6} {:>9} {:>8}"
EPOCH_HEADS = ("epoch", "error", "NLL", "ECE", "training", "noise", "α", "img/s", "seconds")
ARCHITECTURES = "; ".join(f"{task.name}: {', '.join(task.networks)}" for task in TASKS.values())


@one_line_errors
def train(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join([*TASKS, *GAN_TASKS])}.")],
    arch: Annotated[str | None, typer.Option(help=f"The network. {ARCHITECTURES}.")] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="The paper's setting: rule paper, σ_V from 1 by 0.975 an epoch, 50 epochs."),
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="How often to go through the data.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Images a step; 16 unless given.")
    ] = None,
    noise: Annotated[
        str | None, typer.Option(help="Observation noise σ_V: a number, or `learned`.", metavar="STD|learned")
    ] = None,
    rule: Annotated[str | None, typer.Option(help=f"The update's rule: {', '.join(RULES)}.")] = None,
    augment: Annotated[
        bool | None,
        typer.Option(
            "--augment/--no-augment",
            help="Vary images at random: digits are shifted, CIFAR-10 is cropped and mirrored. Our default does so "
            "from the second epoch on, the paper for ResNet18.",
            show_default=False,
        ),
    ] = None,
    norm_first: Annotated[
        bool | None,
        typer.Option(
            "--norm-first/--norm-last",
            help="Norm layers before their ReLU, or behind it as in the authors' networks, the default.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, metavar="N", help="Of the prior's means and the order of the data; 0 unless given."
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Train on the first so many images only.")
    ] = None,
    test_samples: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Test on the first so many images only.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; cpu unless given.")] = None,
    threads: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help="CPU threads; results depend on it in the last bits."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help=f"What convolutions multiply in: {' or '.join(PRECISIONS)}, which takes two thirds of the time on "
            "processors that have it."
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The run folder; runs/<task>-<network>-<setting>-seed<k> unless given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run if there is one.")] = False,
    report: Annotated[bool, typer.Option(help="Draw plots and write the report page at the end.")] = True,
    method: Annotated[str | None, typer.Option(help=f"Of GANs: {' or '.join(METHODS)}; tagi unless given.")] = None,
    judge: Annotated[
        str | None,
        typer.Option(help="Of GANs: a `tagi train mnist` run that reads the generated digits, `quick` or `none`."),
    ] = None,
    knobs: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any field of the configuration; may be repeated."),
    ] = None,
) -> None:
    """Train a classifier or a GAN; Ctrl-C stops it cleanly, --resume continues it exactly."""
    if resume and overwrite:
        raise RunError("--resume continues a run, --overwrite replaces it: give one of them")
    if task in GAN_TASKS:
        # imported here because it shares this file's loop
        from torchtagi.experiments.cli.train_gan import train_gan

        for name, value in (
            *(("--arch", arch), ("--noise", noise), ("--augment", augment)),
            ("--norm-first", norm_first),
        ):
            if value is not None:
                raise ValueError(f"{name} is for classifiers; a GAN's settings are given by --set name=value")
        asked = {
            **{"epochs": epochs, "batch_size": batch_size, "rule": rule, "seed": seed, "samples": samples},
            **{
                "test_samples": test_samples,
                "device": device,
                "threads": threads,
                "method": method,
                "judge": judge,
                "precision": precision,
            },
        }
        train_gan(task, paper, asked, knobs or [], run, resume, overwrite, report)
        return
    for name, given_to_gan in (("--method", method), ("--judge", judge)):
        if given_to_gan:
            raise ValueError(f"{name} is for GANs: {', '.join(GAN_TASKS)}")
    given = {
        "epochs": epochs,
        "batch_size": batch_size,
        "rule": rule,
        "augment": augment,
        "norm_first": norm_first,
        "seed": seed,
        "device": device,
        "threads": threads,
        "precision": precision,
        "samples": samples,
        "test_samples": test_samples,
        **parse_noise(noise),
    }
    given = {name: value for name, value in given.items() if value is not None}
    given = with_changes(TrainConfig, given, knobs or [])
    config = configure(task, arch, paper=paper, **given)
    folder = run or Path("runs") / config.name
    if resume:
        named = {} if arch is None else {"network": arch}
        training = resumed(folder, task, paper, {**given, **named})
    else:
        # the folder's refusal comes before a long download, the folder itself after it
        check_free(folder, overwrite)
        sets = load_sets(task)
        training = Training(config, Run.create(folder, config.as_json(), overwrite), sets)
    show_start(training, folder, f"rule {training.config.rule}")
    if not training.done:
        learn(training, folder)
    finish(training, report)


def resumed(folder: Path, task: str, paper: bool, given: dict[str, Any]) -> Training:
    """The run in `folder`, if what was asked for on the command line is what it is."""
    run = Run.open(folder)
    if run.method != "tagi":
        raise RunError(f"{folder} is a run of {run.method}; tagi compare continues it")
    before = TrainConfig.from_json(run.config)
    if before.task != task:
        raise RunError(f"{folder} was started with task {before.task}, not {task}")
    if paper and not before.setting.startswith("paper"):
        raise RunError(f"{folder} was started without --paper")
    return Training.resume(run, dataclasses.replace(before, **given), load_sets(task))


def load_sets(task: str) -> data.TrainTest:
    """Both halves of the task's data, with a bar if they have to be fetched."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task(f"loading {task}", total=None)
        return data.load_train_test(
            task, progress=lambda done, total: bar.update(line, completed=done, total=total)
        )


def parse_noise(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if text == "learned":
        return {"learn_noise": True, "noise_std": 0.01, "noise_decay": 1.0}
    try:
        return {"learn_noise": False, "noise_std": float(text)}
    except ValueError:
        raise ValueError(f"--noise must be a number or `learned`, got {text!r}") from None


class Interruption:
    """Ctrl-C and SIGTERM ask for a stop at the next safe moment; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.signal = 0

    def __enter__(self) -> Interruption:
        self.before = {number: signal.signal(number, self.hear) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def show_start(training: Learner, folder: Path, how: str) -> None:
    """What is trained, `how`, where it is kept, and from which place on."""
    config = training.config
    console.print(
        f"[bold]{config.task}[/bold] · {config.network} · {config.setting} · seed {config.seed}: "
        f"{len(training.train):,} images, batches of {config.batch_size}, {how}"
    )
    console.print(f"run folder: [bold]{escape(str(folder))}[/bold]")
    if training.done:
        console.print(f"all {training.epoch} epochs are learned already")
    elif training.epoch or training.sums.batches:
        console.print(
            f"continuing after {training.epoch} epochs and {training.sums.batches} batches, "
            f"up to {config.epochs} epochs"
        )


class Learner(Protocol):
    """What the loop below needs of a training."""

    config: Any
    train: Any
    epoch: int
    sums: Any

    @property
    def done(self) -> bool: ...

    def events(self) -> Iterator[Any]: ...
    def save(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Lines:
    """How a kind of training is shown: the head of its table, a step beside the bar, an epoch as a row."""

    head: str
    state: Callable[[Any], str]
    epoch: Callable[[Row], str]


def learn(training: Learner, folder: Path, lines: Lines | None = None) -> None:
    lines = lines or Lines(EPOCH_LINE.format(*EPOCH_HEADS), progress_state, epoch_line)
    total = training.config.epochs
    console.print(f"[dim]{lines.head}[/dim]")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with (
        Interruption() as interruption,
        Progress(*columns, console=console, disable=not console.is_terminal) as bar,
    ):
        line = bar.add_task("", total=len(training.train), state="")
        shown = 0.0
        for event in training.events():
            if isinstance(event, EpochEnd):
                bar.console.print(lines.epoch(event.row))
            elif time.monotonic() - shown > REFRESH_SECONDS:
                shown = time.monotonic()
                bar.update(
                    line,
                    description=f"epoch {event.epoch}/{total}",
                    completed=event.images,
                    total=event.of_images,
                    state=lines.state(event),
                )
            if interruption.signal:
                if not isinstance(event, EpochEnd):
                    training.save()
                break
    if interruption.signal:
        where = f"after {training.epoch} epochs and {training.sums.batches} batches; the checkpoint is written"
        again = f"tagi train {training.config.task} --run {folder} --resume"
        console.print(f"stopped {where}. Go on with: [bold]{escape(again)}[/bold]")
        raise typer.Exit(128 + interruption.signal)


def progress_state(step: Step) -> str:
    return (
        f"{step.images_per_second:,.0f} img/s  error {step.error:.2f} %  "
        f"noise {step.report['noise_std']:.3f}  α {step.report['alpha']:.2f}"
    )


def epoch_line(row: Row) -> str:
    return EPOCH_LINE.format(
        row["epoch"],
        *((f"{row['error']:.2f} %", f"{row['nll']:.4f}", f"{row['ece']:.4f}") if "error" in row else "–––"),
        f"{row['train_error']:.2f} %",
        f"{row['noise_std']:.3f}",
        f"{row['alpha']:.2f}",
        f"{row['images_per_second']:,.0f}",
        f"{row['seconds']:.0f}",
    )


def finish(training: Training, report: bool) -> None:
    """The result beside the paper's, and where to look further."""
    run = training.run
    assert run is not None
    show_result(training.config, run.metrics()[-1])
    if not report:
        return
    try:
        page = write_report(run, progress=say)
    except PlotsUnavailableError as error:
        console.print(f"no report page: {error}")
        return
    console.print(f"report page: [bold]{escape(str(page))}[/bold]")


def show_result(config: TrainConfig, row: Row) -> None:
    paper = find_task(config.task).network(config.network).paper_error
    table = Table(
        title=f"test set after {row['epoch']} epoch{'s' if row['epoch'] > 1 else ''}", title_justify="left"
    )
    table.add_column("")
    table.add_column("this run", justify="right")
    for epoch in paper:
        table.add_column(f"paper, e={epoch}", justify="right")
    blank = ["–"] * len(paper)
    table.add_row("error", f"[bold]{row['error']:.2f} %[/bold]", *(f"{error:.2f} %" for error in paper.values()))
    table.add_row("negative log-likelihood", f"{row['nll']:.4f}", *blank)
    table.add_row("expected calibration error", f"{row['ece']:.4f}", *blank)
    table.add_row("training time of the last epoch", f"{row['seconds']:.0f} s", *blank)
    console.print(table)
