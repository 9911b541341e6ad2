"""What is compared or swept: data, network and length, and the configuration of each run.

An entry is a line of a comparison, named after its method; in a stream also after its batch size, `adam-batch16`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchtagi.experiments.baselines.methods import (
    BATCH_SIZE,
    FOLDS,
    METHODS,
    BaselineConfig,
    Hyperparameters,
    configure_baseline,
)
from torchtagi.experiments.classify.config import TrainConfig, configure
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.data import check_installed, find_each
from torchtagi.experiments.runs.config import whole

STREAM_BATCHES = (1, 16)
FEW, FEW_BATCH = 10_000, 16  # up to so many images baselines take TAGI's batch: those of 64 would be too few steps
JUDGES = 400  # a fifth is held out; of few images one fifth after the other, until so many have judged
COARSE = 2000  # among fewer images held out, errors are too coarse a judge
USUAL_EPOCHS, MOST_EPOCHS, USUAL_IMAGES = 5, 100, 30_000


def usual_epochs(samples: int | None) -> int:
    """As many as show 30,000 images, but 5 at least and 100 at most."""
    if samples is None:
        return USUAL_EPOCHS
    return min(MOST_EPOCHS, max(USUAL_EPOCHS, math.ceil(USUAL_IMAGES / samples)))


def method_of(entry: str) -> str:
    return entry.partition("-batch")[0]


@dataclass(frozen=True)
class Study:
    """What all runs have in common; only a study with the same values can go on in the same folder."""

    task: str
    network: str
    epochs: int
    samples: int | None = None
    """Learn from so many images only, drawn by the seed, the same for every method."""
    test_samples: int | None = None
    stream: bool = False
    tune_samples: int = 20_000
    """A tuning run learns and holds out images among so many."""
    tune_epochs: int = USUAL_EPOCHS

    def __post_init__(self) -> None:
        find_task(self.task).network(self.network)
        for name in ("epochs", "tune_epochs", "samples", "test_samples"):
            if getattr(self, name) is not None or "epochs" in name:
                whole(name, getattr(self, name), 1)
        whole("tune_samples", self.tune_samples, 10)
        if self.stream and self.epochs != 1:
            raise ValueError(f"a stream is seen once: epochs must be 1, got {self.epochs}")

    @property
    def name(self) -> str:
        """For folders: `mnist-30ep-n1000`, `cifar10-3conv-bn-10ep`, `mnist-stream`."""
        network = "" if self.network == find_task(self.task).default_network else f"-{self.network}"
        size = "" if self.samples is None else f"-n{self.samples}"
        return f"{self.task}{network}-{'stream' if self.stream else f'{self.epochs}ep'}{size}"

    def entries(self, methods: Sequence[str]) -> list[str]:
        chosen = find_each("method", methods, {"tagi": None, **METHODS})
        for name, method in chosen.items():
            check_installed(name, method.package if method else None)
        return [f"{name}-batch{size}" for name in chosen for size in STREAM_BATCHES] if self.stream else [*chosen]

    def batch_size(self, entry: str) -> int:
        """Images a step: in a stream the entry's own."""
        if self.stream:
            return int(entry.partition("-batch")[2])
        if method_of(entry) == "tagi":
            return configure(self.task, self.network).batch_size
        return FEW_BATCH if self.samples is not None and self.samples <= FEW else BATCH_SIZE

    def config(
        self, entry: str, seed: int, threads: int, hyperparameters: Hyperparameters | None = None, **changes: Any
    ) -> TrainConfig | BaselineConfig:
        """The run of an entry for one seed, which draws the images too; TAGI has no hyperparameters to choose."""
        values: dict[str, Any] = {
            "seed": seed,
            "threads": threads,
            "epochs": self.epochs,
            "samples": self.samples,
            "test_samples": self.test_samples,
            "batch_size": self.batch_size(entry),
            **changes,
        }
        if method_of(entry) == "tagi":
            return configure(self.task, self.network, **values)
        return configure_baseline(self.task, method_of(entry), self.network, hyperparameters, **values)

    @property
    def tuning_images(self) -> int:
        """That tuning learns and holds out."""
        return self.tune_samples if self.samples is None else min(self.samples, self.tune_samples)

    @property
    def held_out(self) -> int:
        return max(1, self.tuning_images // FOLDS)

    def folds(self, least: int = 1) -> int:
        """By how many runs a cell of a grid is judged."""
        return min(max(least, math.ceil(JUDGES / self.held_out)), FOLDS, self.tuning_images // self.held_out)

    @property
    def judged_by(self) -> tuple[str, str]:
        """The score that decides between cells, and the one that decides between equals."""
        return ("nll", "error") if self.folds() * self.held_out < COARSE else ("error", "nll")

    def tuning_config(
        self, entry: str, threads: int, hyperparameters: Hyperparameters, fold: int
    ) -> TrainConfig | BaselineConfig:
        """A run on a part of the images that seed 0 learns, measured at its end on a fifth of them held out."""
        changes = {"epochs": self.tune_epochs, "samples": self.tuning_images, "fold": fold, "test_samples": None}
        return self.config(entry, 0, threads, hyperparameters, **changes)
