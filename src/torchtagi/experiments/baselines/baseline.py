"""What all baselines share: an ordinary network that learns by a loss, draws for predictions, and a checkpoint."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from torchtagi.checkpoint import CheckpointError
from torchtagi.experiments.baselines.config import BaselineConfig
from torchtagi.experiments.classify.prediction import channels_last, from_draws
from torchtagi.experiments.runs.folder import Row, Run
from torchtagi.likelihoods import ClassPrediction

CURVE_DRAWS = 5  # networks drawn for a learning curve's points before the last, measured in the training loop


class Baseline(ABC):
    """A learner (see `classify.learner`); a method says how it steps, what it draws and what it keeps."""

    def __init__(self, config: BaselineConfig, images: int) -> None:
        """`images` is how many there are to learn from: schedules and priors are relative to it."""
        self.config, self.images = config, images
        self.epoch_steps = math.ceil(images / config.batch_size)
        self.steps = torch.zeros((), dtype=torch.int64)
        self.unfinished = False
        """Whether it is being trained: a network loaded from a checkpoint is taken as it is."""
        torch.manual_seed(config.seed)

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        """Learn a batch; returns its class probabilities, up to a factor, and its mean loss before the step."""

    @abstractmethod
    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        """The probabilities (N, C) of `count` networks drawn from what was learned."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The tensors themselves, no copies, that the next step and the next prediction depend on."""

    @property
    def learning_rate(self) -> float:
        """Of the next step: constant, or falling to zero along half a cosine."""
        rate = self.config.number("learning_rate")
        if self.config.hyperparameters["schedule"] == "constant":
            return rate
        done = min(int(self.steps) / (self.config.epochs * self.epoch_steps), 1.0)
        return rate * 0.5 * (1 + math.cos(math.pi * done))

    def learn(self, x: Tensor, y: Tensor) -> tuple[int, dict[str, float]]:
        probs, loss = self.step(x, y)
        if not math.isfinite(loss):
            raise FloatingPointError(f"{self.config.method} has diverged: the loss is {loss}")
        self.steps += 1
        self.unfinished = int(self.steps) < self.config.epochs * self.epoch_steps
        return int((probs.argmax(1) != y).sum()), {"loss": loss}

    @torch.no_grad()
    def predict(self, images: Tensor) -> ClassPrediction:
        """Draws come from a generator of their own: the same network predicts the same, and looking at it in the
        middle of a training changes nothing."""
        count = self.config.count("draws")
        device = torch.device(self.config.device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.config.seed)
            prediction = from_draws(self.draws(images, min(count, CURVE_DRAWS) if self.unfinished else count))
        if not bool(prediction.probs.isfinite().all()):
            raise FloatingPointError(f"{self.config.method} has diverged: it predicts probabilities not finite")
        return prediction

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return {"steps": self.steps, "images": torch.tensor(self.images), **self.state()}

    @torch.no_grad()
    def load(self, tensors: dict[str, Tensor]) -> None:
        """Copy a checkpoint into the tensors that are there, whose layout in memory stays: bits depend on it."""
        own = self.tensors()
        strange = sorted(own.keys() ^ tensors.keys())
        if strange:
            raise ValueError(f"{strange[0]} is {'missing' if strange[0] in own else 'unknown'}")
        if int(tensors["images"]) != self.images:
            raise ValueError(f"it learned from {int(tensors['images'])} images, not {self.images}")
        for name, value in own.items():
            if value.shape != tensors[name].shape:
                raise ValueError(f"{name} has shape {tuple(tensors[name].shape)}, not {tuple(value.shape)}")
            value.copy_(tensors[name])

    def start_epoch(self, epoch: int) -> None:  # noqa: B027
        """Nothing: `steps` says where in the training it is."""

    def measures(self) -> dict[str, float]:
        return {}

    def save(self, run: Run, position: Row) -> None:
        run.save_tensors(self.tensors(), position)

    def restore(self, run: Run) -> Row:
        tensors, position = run.read_tensors()
        try:
            self.load(tensors)
        except ValueError as error:
            method = self.config.method
            raise CheckpointError(f"{run.checkpoint}: is not one of this {method} run ({error})") from error
        return position


def ordinary_network(config: BaselineConfig) -> nn.Module:
    return channels_last(config.build_network(), config.device)


def module_tensors(module: nn.Module) -> dict[str, Tensor]:
    return {f"net.{key}": value for key, value in module.state_dict().items()}
