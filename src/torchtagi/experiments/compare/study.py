"""What is compared: methods, data and seeds, and the configuration of each run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchtagi.experiments.baselines import RivalConfig, configure_rival, find_method
from torchtagi.experiments.baselines.methods import Hyperparameters
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.compare.running import AnyConfig
from torchtagi.experiments.runs.config import whole
from torchtagi.experiments.runs.folder import Row

STREAM_BATCHES = (1, 16)
FEW, FEW_BATCH = 10_000, 16  # up to so many images rivals take TAGI's batch: those of 64 would be too few steps
HELD_OUT = 10_000  # of a large training set; a fifth of a small one
FOLDS, JUDGES = 5, 400  # of few images each fifth is held out in turn, until so many have judged
FINAL_SEEDS, ENOUGH_RUNS = (1, 2), 3  # where fewer runs of seed 0 would decide, these too judge the finalists
COARSE = 2000  # among fewer images held out, errors are too coarse a judge of the cells
TUNING_DRAWS = 10
CURVE_POINTS, FEW_CURVE_POINTS = 10, 5  # test errors at most: with few images, testing takes longer than learning
USUAL_EPOCHS, MOST_EPOCHS, USUAL_IMAGES = 5, 100, 30_000
TARGETS: Mapping[str, float] = {"mnist": 2.0, "cifar10": 40.0}
"""The test error, in %, that a good method reaches within a few epochs: how long does it take?"""


def usual_epochs(samples: int | None) -> int:
    """As many as show 30,000 images, but 5 at least and 100 at most."""
    if samples is None:
        return USUAL_EPOCHS
    return min(MOST_EPOCHS, max(USUAL_EPOCHS, math.ceil(USUAL_IMAGES / samples)))


@dataclass(frozen=True)
class Entry:
    """One line of the comparison: a method, in a stream with a batch size of its own."""

    method: str
    batch_size: int | None = None

    @property
    def name(self) -> str:
        return self.method if self.batch_size is None else f"{self.method}-batch{self.batch_size}"


@dataclass(frozen=True)
class Study:
    """A comparison; two with the same values here can share a folder, whatever their methods and seeds."""

    task: str
    network: str
    epochs: int
    samples: int | None
    test_samples: int | None
    stream: bool
    augment: bool
    target_error: float
    tune_samples: int
    """A tuning run learns and holds out images among so many."""
    tune_epochs: int

    def __post_init__(self) -> None:
        find_task(self.task).network(self.network)
        for name in ("epochs", "tune_epochs"):
            whole(name, getattr(self, name), 1)
        for name in ("samples", "test_samples"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1)
        whole("tune_samples", self.tune_samples, 10)
        if self.stream and self.epochs != 1:
            raise ValueError(f"a stream is seen once: epochs must be 1, got {self.epochs}")
        if not 0 < self.target_error < 100:
            raise ValueError(f"target error must lie between 0 and 100 %, got {self.target_error}")

    @property
    def name(self) -> str:
        """The folder's usual name."""
        size = "" if self.samples is None else f"-samples{self.samples}"
        length = "-stream" if self.stream else f"-epochs{self.epochs}"
        return f"compare-{self.task}-{self.network}{length}{size}"

    @property
    def shared(self) -> dict[str, Any]:
        """What every run has in common."""
        values: dict[str, Any] = {} if self.augment else {"augment": False}
        if self.samples is not None:
            values["draw_samples"] = True
        return values

    def batch_size(self, entry: Entry) -> int:
        """Images a step: in a stream the entry's own."""
        if entry.batch_size is not None:
            return entry.batch_size
        if entry.method == "tagi":
            return configure(self.task, self.network).batch_size
        return (
            FEW_BATCH if self.samples is not None and self.samples <= FEW else find_method(entry.method).batch_size
        )

    def entries(self, methods: list[str]) -> list[Entry]:
        for method in methods:
            if method != "tagi":
                find_method(method)
        repeated = {method for method in methods if methods.count(method) > 1}
        if repeated:
            raise ValueError(f"method {min(repeated)} is named twice")
        if not methods:
            raise ValueError("name at least one method")
        batches = STREAM_BATCHES if self.stream else (None,)
        return [Entry(method, batch) for method in methods for batch in batches]

    def config(self, entry: Entry, seed: int, hyperparameters: Hyperparameters, threads: int) -> AnyConfig:
        """The run of an entry for one seed, which draws the images too; TAGI has no hyperparameters to choose."""
        values = {
            **self.shared,
            **{"seed": seed, "threads": threads, "epochs": self.epochs, "samples": self.samples},
            **{"test_samples": self.test_samples, "batch_size": self.batch_size(entry)},
            "measure_every": math.ceil(self.epochs / (CURVE_POINTS if self.samples is None else FEW_CURVE_POINTS)),
        }
        if entry.method == "tagi":
            return configure(self.task, self.network, **values)
        return configure_rival(self.task, entry.method, self.network, hyperparameters, **values)

    @property
    def tuning_images(self) -> int:
        """That tuning learns and holds out."""
        return self.tune_samples if self.samples is None else min(self.samples, self.tune_samples)

    @property
    def held_out(self) -> int:
        return max(1, min(HELD_OUT, self.tuning_images // 5))

    @property
    def folds(self) -> int:
        return min(FOLDS, math.ceil(JUDGES / self.held_out), self.tuning_images // self.held_out)

    @property
    def final_seeds(self) -> tuple[int, ...]:
        """Further seeds for the cells between which tuning decides."""
        return FINAL_SEEDS if self.folds < ENOUGH_RUNS else ()

    @property
    def judged_by(self) -> str:
        """What decides between cells first."""
        return "nll" if self.folds * self.held_out < COARSE else "error"

    def tuning_config(
        self, entry: Entry, hyperparameters: Hyperparameters, threads: int, fold: int = 0, seed: int = 0
    ) -> RivalConfig:
        """A run on a part of the images that the seed learns, measured on some held out of it."""
        values = {
            **self.shared,
            **{"seed": seed, "threads": threads, "epochs": self.tune_epochs, "samples": self.tuning_images},
            **{"held_out": self.held_out, "fold": fold, "batch_size": self.batch_size(entry)},
            "measure_every": self.tune_epochs,  # only the end counts
        }
        if find_method(entry.method).draws_networks:
            hyperparameters = {**hyperparameters, "curve_draws": TUNING_DRAWS}
        return configure_rival(self.task, entry.method, self.network, hyperparameters, **values)

    def as_json(self) -> Row:
        return dataclasses.asdict(self)
