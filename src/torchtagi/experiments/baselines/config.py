"""What a rival's training was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchtagi.experiments.baselines.methods import Hyperparameters, find_method
from torchtagi.experiments.classify.config import NOT_IN_SETTING, configure, describe_change
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.runs.config import ClassifierConfig, whole
from torchtagi.experiments.runs.folder import Row


@dataclass(frozen=True)
class RivalConfig(ClassifierConfig):
    """Everything that decides what a rival's run becomes; `configure_rival` fills it in."""

    method: str
    hyperparameters: Hyperparameters
    held_out: int
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

    @property
    def open_ended(self) -> bool:
        """A schedule that ends at zero ends with the epochs it was made for."""
        return self.hyperparameters["schedule"] == "constant"

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

    def count(self, name: str) -> int:
        """A hyperparameter that is a whole number."""
        return int(self.hyperparameters[name])

    def network_of(self) -> torch.nn.Module:
        """The architecture as an ordinary torch network, with the classes as its outputs."""
        task = find_task(self.task)
        return task.network(self.network).build(len(task.classes), layers=torch.nn)

    def as_json(self) -> Row:
        with torch.random.fork_rng(devices=[]):
            weights = sum(parameter.numel() for parameter in self.network_of().parameters())
        return {**super().as_json(), "parameters": weights * int(self.hyperparameters.get("members", 1))}


def configure_rival(
    task: str,
    method: str,
    network: str | None = None,
    hyperparameters: Hyperparameters | None = None,
    **changes: Any,
) -> RivalConfig:
    """A method's defaults with `changes`. The images, their variation and their number are TAGI's own."""
    kind = find_method(method)
    ours = configure(task, network)
    base: dict[str, Any] = {
        "task": task,
        "network": ours.network,
        "method": method,
        "seed": 0,
        "epochs": ours.epochs,
        "batch_size": kind.batch_size,
        "hyperparameters": kind.hyperparameters(hyperparameters or {}),
        "augment": ours.augment,
        "augment_from": ours.augment_from,
        "samples": None,
        "draw_samples": False,
        "held_out": 0,
        "fold": 0,
        "test_samples": None,
        "measure_every": 1,
        "device": "cpu",
        "threads": ours.threads,
    }
    unknown = [name for name in changes if name not in base]
    if unknown:
        raise TypeError(f"configure_rival() has no setting {', '.join(unknown)}")
    values = {**base, **changes}
    setting = method + kind.describe(values["hyperparameters"])
    for name in changes:
        if name not in (*NOT_IN_SETTING, "method", "hyperparameters") and values[name] != base[name]:
            setting += describe_change(name, values[name])
    return RivalConfig(setting=setting, **values)
