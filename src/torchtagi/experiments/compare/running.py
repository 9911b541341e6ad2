"""Many runs below one folder, each trained once: a finished one is left alone, an unfinished one goes on.

Several processes may work in the same folder: a run is locked by the one that is at it, and the others go on to the
next.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torchtagi import checkpoint
from torchtagi.experiments import data
from torchtagi.experiments.baselines import RivalConfig, RivalTraining
from torchtagi.experiments.classify.config import TrainConfig
from torchtagi.experiments.classify.loop import Step
from torchtagi.experiments.classify.train import Training
from torchtagi.experiments.runs.folder import CONFIG, Row, Run, read_json
from torchtagi.experiments.runs.locking import attempt
from torchtagi.experiments.runs.resumable import EpochEnd

AnyConfig = TrainConfig | RivalConfig
Watch = Callable[[str, Step | EpochEnd | None], bool]
"""Hears a run's name and event, or None while another process is awaited; True asks for a stop at this moment."""

SUMMARY = "summary.json"  # what a finished run says in a comparison
DIVERGED = "diverged.json"
SAVE_SECONDS = 300.0  # no more than this is lost if the process is killed
POLL_SECONDS = 1.0


class Stopped(Exception):
    """The watcher asked for a stop; what was learned is in the checkpoint."""


def share(folders: Iterable[Path], work: Callable[[Path], None], watch: Watch) -> None:
    """Call `work` for each run's folder that no other process is at, and come back to the others until all are
    done."""
    left = list(folders)
    while left:
        busy = []
        for folder in left:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with attempt(folder.parent / f".{folder.name}.lock") as mine:
                if mine:
                    work(folder)
                else:
                    busy.append(folder)
        if busy:
            if watch(run_name(busy[0]), None):
                raise Stopped
            time.sleep(POLL_SECONDS)
        left = busy


def is_foreign(folder: Path, first: str) -> bool:
    """Whether `folder` holds something, but not the file that is the `first` one written here. It is looked for
    last: another process may be writing it at this moment, under a hidden name until it is whole."""
    if not folder.is_dir():
        return folder.exists()
    visible = any(not path.name.startswith(".") for path in folder.iterdir())
    return visible and not (folder / first).is_file()


def run_name(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def start_or_resume(folder: Path, config: AnyConfig, sets: data.TrainTest) -> Training | RivalTraining:
    """The run in `folder`, which must have been started with `config`; threads may differ."""
    if not (folder / CONFIG).is_file():
        run = Run.create(folder, config.as_json())
        return Training(config, run, sets) if isinstance(config, TrainConfig) else RivalTraining(config, run, sets)
    run = Run.open(folder)
    threads = run.config.get("threads", config.threads)
    if isinstance(config, TrainConfig):
        return Training.resume(run, dataclasses.replace(config, threads=threads), sets)
    return RivalTraining.resume(run, dataclasses.replace(config, threads=threads), sets)


def complete(folder: Path, config: AnyConfig, sets: Callable[[], data.TrainTest], watch: Watch) -> bool:
    """Train the run in `folder` to its end, if it is not there yet; False if it diverged."""
    if is_diverged(folder):
        return False
    if is_complete(folder, config.epochs):
        return True
    training = start_or_resume(folder, config, sets())
    saved = time.monotonic()
    try:
        for event in training.events():
            stop = watch(run_name(folder), event)
            if isinstance(event, EpochEnd):
                saved = time.monotonic()
            elif stop or time.monotonic() - saved > SAVE_SECONDS:
                training.save()
                saved = time.monotonic()
            if stop:
                raise Stopped
    except FloatingPointError as error:
        assert training.run is not None
        training.run.write_json(DIVERGED, {"error": str(error)})
        return False
    return True


def complete_all(configs: Mapping[Path, AnyConfig], sets: Callable[[], data.TrainTest], watch: Watch) -> None:
    """Train the runs in these folders to their ends."""

    def work(folder: Path) -> None:
        complete(folder, configs[folder], sets, watch)

    share(configs, work, watch)


def is_complete(folder: Path, epochs: int) -> bool:
    """Whether all of its epochs are learned; the checkpoint says, for metrics are written just before it. A
    recorded run has a summary instead."""
    if not (folder / CONFIG).is_file():
        return False
    run = Run.open(folder)
    if not run.checkpoint.is_file() and (folder / SUMMARY).is_file():
        return run.config.get("epochs") == read_json(folder / SUMMARY).get("epochs") == epochs
    if not run.checkpoint.is_file():
        return False
    position = run.position(checkpoint.read(run.checkpoint)[0]["extra"])
    return run.config.get("epochs") == position.get("epoch") == epochs


def is_diverged(folder: Path) -> bool:
    return (folder / DIVERGED).is_file()


def last_row(folder: Path) -> Row | None:
    """What was measured after a run's last epoch; None if it diverged or has none."""
    if is_diverged(folder) or not (folder / CONFIG).is_file():
        return None
    rows = Run.open(folder).metrics()
    return rows[-1] if rows else None
