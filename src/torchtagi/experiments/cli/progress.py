"""What commands that learn share: a progress bar, a line an epoch or a job, a clean way out, the last lines."""

import dataclasses
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tqdm import tqdm

from torchtagi import distributed
from torchtagi.experiments import data
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.cli.shared import console, say, value_table
from torchtagi.experiments.gan.training import GanTraining
from torchtagi.experiments.jobs import Job, complete
from torchtagi.experiments.report.measures import EPOCH_COLUMNS, described, epochs, kind_of, shown
from torchtagi.experiments.report.page import write_report
from torchtagi.experiments.runs.config import RunConfig
from torchtagi.experiments.runs.folder import CONFIG, Row, Run, RunError, Stopped, check_free, locked
from torchtagi.experiments.runs.training import RunTraining
from torchtagi.fitting import EpochEnd, Step

SIGHUP = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none


class Interrupted(Exception):
    """A signal ended a command, which has said so."""

    def __init__(self, code: int) -> None:
        self.code = code


@contextmanager
def interruptible() -> Iterator[list[int]]:
    """Ctrl-C, SIGTERM and SIGHUP are entered in a list, to stop at the next safe moment; a second one stops at
    once, but for `torchrun`, which hands on what the terminal sends anyway. Under nohup a closed terminal must not
    stop the run."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        if received and not distributed.launched():
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, SIGHUP)}
    if before[SIGHUP] == signal.SIG_IGN:
        del before[SIGHUP]
    try:
        for number in before:
            signal.signal(number, receive)
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def options_of(config: type[RunConfig], options: Row) -> Row:
    """The fields of a configuration that were given as options."""
    names = {field.name for field in dataclasses.fields(config)} - {"task"}
    return {name: value for name, value in options.items() if name in names and value is not None}


def progress_bar(unit: str, total: int | None = None) -> tqdm:
    """For terminals only; it leaves no line behind."""
    hidden = console.quiet or not console.is_terminal
    shown_in: Any = {"file": console.file, "disable": hidden, "dynamic_ncols": True}
    return tqdm(total=total, unit=unit, unit_scale=total is None, leave=False, **shown_in)


@contextmanager
def stoppable(folder: Path, quiet: bool) -> Iterator[list[int]]:
    """For work in `folder` that raises `Stopped` after a signal; the list has those that came."""
    with interruptible() as received:
        try:
            yield received
        except Stopped:
            if not quiet:
                console.print(f"stopped; the same command goes on in {folder}")
            raise Interrupted(128 + received[0]) from None


def measure(jobs: Sequence[Job], file: Path, processes: int, quiet: bool) -> None:
    """Measure what `file` lacks of these jobs, and show a line of each. A signal stops it; nothing measured is
    lost."""
    with locked(file.parent), stoppable(file.parent, quiet) as received, progress_bar(" jobs", len(jobs)) as bar:
        for row in complete(file, jobs, processes, lambda: bool(received)):
            bar.update()
            if not quiet:
                bar.clear()
                console.print(line_of(row))


def line_of(row: Row) -> str:
    """`yacht, tagi, split 0: RMSE 0.75, …`"""
    what = [str(row[name]) for name in ("set", "stream", "method") if name in row]
    what += [f"{name} {row[name]}" for name in ("split", "seed") if name in row][:1]
    scores = f"RMSE {row['rmse']:.4g}, log-likelihood {row['log_likelihood']:.3f}"
    scores += f", coverage {row['coverage']:.3f}" if "coverage" in row else ""
    return f"{', '.join(what)}: {scores}, {row['seconds']:.1f} s"


def run_training(
    make: type[Training | GanTraining],
    config: Any,
    given: Row,
    out: Path | None,
    resume: bool,
    overwrite: bool,
    report: bool,
    shard: bool = False,
) -> None:
    """Train what `config` says, or go on with it, and show how it goes and ends."""
    if resume and overwrite:
        raise RunError("--resume continues a run, --overwrite replaces it: give one of them")
    folder = out or Path("runs") / config.name
    group = distributed.start(config.device)
    again = group is not None and any(group.objects(distributed.restarts()))  # on one machine or another
    if shard and group is None:
        raise RunError("--shard is for several processes: torchrun --nproc-per-node N -m torchtagi train …")
    if group is not None and not group.first:
        console.quiet = True
        follower = make(group.of_first(lambda: config), sets=data.load_train_test(config.data))
        follower.sharded = shard
        show_progress(follower, "")
        return
    if again and (folder / CONFIG).is_file():
        resume, overwrite = True, False
    with locked(folder):
        if resume:
            training: RunTraining = resumed(make, folder, config, given)
        else:
            # the folder's refusal comes before a long download, the folder itself when nothing can be refused
            check_free(folder, overwrite)
            training = make(config, sets=data.load_train_test(config.data))
            training.run = Run.create(folder, config.as_json(), overwrite)
        if group is not None:
            group.of_first(lambda: training.config)
            training.sharded = shard
        show_start(training, folder)
        if training.done:
            deque(training.events(), 0)  # other processes are told so
        else:
            command = "gan" if kind_of(config.task) == "gan" else "train"
            show_progress(training, f"tagi {command} {config.task} --out {folder} --resume")
        run = training.run
        assert run is not None
        row = run.metrics()[-1]
        console.print(value_table(f"after {epochs(row['epoch'])}", described(run, row)))
        if report:
            console.print(f"report page: {write_report(run, progress=say)}")


def resumed(make: type[RunTraining], folder: Path, config: Any, given: Row) -> RunTraining:
    """The run in `folder`, if what was asked for on the command line is what it is."""
    run = Run.open(folder)
    if run.config["task"] != config.task:
        raise RunError(f"{folder} was started with task {run.config['task']}, not {config.task}")
    before = type(config).from_json(run.config)
    if run.method != getattr(before, "method", "tagi"):
        raise RunError(f"{folder} is a run of {run.method}; tagi compare continues it")
    if config.paper and not before.paper:
        raise RunError(f"{folder} was started without --paper")
    return make.resume(run, dataclasses.replace(before, **given), data.load_train_test(config.data))


def show_start(training: RunTraining, folder: Path) -> None:
    """What is trained, where it is kept, and from which place on."""
    config = training.config
    console.print(
        f"{config.task} · {config.network} · {config.setting} · seed {config.seed}: "
        f"{len(training.train):,} images, batches of {config.batch_size}"
        + ("" if training.group is None else f" in each of {training.group.size} processes")
    )
    console.print(f"run folder: {folder}")
    if training.done:
        console.print(f"all {training.epoch} epochs are learned already")
    elif training.epoch or training.sums.batches:
        console.print(f"continuing {place_of(training)}, up to {epochs(config.epochs)}")


def show_progress(training: RunTraining, again: str) -> None:
    """Train to the end. A signal stops it with a checkpoint; `again` is the command that continues."""
    columns = EPOCH_COLUMNS[kind_of(training.config.task)]
    console.print(" ".join(f"{head:>8}" for head in columns.values()), style="dim")
    with interruptible() as received, progress_bar(" images", len(training.train)) as bar:
        training.signals = received
        for event in training.events():
            if isinstance(event, EpochEnd):
                bar.clear()
                console.print(" ".join(f"{shown(name, event.row.get(name)):>8}" for name in columns))
                bar.reset()
            else:
                bar.set_description(f"epoch {event.epoch}/{training.config.epochs}", refresh=False)
                bar.set_postfix_str(state_of(event), refresh=False)
                bar.update(event.samples - bar.n)
            writes = training.run is not None or training.sharded
            if isinstance(event, Step) and (training.stopping or event.save_due) and writes:
                training.save()
            if training.stopping:
                break
    if training.stopping:
        console.print(f"stopped {place_of(training)}; the checkpoint is written. Go on with: {again}")
        raise Interrupted(128 + (received or [signal.SIGTERM])[0])


def state_of(step: Step) -> str:
    """Beside the bar: how a classifier or a GAN is doing."""
    report = step.report
    if "alpha" in report:
        return f"error {step.error:.2f} %  α {report['alpha']:.2f}"
    text = f"Pnet real {report['train_real']:+.2f} generated {report['train_fake']:+.2f}"
    if "train_generator_alpha" in report:
        text += f"  α {report['train_discriminator_alpha']:.2f} {report['train_generator_alpha']:.2f}"
    return text + f"  |pixel| ≤ {report['train_largest_pixel']:.1f}"


def place_of(training: RunTraining) -> str:
    return f"after {epochs(training.epoch)} and {training.sums.batches} batches"
