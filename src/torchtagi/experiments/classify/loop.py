"""The training loop: any learner, any number of epochs, and going on where it stopped.

    class Training(Loop[TrainConfig]): ...   # says how a configuration is read and which learner it makes
    run = Run.create(folder, config.as_json())
    training = Training(config, run)
    for event in training.events():      # a Step after each batch, an EpochEnd after each epoch
        ...                              # stop whenever you like; training.save() keeps the place

`torchtagi.experiments.runs.resumable` says how a run goes on where it stopped.
"""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchtagi.experiments import data
from torchtagi.experiments.classify.learner import Learner
from torchtagi.experiments.classify.prediction import Scores, scores
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.runs.config import ClassifierConfig, check_device
from torchtagi.experiments.runs.folder import Row, Run
from torchtagi.experiments.runs.resumable import EpochEnd, Resumable

C = TypeVar("C", bound=ClassifierConfig)

CURVE_POINTS = 30  # how finely an epoch's training error is kept: enough to see its shape in a plot


@dataclass
class EpochSums:
    """What an unfinished epoch has added up; it goes into a checkpoint made in its middle."""

    batches: int = 0
    images: int = 0
    wrong: int = 0
    seconds: float = 0.0
    reports: dict[str, float] = field(default_factory=dict)
    """The sums of the steps' reports."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(images seen in this epoch, error in % on those since the point before)."""
    curve_images: int = 0
    curve_wrong: int = 0

    @property
    def error(self) -> float:
        return 100 * self.wrong / max(self.images, 1)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> EpochSums:
        """Checkpoints of version 0.1.0 have the two sums of TAGI's reports as fields of their own."""
        content = dict(content)
        if "reports" not in content:
            content["reports"] = {name: content.pop(name) for name in ("alpha", "innovation")}
        sums = cls(**content)
        sums.curve = [(int(images), float(error)) for images, error in sums.curve]
        return sums

    def add_report(self, report: dict[str, float]) -> None:
        for name, value in report.items():
            self.reports[name] = self.reports.get(name, 0.0) + value

    def end_curve_point(self) -> None:
        if self.curve_images:
            self.curve.append((self.images, 100 * self.curve_wrong / self.curve_images))
        self.curve_images = self.curve_wrong = 0


@dataclass(frozen=True)
class Step:
    """After a batch. `error` is this epoch's so far, in %, on images not yet learned from in it."""

    epoch: int
    images: int
    of_images: int
    error: float
    report: dict[str, float]
    """The learner's report of the step, and its measures."""
    images_per_second: float


class Loop(Resumable[C]):
    """A run under way: the learner, and the place in the data up to which it has learned.

    It sets torch's number of threads and seeds torch's global generator, because results depend on both.
    """

    def __init__(self, config: C, run: Run | None = None, sets: data.TrainTest | None = None) -> None:
        check_device(config.device)
        self.config, self.run = config, run
        sets = self.split(config, sets or data.load_train_test(config.task))
        torch.set_num_threads(config.threads)
        self.train = sets.train.to(config.device, torch.channels_last)
        self.test = sets.test.to(config.device, torch.channels_last)
        self.learner = self.make_learner(config, self.train)
        self.epoch = 0
        self.sums = EpochSums()

    @staticmethod
    @abstractmethod
    def make_learner(config: Any, train: data.ImageSet) -> Learner:
        """The learner before its first batch."""

    @staticmethod
    def split(config: Any, sets: data.TrainTest) -> data.TrainTest:
        """What is learned and what it is measured on: as much of the two halves as was asked for."""
        train = sets.train.subset(config.sample_index(len(sets.train)))
        return data.TrainTest(train, sets.test.subset(slice(config.test_samples)))

    @staticmethod
    def read_sums(content: dict[str, Any]) -> EpochSums:
        return EpochSums.from_json(content)

    def load_checkpoint(self, run: Run) -> Row:
        return self.learner.restore(run)

    def write_checkpoint(self, run: Run, position: Row) -> None:
        self.learner.save(run, position)

    def events(self) -> Iterator[Step | EpochEnd]:
        return super().events()

    def steps(self) -> Iterator[Step]:
        config, sums = self.config, self.sums
        order = data.epoch_order(len(self.train), config.seed, self.epoch)
        every = math.ceil(len(order) / config.batch_size / CURVE_POINTS)
        self.learner.start_epoch(self.epoch)
        for x, y in data.batches(self.train, config.batch_size, order=order[sums.batches * config.batch_size :]):
            start = time.perf_counter()
            wrong, report = self.learn(x, y)
            sums.seconds += time.perf_counter() - start
            sums.batches += 1
            sums.images += len(x)
            sums.wrong += wrong
            sums.add_report(report)
            sums.curve_images += len(x)
            sums.curve_wrong += wrong
            if sums.batches % every == 0:
                sums.end_curve_point()
            yield Step(
                epoch=self.epoch + 1,
                images=sums.images,
                of_images=len(order),
                error=sums.error,
                report={**report, **self.learner.measures()},
                images_per_second=sums.images / sums.seconds,
            )

    def learn(self, x: Tensor, y: Tensor) -> tuple[int, dict[str, float]]:
        """One batch, its images varied if this epoch's are."""
        if self.config.augments_in(self.epoch):
            x = find_task(self.config.task).augment(x)
        try:
            return self.learner.learn(x, y)
        except FloatingPointError as error:
            place = f"epoch {self.epoch + 1}, batch {self.sums.batches + 1}"
            raise FloatingPointError(f"{place}: {error}") from error

    def measured(self) -> Scores:
        """What an epoch's row says of the test set, if anything."""
        if not self.config.measures_in(self.epoch):
            return {}
        assert self.test.labels is not None
        return scores(self.learner.predict(self.test.images), self.test.labels)

    def finish_epoch(self) -> EpochEnd:
        sums = self.sums
        sums.end_curve_point()
        row = {
            "epoch": self.epoch + 1,
            **self.measured(),
            "train_error": round(sums.error, 4),
            **self.learner.measures(),
            **{name: total / sums.batches for name, total in sums.reports.items()},
            "seconds": round(sums.seconds, 3),
            "images_per_second": round(sums.images / sums.seconds, 1),
            "train_curve": [[images, round(error, 3)] for images, error in sums.curve],
        }
        self.epoch += 1
        self.sums = EpochSums()
        if self.run is not None:
            self.run.add_metrics(row)
            self.save()
        return EpochEnd(row)
