"""A run that can be stopped at any moment and gone on with: what the loops of classifiers and GANs share.

    for event in training.events():      # after each batch, and after each epoch
        ...                              # stop whenever you like; training.save() keeps the place

A run continued from any of its checkpoints ends with the same bits as one that was never interrupted (on a CPU,
with the same number of threads): the order of the data depends on seed and epoch alone, and the checkpoint holds
whatever else the next step depends on.
"""

from __future__ import annotations

import base64
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from torchtagi.experiments import data
from torchtagi.checkpoint import CheckpointError
from torchtagi.experiments.runs.config import RunConfig
from torchtagi.experiments.runs.folder import Row, Run, RunError

C = TypeVar("C", bound=RunConfig)


@dataclass(frozen=True)
class EpochEnd:
    """After an epoch: the row that went into metrics.jsonl."""

    row: Row


class Resumable(ABC, Generic[C]):
    """The place in the data up to which a run has come: `epoch` whole epochs, and `sums` of the unfinished one."""

    config: C
    run: Run | None
    epoch: int
    sums: Any

    @abstractmethod
    def __init__(self, config: C, run: Run | None = None, sets: data.TrainTest | None = None) -> None: ...

    @staticmethod
    @abstractmethod
    def read_config(content: Row) -> Any:
        """The configuration that config.json holds."""

    @staticmethod
    @abstractmethod
    def read_sums(content: dict[str, Any]) -> Any:
        """The sums that a checkpoint holds."""

    @abstractmethod
    def load_checkpoint(self, run: Run) -> Row:
        """Become what the run's checkpoint holds; returns the position."""

    @abstractmethod
    def write_checkpoint(self, run: Run, position: Row) -> None: ...

    @abstractmethod
    def steps(self) -> Iterator[Any]:
        """The rest of this epoch."""

    @abstractmethod
    def finish_epoch(self) -> EpochEnd: ...

    @classmethod
    def resume(cls, run: Run, config: C | None = None, sets: data.TrainTest | None = None) -> Self:
        """Go on where `run` was saved, from the beginning if it was killed before its first checkpoint.

        `config` may ask for more epochs than before, if it is open-ended, and for nothing else.
        """
        before: C = cls.read_config(run.config)
        config = config or before
        asked = config.asdict()
        for name, value in before.asdict().items():
            if asked[name] != value and not (name == "epochs" and before.open_ended):
                raise RunError(f"{run.folder} was started with {name.replace('_', ' ')} {value}, not {asked[name]}")
        run.clear_leftovers()
        training = cls(config, run, sets)
        if run.checkpoint.is_file():
            training.restore(run)
        if config.epochs < training.epoch:
            raise RunError(f"{run.folder} has seen {training.epoch} epochs already, more than {config.epochs}")
        run.keep_metrics(training.epoch)
        if config != before:
            training.run = Run(run.folder, {**run.config, "epochs": config.epochs})
            training.run.write_json("config.json", training.run.config)
        return training

    def restore(self, run: Run) -> None:
        position = self.load_checkpoint(run)
        try:
            self.epoch = int(position["epoch"])
            self.sums = self.read_sums(position["sums"])
            set_random_state(position["random"], self.config.device)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{run.checkpoint}: its position in the training cannot be read") from error

    def save(self) -> None:
        """Write a checkpoint of this very moment."""
        if self.run is None:
            raise RunError("this training has no run folder to save to")
        position = {
            "epoch": self.epoch,
            "sums": dataclasses.asdict(self.sums),
            "random": random_state(self.config.device),
        }
        self.write_checkpoint(self.run, position)

    @property
    def done(self) -> bool:
        return self.epoch >= self.config.epochs

    def events(self) -> Iterator[Any]:
        """Go on to the end; each event comes at a moment that can be saved."""
        while not self.done:
            yield from self.steps()
            yield self.finish_epoch()


def prepared(images: data.ImageSet, limit: int | None, device: str) -> data.ImageSet:
    if limit is not None:
        images = images.subset(slice(limit))
    return images.to(device, torch.channels_last)


def random_state(device: str) -> dict[str, str]:
    states = {"cpu": torch.get_rng_state()}
    if device.startswith("cuda"):
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: base64.b64encode(state.numpy().tobytes()).decode() for name, state in states.items()}


def set_random_state(states: dict[str, str], device: str) -> None:
    def decode(text: str) -> Tensor:
        return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)

    torch.set_rng_state(decode(states["cpu"]))
    if device.startswith("cuda"):
        torch.cuda.set_rng_state(decode(states["cuda"]), device)
