"""What a baseline's training was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchtagi.experiments.baselines.methods import Hyperparameters, find_method
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.runs.config import ClassifierConfig, whole
from torchtagi.experiments.runs.folder import Row

BATCH_SIZE = 64


@dataclass(frozen=True)
class BaselineConfig(ClassifierConfig):
    """Everything that decides what a baseline's run becomes; `configure_baseline` fills it in."""

    method: str
    hyperparameters: Hyperparameters
    held_out: int = 0
    """So many of the training images are not learned, but measured on in place of the test set: for tuning. They
    are the last of the `samples`."""
    fold: int = 0
    """For cross-validation: the images held out are this many times `held_out` before the last."""

    def __post_init__(self) -> None:
        find_task(self.task).network(self.network)
        if not isinstance(self.hyperparameters, dict):
            raise ValueError(f"hyperparameters must be an object, got {self.hyperparameters!r}")
        complete = find_method(self.method).hyperparameters(self.hyperparameters)
        if complete.keys() != self.hyperparameters.keys():
            raise ValueError(f"{self.method}'s {min(complete.keys() - self.hyperparameters.keys())} is missing")
        self.check_sizes()
        whole("held_out", self.held_out, 0)
        whole("fold", self.fold, 0)
        if self.samples is not None:
            self.held_out_of(self.samples)

    def held_out_of(self, images: int) -> range:
        """Which of so many images are held out."""
        end = images - self.fold * self.held_out
        if self.held_out >= images or end < self.held_out:
            fold = f" in fold {self.fold}" if self.fold else ""
            raise ValueError(f"held out must leave some of the {images} images, got {self.held_out}{fold}")
        return range(end - self.held_out, end)

    def number(self, name: str) -> float:
        """A hyperparameter that is a number."""
        return float(self.hyperparameters[name])

    def count(self, name: str, otherwise: int = 1) -> int:
        """A hyperparameter that is a whole number; `otherwise` where the method does not have it."""
        return int(self.hyperparameters.get(name, otherwise))

    def build_network(self) -> torch.nn.Module:
        """The architecture as an ordinary torch network, with the classes as its outputs."""
        task = find_task(self.task)
        return task.network(self.network).build(len(task.classes), layers=torch.nn)

    def as_json(self) -> Row:
        with torch.random.fork_rng(devices=[]):
            weights = sum(parameter.numel() for parameter in self.build_network().parameters())
        return {**super().as_json(), "parameters": weights * self.count("members")}


def configure_baseline(
    task: str,
    method: str,
    network: str | None = None,
    hyperparameters: Hyperparameters | None = None,
    **changes: Any,
) -> BaselineConfig:
    """A method's defaults with `changes`. The images, their augmentation and their number are TAGI's own."""
    kind, tagi = find_method(method), configure(task, network)
    values = kind.hyperparameters(hyperparameters or {})
    base: dict[str, Any] = {
        "network": tagi.network,
        "setting": "-".join(filter(None, (method, kind.describe(values)))),
        "seed": 0,
        "epochs": tagi.epochs,
        "batch_size": BATCH_SIZE,
        "augment": tagi.augment,
        "augment_from": tagi.augment_from,
        "samples": None,
        "test_samples": None,
        "device": "cpu",
        "threads": tagi.threads,
    }
    return BaselineConfig(task=task, method=method, hyperparameters=values, **{**base, **changes})
