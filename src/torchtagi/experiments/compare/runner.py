"""Many runs below one folder, each trained once.

    comparison.json or sweep.json    the study, and by name what came of each finished run
    <name>/                          the run's own folder, such as `adam/seed0/`

A finished run is never repeated, an unfinished one goes on. Several processes may work in the same folder: a run is
locked by the one that trains it, and the others go on to the next.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from filelock import FileLock

from torchtagi.experiments import data
from torchtagi.experiments.baselines.methods import BaselineConfig
from torchtagi.experiments.classify.config import TrainConfig
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.compare.study import Study
from torchtagi.experiments.runs.config import versions
from torchtagi.experiments.runs.folder import (
    CONFIG,
    BusyError,
    Row,
    Run,
    RunError,
    Stopped,
    locked,
    read_json,
    write_json,
)
from torchtagi.fitting import EpochEnd, Step

POLL_SECONDS = 1.0

AnyConfig = TrainConfig | BaselineConfig
Watch = Callable[[str, Step | EpochEnd | None], bool]
"""Gets a run's name and event, or None while another process is awaited; True asks for a stop at this moment."""


@dataclass
class Runner:
    """Trains the runs of `study` below `folder`, and keeps what came of them in `file`."""

    folder: Path
    file: str
    study: Study
    threads: int = 1
    watch: Watch = lambda name, event: False

    @cached_property
    def sets(self) -> data.TrainTest:
        return data.load_train_test(self.study.task)

    def open(self, **parts: Row) -> None:
        """Make the folder's file with these parts, or see that it is of the same study."""
        visible = self.folder.is_dir() and any(not path.name.startswith(".") for path in self.folder.iterdir())
        if self.folder.is_file() or (visible and not (self.folder / self.file).is_file()):
            raise RunError(f"{self.folder} is not empty and has no {self.file}; give another --out")
        asked = dataclasses.asdict(self.study)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.file_lock():
            if not (self.folder / self.file).is_file():
                content = {"study": asked, "versions": versions(), "runs": {}, **parts}
                write_json(self.folder / self.file, content)
            before = self.read()["study"]
        for name, value in asked.items():
            if before.get(name) != value:
                known = f"{name.replace('_', ' ')} {before.get(name)}"
                raise RunError(f"{self.folder} has {known}, not {value}; give another --out")

    def read(self) -> Row:
        return read_study(self.folder, self.file)

    @contextmanager
    def changing(self) -> Iterator[Row]:
        """The file as it is now, for other processes may have added to it; written at the end of the block."""
        with self.file_lock():
            content = self.read()
            yield content
            write_json(self.folder / self.file, content)

    def file_lock(self) -> FileLock:
        return FileLock(self.folder / ".lock")

    def share(self, names: Iterable[str], work: Callable[[str], None]) -> None:
        """Call `work` for each run that is not finished and that no other process is at, and come back to the
        others until all are done."""
        left = list(names)
        while left:
            busy = []
            for name in left:
                try:
                    with locked(self.folder / name):
                        if name not in self.read()["runs"]:
                            work(name)
                except BusyError:
                    busy.append(name)
            if busy:
                if self.watch(busy[0], None):
                    raise Stopped
                time.sleep(POLL_SECONDS)
            left = busy

    def complete(self, configs: Mapping[str, AnyConfig]) -> dict[str, Row]:
        """Train these runs; returns the error and NLL at the end of each, or why it diverged."""
        self.share(configs, lambda name: self.train(name, configs[name], last_scores))
        runs = self.read()["runs"]
        return {name: runs[name] for name in configs}

    def train(self, name: str, config: AnyConfig, measure: Callable[[Run], Row]) -> None:
        """Train a run to its end and keep what is measured of it."""
        training = start_or_resume(self.folder / name, config, self.sets)
        try:
            for event in training.events():
                stop = self.watch(name, event)
                if isinstance(event, Step) and (stop or event.save_due):
                    training.save()
                if stop:
                    raise Stopped
            assert training.run is not None
            found = measure(training.run)
        except FloatingPointError as error:
            found = {"diverged": str(error)}
        with self.changing() as content:
            content["runs"][name] = found


def start_or_resume(folder: Path, config: AnyConfig, sets: data.TrainTest) -> Training:
    """The run in `folder`, which must have been started with `config`; threads may differ."""
    if not (folder / CONFIG).is_file():
        return Training(config, Run.create(folder, config.as_json()), sets)
    run = Run.open(folder)
    return Training.resume(
        run, dataclasses.replace(config, threads=run.config.get("threads", config.threads)), sets
    )


def last_scores(run: Run) -> Row:
    return {name: run.metrics()[-1][name] for name in ("error", "nll")}


def read_study(folder: Path, file: str) -> Row:
    if not (folder / file).is_file():
        raise RunError(f"{folder} has no {file}: it is not a {file.removesuffix('.json')}")
    content = read_json(folder / file)
    if not all(isinstance(content.get(part), dict) for part in ("study", "runs")):
        raise RunError(f"{folder / file} is not a {file.removesuffix('.json')}'s: it must have a study and runs")
    return content
