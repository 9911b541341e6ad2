"""What a rival's training was asked for."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import torchtagi
from torchtagi.baselines.methods import Hyperparameters, find_method
from torchtagi.config import NOT_IN_SETTING, SHORT, configure, whole
from torchtagi.runs import Row, RunError
from torchtagi.tasks import find_task


@dataclass(frozen=True)
class RivalConfig:
    """Everything that decides what a rival's run becomes; `configure_rival` fills it in."""

    task: str
    network: str
    method: str
    setting: str
    seed: int
    epochs: int
    batch_size: int
    hyperparameters: Hyperparameters
    augment: bool
    augment_from: int
    samples: int | None
    """Of the first so many training images."""
    held_out: int
    """The last so many of them are not learned, but measured on in place of the test set: for tuning."""
    test_samples: int | None
    device: str
    threads: int

    def __post_init__(self) -> None:
        find_task(self.task).network(self.network)
        if not isinstance(self.hyperparameters, dict):
            raise ValueError(f"hyperparameters must be an object, got {self.hyperparameters!r}")
        complete = find_method(self.method).hyperparameters(self.hyperparameters)
        if complete.keys() != self.hyperparameters.keys():
            raise ValueError(f"{self.method}'s {min(complete.keys() - self.hyperparameters.keys())} is missing")
        for name in ("epochs", "batch_size", "threads", "augment_from"):
            whole(name, getattr(self, name), 1)
        for name in ("samples", "test_samples"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1)
        for name in ("seed", "held_out"):
            whole(name, getattr(self, name), 0)
        if self.samples is not None and self.held_out >= self.samples:
            raise ValueError(f"held out must leave some of the {self.samples} images, got {self.held_out}")

    @property
    def name(self) -> str:
        """The run folder's usual name."""
        return f"{self.task}-{self.network}-{self.setting}-seed{self.seed}"

    @property
    def open_ended(self) -> bool:
        """A schedule that ends at zero ends with the epochs it was made for."""
        return self.hyperparameters["schedule"] == "constant"

    def number(self, name: str) -> float:
        """A hyperparameter that is a number."""
        return float(self.hyperparameters[name])

    def count(self, name: str) -> int:
        """A hyperparameter that is a whole number."""
        return int(self.hyperparameters[name])

    def augments_in(self, epoch: int) -> bool:
        """Whether images are varied in the epoch of that number, counted from 0."""
        return self.augment and epoch + 1 >= self.augment_from

    def network_of(self) -> torch.nn.Module:
        """The architecture as an ordinary torch network, with the classes as its outputs."""
        task = find_task(self.task)
        return task.network(self.network).build(len(task.classes), layers=torch.nn)

    def asdict(self) -> Row:
        return dataclasses.asdict(self)

    def as_json(self) -> Row:
        with torch.random.fork_rng(devices=[]):
            weights = sum(parameter.numel() for parameter in self.network_of().parameters())
        return {
            **self.asdict(),
            "parameters": weights * int(self.hyperparameters.get("members", 1)),
            "versions": {
                "torchtagi": torchtagi.__version__,
                "torch": str(torch.__version__),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }

    @classmethod
    def from_json(cls, content: Row) -> RivalConfig:
        names = [entry.name for entry in dataclasses.fields(cls)]
        missing = [name for name in names if name not in content]
        if missing:
            raise RunError(f"the run's configuration does not say its {', '.join(missing)}")
        try:
            return cls(**{name: content[name] for name in names})
        except TypeError as error:
            raise RunError(f"the run's configuration holds a value of the wrong kind: {error}") from error


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
        "held_out": 0,
        "test_samples": None,
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
            short = SHORT.get(name, name.replace("_", ""))
            setting += f"-no{name}" if values[name] is False else f"-{short}{values[name]}"
    return RivalConfig(setting=setting, **values)
