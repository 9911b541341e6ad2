"""What the configurations of all kinds of runs share: a name, a form as JSON, and back."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

import torchtagi
from torchtagi.experiments import data
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
    def open_ended(self) -> bool:
        """Whether a run may be continued beyond the epochs first asked for."""
        return True

    def asdict(self) -> Row:
        return dataclasses.asdict(self)

    def as_json(self) -> Row:
        """What config.json says: the configuration and the versions at work."""
        return {
            **self.asdict(),
            "versions": {
                "torchtagi": torchtagi.__version__,
                "torch": str(torch.__version__),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }

    @classmethod
    def from_json(cls, content: Row) -> Self:
        """A field with a default was added later: a run without it has the default."""
        fields = dataclasses.fields(cls)
        missing = [e.name for e in fields if e.name not in content and e.default is dataclasses.MISSING]
        if missing:
            raise RunError(f"the run's configuration does not say its {', '.join(missing)}")
        known = {entry.name: content[entry.name] for entry in fields if entry.name in content}
        for entry in fields:
            if entry.name in known and not is_of_kind(known[entry.name], str(entry.type)):
                raise RunError(f"the run's {entry.name} must be {entry.type}, got {known[entry.name]!r}")
        return cls(**known)

    def check_seed(self) -> None:
        whole("seed", self.seed, 0)
        if self.seed >= 2**63:
            raise ValueError(f"seed must be below 2**63, got {self.seed}")


@dataclass(frozen=True)
class ClassifierConfig(RunConfig):
    """Of a classifier, TAGI's or a baseline's."""

    augment: bool = True
    """Images are varied at random."""

    def check_sizes(self) -> None:
        for name in ("epochs", "batch_size", "threads"):
            whole(name, getattr(self, name), 1)
        for name in ("samples", "test_samples"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1)
        self.check_seed()

    def split(self, sets: data.TrainTest) -> data.TrainTest:
        """What is learned and what it is measured on: as much of the two halves as was asked for. Few training
        images are drawn by the seed, the same for every method."""
        train = sets.train
        if self.samples is not None:
            train = train.subset(epoch_order(len(train), self.seed, -1)[: self.samples])
        return data.TrainTest(train, sets.test.subset(slice(self.test_samples)))


def with_changes(config: type[RunConfig], given: dict[str, Any], pairs: list[str]) -> dict[str, Any]:
    """What options of their own have given, and what `name=value` texts add to it."""
    changes = parse_changes(config, pairs)
    for name in given.keys() & changes.keys():
        raise ValueError(f"--set {name}={changes[name]} and an option of its own both say what {name} is")
    return {**given, **changes}


def parse_changes(config: type[RunConfig], pairs: list[str]) -> dict[str, Any]:
    """`name=value` texts as the fields of a configuration they name, each of the field's own kind."""
    fields = {entry.name: str(entry.type) for entry in dataclasses.fields(config)}
    for name in ("task", "network", "setting"):
        del fields[name]
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in fields:
            raise ValueError(f"--set wants name=value, got {pair!r}; the names are {', '.join(fields)}")
        found[name] = parse_value(name, fields[name], text.strip())
    return found


def parse_value(name: str, kind: str, text: str) -> Any:
    options = kind.split(" | ")
    if "None" in options and text.lower() in ("none", "null"):
        return None
    try:
        if "bool" in options:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
        if "int" in options:
            return int(text)
        if "float" in options:
            return float(text)
    except (ValueError, KeyError):
        raise ValueError(f"--set {name}: {text!r} is not of kind {kind}") from None
    return text


KINDS: dict[str, Any] = {"int": int, "float": int | float, "str": str, "bool": bool, "None": type(None)}


def is_of_kind(value: Any, kind: str) -> bool:
    """Whether a value read from JSON is of the kind that a field's annotation names; kinds of their own pass."""
    options = kind.split(" | ")
    if not all(option in KINDS for option in options):
        return True
    return any(
        isinstance(value, KINDS[option]) and (option == "bool" or value is not True and value is not False)
        for option in options
    )


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
