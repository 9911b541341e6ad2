"""What a baseline's training was asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from torchtagi.experiments.baselines.methods import METHODS, Hyperparameters
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.data import ImageSet, TrainTest, find_named
from torchtagi.experiments.runs.config import ClassifierConfig
from torchtagi.experiments.runs.folder import Row

BATCH_SIZE = 64
FOLDS = 5


@dataclass(frozen=True)
class BaselineConfig(ClassifierConfig):
    """Everything that decides what a baseline's run becomes; `configure_baseline` fills it in."""

    method: str = "adam"
    hyperparameters: Hyperparameters = field(default_factory=dict)
    fold: int | None = None
    """For tuning: a fifth of the training images is not learned, but measured on in place of the test set; the last
    fifth is fold 0, the one before it fold 1, …"""

    def __post_init__(self) -> None:
        find_task(self.task).network(self.network)
        complete = find_named("method", self.method, METHODS).hyperparameters(self.hyperparameters)
        if complete.keys() != self.hyperparameters.keys():
            raise ValueError(f"{self.method}'s {min(complete.keys() - self.hyperparameters.keys())} is missing")
        self.check_sizes()
        if self.fold is not None and not 0 <= self.fold < FOLDS:
            raise ValueError(f"fold must lie between 0 and {FOLDS - 1}, got {self.fold}")

    @property
    def open_ended(self) -> bool:
        """A schedule that ends at zero ends with the epochs it was made for."""
        return bool(self.hyperparameters["schedule"] == "constant")

    def split(self, sets: TrainTest) -> TrainTest:
        """A fold that is held out takes the test set's place."""
        sets = super().split(sets)
        if self.fold is None:
            return sets
        size = max(1, len(sets.train) // FOLDS)
        end = len(sets.train) - self.fold * size
        if end < size or size == len(sets.train):
            raise ValueError(
                f"fold {self.fold} of {len(sets.train)} images leaves none to learn, or none to hold out"
            )
        held_out = torch.zeros(len(sets.train), dtype=torch.bool)
        held_out[end - size : end] = True
        return TrainTest(sets.train.subset(~held_out), sets.train.subset(held_out))

    def build(self, train: ImageSet) -> Any:
        """The baseline before its first step."""
        from torchtagi.experiments.baselines import LEARNERS  # they import this module

        return LEARNERS[self.method](self, len(train))

    def build_network(self) -> torch.nn.Module:
        """The architecture as an ordinary torch network, with the classes as its outputs."""
        task = find_task(self.task)
        return task.network(self.network).build(len(task.classes), layers=torch.nn)

    def as_json(self) -> Row:
        with torch.device("meta"):  # draws nothing from anybody's generator
            weights = sum(parameter.numel() for parameter in self.build_network().parameters())
        return {**super().as_json(), "parameters": weights * self.hyperparameters.get("members", 1)}


def configure_baseline(
    task: str,
    method: str,
    network: str | None = None,
    hyperparameters: Hyperparameters | None = None,
    **changes: Any,
) -> BaselineConfig:
    """A method's defaults with `changes`. The images, their augmentation and their number are TAGI's own."""
    kind, tagi = find_named("method", method, METHODS), configure(task, network)
    values = kind.hyperparameters(hyperparameters or {})
    setting = "-".join(filter(None, (method, kind.describe(values))))
    own = {"setting": setting, "batch_size": BATCH_SIZE, "method": method, "hyperparameters": values}
    shared = {name: getattr(tagi, name) for name in ("task", "network", "epochs", "augment", "threads")}
    return BaselineConfig(**{**shared, **own, **changes})
