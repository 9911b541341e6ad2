"""What the configurations of all kinds of runs share: a name, a form as JSON, and back."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

import numpy as np
import torch

import torchtagi
from torchtagi.experiments.data import TrainTest
from torchtagi.experiments.runs.folder import Row, RunError
from torchtagi.fitting import epoch_order


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run becomes; each kind of run adds its own fields."""

    task: str
    network: str
    setting: str
    epochs: int
    batch_size: int
    threads: int
    device: str = "cpu"
    seed: int = 0
    samples: int | None = None
    """Train on so many images only."""
    test_samples: int | None = None
    """Test on the first so many images only."""

    @property
    def name(self) -> str:
        """The run folder's usual name."""
        return f"{self.task}-{self.network}-{self.setting}-seed{self.seed}"

    @property
    def data(self) -> str:
        """The name of its data set."""
        return self.task

    def split(self, sets: TrainTest) -> TrainTest:
        """What is learned and what it is measured on: as much of the two halves as was asked for."""
        return TrainTest(sets.train.subset(slice(self.samples)), sets.test.subset(slice(self.test_samples)))

    @property
    def open_ended(self) -> bool:
        """Whether a run may be continued beyond the epochs first asked for."""
        return True

    def as_json(self) -> Row:
        """What config.json says: the configuration and the versions at work."""
        return {**dataclasses.asdict(self), "versions": versions()}

    @classmethod
    def from_json(cls, content: Row) -> Self:
        """A field with a default was added later: a run without it has the default."""
        fields = dataclasses.fields(cls)
        missing = [e.name for e in fields if e.name not in content and e.default is dataclasses.MISSING]
        if missing:
            raise RunError(f"the run's configuration does not say its {', '.join(missing)}")
        known = {entry.name: content[entry.name] for entry in fields if entry.name in content}
        hints = get_type_hints(cls)
        for name, value in known.items():
            if not is_of_kind(value, hints[name]):
                raise RunError(f"the run's {name} must be {cls.__dataclass_fields__[name].type}, got {value!r}")
        return cls(**known)

    def check_sizes(self, samples: int = 1) -> None:
        """`samples` is how many images training and test need at least."""
        least = {"epochs": 1, "batch_size": 1, "threads": 1, "seed": 0, "samples": samples, "test_samples": samples}
        for name, number in least.items():
            if getattr(self, name) is not None or "samples" not in name:
                whole(name, getattr(self, name), number)
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2**63, got {self.seed}")


@dataclass(frozen=True)
class ClassifierConfig(RunConfig):
    """Of a classifier, TAGI's or a baseline's."""

    augment: bool = True
    """Images are varied at random."""

    def split(self, sets: TrainTest) -> TrainTest:
        """Few training images are drawn by the seed, the same for every method."""
        train, test = sets.train, super().split(sets).test
        few = slice(None) if self.samples is None else epoch_order(len(train), self.seed, -1)[: self.samples]
        return TrainTest(train.subset(few), test)

    @abstractmethod
    def weights(self) -> int:
        """How many the network has."""

    def as_json(self) -> Row:
        with torch.device("meta"):  # draws nothing from anybody's generator
            return {**super().as_json(), "parameters": self.weights()}


IN_NAME = {"batch_size": "batch", "samples": "samples", "test_samples": "test", "noise": "noise"}


def described(setting: str, changes: dict[str, Any], base: dict[str, Any]) -> str:
    """A setting with what differs from it, for the names of runs: results of different settings never share one.
    How long a run is does not change what it is after each epoch, and is left out."""
    for name, short in IN_NAME.items():
        value = changes.get(name)
        if value is not None and value != base.get(name):
            setting += f"-{short}{value:g}" if isinstance(value, float) else f"-{short}{value}"
    augment = changes.get("augment", base.get("augment"))
    return setting + ("" if augment == base.get("augment") else "-augmented" if augment else "-plain")


def is_of_kind(value: Any, kind: Any) -> bool:
    """Whether a value read from JSON is of the kind that a field is annotated with; a float may be whole."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (get_origin(kind) or kind,)
    return type(value) in kinds or (float in kinds and type(value) is int)


def whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name.replace('_', ' ')} must be a whole number of at least {least}, got {value!r}")


def check_device(name: str) -> None:
    """Not a part of the configuration's own checks: a run made on another machine can still be looked at here."""
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device {name!r} cannot be used: {reason}") from error


@cache
def versions() -> dict[str, str]:
    """What is at work: of a checkout that runs from its own source the commit too; of an installed package its
    version says enough."""
    known = {"torchtagi": torchtagi.__version__, "torch": str(torch.__version__), "numpy": np.__version__}
    known["python"] = platform.python_version()
    package = Path(torchtagi.__file__).parent

    def git(*arguments: str) -> str:
        asked = ["git", "-C", str(package), *arguments]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    with suppress(OSError, subprocess.CalledProcessError):  # no git, no checkout
        if Path(git("rev-parse", "--show-toplevel")) / "src" / "torchtagi" == package:
            known["commit"] = git("describe", "--always", "--dirty", "--exclude=*")
    return known
