"""What all rivals share: an ordinary network that learns by a loss, draws for predictions, and a checkpoint."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from torchtagi.checkpoint import CheckpointError
from torchtagi.experiments.baselines.config import RivalConfig
from torchtagi.experiments.classify.prediction import channels_last, from_draws
from torchtagi.experiments.runs.folder import Row, Run
from torchtagi.prediction import ClassPrediction


class Rival(ABC):
    """A learner (see `classify.learner`); a method says how it steps, what it draws and what it keeps."""

    def __init__(self, config: RivalConfig, images: int) -> None:
        """`images` is how many there are to learn from: schedules and priors are relative to it."""
        self.config, self.images = config, images
        self.curve = False
        """Whether predictions are points of a learning curve, for which few draws do; not of a network loaded."""
        torch.manual_seed(config.seed)

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        """Learn a batch; returns its class probabilities, up to a factor, and its mean loss before the step."""

    @abstractmethod
    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        """The probabilities (N, C) of `count` networks drawn from what was learned."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Everything that the next step and the next prediction depend on."""

    @abstractmethod
    def load(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`; KeyError or ValueError if they are another network's."""

    def start_epoch(self, epoch: int) -> None:
        self.curve = True

    def learn(self, x: Tensor, y: Tensor) -> tuple[int, dict[str, float]]:
        probs, loss = self.step(x, y)
        if not math.isfinite(loss):
            raise FloatingPointError(f"{self.config.method} has diverged: the loss is {loss}")
        return int((probs.argmax(1) != y).sum()), {"loss": loss}

    @torch.no_grad()
    def predict(self, images: Tensor) -> ClassPrediction:
        """Draws come from a generator of their own: the same network predicts the same, and looking at it in the
        middle of a training changes nothing."""
        device = torch.device(self.config.device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.config.seed)
            prediction = from_draws(self.draws(images, self.draw_count))
        if not bool(prediction.probs.isfinite().all()):
            raise FloatingPointError(f"{self.config.method} has diverged: it predicts probabilities not finite")
        return prediction

    @property
    def draw_count(self) -> int:
        name = "curve_draws" if self.curve else "draws"
        return self.config.count(name) if name in self.config.hyperparameters else 1

    def measures(self) -> dict[str, float]:
        return {}

    def save(self, run: Run, position: Row) -> None:
        run.save_tensors({**self.tensors(), "images": torch.tensor(self.images)}, position)

    def restore(self, run: Run) -> Row:
        tensors, position = run.read_tensors()
        try:
            if int(tensors["images"]) != self.images:
                raise ValueError(f"it learned from {int(tensors['images'])} images, not {self.images}")
            self.load(tensors)
        except (KeyError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise CheckpointError(
                f"{run.checkpoint}: is not one of this {self.config.method} run ({reason})"
            ) from error
        return position


def ordinary_network(config: RivalConfig) -> nn.Module:
    return channels_last(config.network_of(), config.device)


def module_tensors(name: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.{key}": value for key, value in module.state_dict().items()}


def load_module(name: str, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    prefix = f"{name}."
    module.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})


def list_tensors(name: str, values: list[Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{index}": value for index, value in enumerate(values)}


def load_list(name: str, values: list[Tensor], tensors: dict[str, Tensor]) -> None:
    """Into the existing tensors, whose layout in memory stays."""
    for index, value in enumerate(values):
        found = tensors[f"{name}.{index}"]
        if found.shape != value.shape:
            raise ValueError(f"{name}.{index} has shape {tuple(found.shape)}, not {tuple(value.shape)}")
        value.copy_(found)


def scheduled(config: RivalConfig, images: int, step: int) -> float:
    """The learning rate of a step, counted from 0: constant, or falling to zero along half a cosine."""
    rate = config.number("learning_rate")
    if config.hyperparameters["schedule"] == "constant":
        return rate
    total = config.epochs * math.ceil(images / config.batch_size)
    return rate * 0.5 * (1 + math.cos(math.pi * min(step / total, 1.0)))
