"""What `tagi train` and `tagi gan` share: a progress bar, a line an epoch, stopping at a signal, the last lines."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from torchtagi.experiments import data
from torchtagi.experiments.cli.shared import console
from torchtagi.experiments.report.plots import PlotsUnavailableError
from torchtagi.experiments.runs.folder import Row
from torchtagi.fitting import EpochEnd

REFRESH_SECONDS = 0.1
STOPPING = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    STOPPING.append(signal.SIGHUP)


class Interruption:
    """Ctrl-C, SIGTERM and SIGHUP ask for a stop at the next safe moment; a second one stops at once."""

    def __init__(self) -> None:
        self.signal = 0

    def __enter__(self) -> Interruption:
        self.before = {}
        for number in STOPPING:
            # under nohup a closed terminal must not stop the run
            if number in (signal.SIGINT, signal.SIGTERM) or signal.getsignal(number) != signal.SIG_IGN:
                self.before[number] = signal.signal(number, self.receive)
        return self

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


class Trainable(Protocol):
    """What the loop below needs of a training."""

    config: Any
    train: Any
    sums: Any

    @property
    def epoch(self) -> int: ...
    @property
    def done(self) -> bool: ...
    def events(self) -> Iterator[Any]: ...
    def save(self) -> None: ...


@dataclass(frozen=True)
class Lines:
    """How a kind of training is shown: the head of its table, a step beside the bar, an epoch as a row."""

    head: str
    state: Callable[[Any], str]
    epoch: Callable[[Row], str]


def load_sets(name: str) -> data.TrainTest:
    """Both halves of a data set, with a bar if they have to be fetched."""
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task(f"loading {name}", total=None)
        return data.load_train_test(
            name, progress=lambda done, total: bar.update(line, completed=done, total=total)
        )


def show_start(training: Trainable, folder: Path, how: str) -> None:
    """What is trained, `how`, where it is kept, and from which place on."""
    config = training.config
    console.print(
        f"[bold]{config.task}[/bold] · {config.network} · {escape(config.setting)} · seed {config.seed}: "
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


def show_progress(training: Trainable, lines: Lines, again: str) -> None:
    """Train to the end. A signal stops it with a checkpoint; `again` is the command that continues."""
    if training.done:
        return
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
                    completed=event.samples,
                    total=event.of_samples,
                    state=lines.state(event),
                )
            if interruption.signal:
                if not isinstance(event, EpochEnd):
                    training.save()
                break
    if interruption.signal:
        where = f"after {training.epoch} epochs and {training.sums.batches} batches; the checkpoint is written"
        console.print(f"stopped {where}. Go on with: [bold]{escape(again)}[/bold]")
        raise typer.Exit(128 + interruption.signal)


def show_page(write: Callable[[], Path]) -> None:
    """Write the report page and say where it is; without matplotlib, say that."""
    try:
        page = write()
    except PlotsUnavailableError as error:
        console.print(f"no report page: {error}")
        return
    console.print(f"report page: [bold]{escape(str(page))}[/bold]")
