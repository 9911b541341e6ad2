"""What all baselines share: an ordinary network that learns by a loss, draws for predictions, and a checkpoint.

A method that draws networks k = 1…K from a posterior, an ensemble among them, gives each image K probabilities p_k
of a class; with p̄ their mean, the law of total variance of the indicator 1[class = c] reads

    p̄(1 − p̄)  =  mean (p_k − p̄)²  +  mean p_k(1 − p_k)         epistemic + aleatoric

A single ordinary network is the case K = 1: all of its uncertainty is aleatoric.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi import checkpoint
from torchtagi.checkpoint import CheckpointError
from torchtagi.experiments.runs.folder import Row
from torchtagi.experiments.runs.training import EpochLearner
from torchtagi.fitting import sizes_of_batches
from torchtagi.model import PREDICTION_BATCH
from torchtagi.prediction import ClassPrediction

CURVE_DRAWS = 5  # networks drawn for a learning curve's points before the last, measured in the training loop


class Baseline(EpochLearner, ABC):
    """A learner (`fitting.Learner`); a method says how it steps, what it draws and what it keeps."""

    def __init__(self, config: Any, images: int) -> None:
        """`config` is a `BaselineConfig`; `images` is how many there are to learn from: schedules and priors are
        relative to it."""
        self.config, self.images = config, images
        self.epoch_steps = len(sizes_of_batches(images, config.batch_size))
        self.steps = torch.zeros((), dtype=torch.int64)
        self.unfinished = False
        """Whether it is being trained: a network loaded from a checkpoint is taken as it is."""
        torch.manual_seed(config.seed)
        self.net = channels_last(self.build(), config.device)

    def build(self) -> nn.Module:
        net: nn.Module = self.config.build_network()
        return net

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        """Learn a batch; returns its class probabilities, up to a factor, and its mean loss before the step."""

    def drawn(self) -> AbstractContextManager[Any]:
        """While it lasts, `net` is drawn from what was learned; where there is but one network, it is that."""
        return nullcontext()

    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        """The probabilities (N, C) of `count` networks drawn."""
        self.net.eval()
        for _ in range(count):
            with self.drawn():
                probs = softmax(self.net, images)
            yield probs

    def state(self) -> dict[str, Tensor]:
        """The tensors themselves, no copies, that the next step and the next prediction depend on."""
        return {"steps": self.steps, **{f"net.{key}": value for key, value in self.net.state_dict().items()}}

    @property
    def learning_rate(self) -> float:
        """Of the next step: constant, or falling to zero along half a cosine."""
        rate: float = self.config.hyperparameters["learning_rate"]
        if self.config.hyperparameters["schedule"] == "constant":
            return rate
        done = min(int(self.steps) / (self.config.epochs * self.epoch_steps), 1.0)
        return rate * 0.5 * (1 + math.cos(math.pi * done))

    def learn(self, x: Tensor, y: Tensor) -> tuple[float, Row]:
        probs, loss = self.step(x, y)
        if not math.isfinite(loss):
            raise FloatingPointError(f"{self.config.method} has diverged: the loss is {loss}")
        self.steps += 1
        self.unfinished = int(self.steps) < self.config.epochs * self.epoch_steps
        return float((probs.argmax(1) != y).sum()), {"loss": loss}

    @torch.no_grad()
    def predict(self, images: Tensor) -> ClassPrediction:
        """Draws come from a generator of their own: the same network predicts the same, and looking at it in the
        middle of a training changes nothing."""
        count = self.config.hyperparameters.get("draws", 1)
        device = torch.device(self.config.device)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(self.config.seed)
            prediction = from_draws(self.draws(images, min(count, CURVE_DRAWS) if self.unfinished else count))
        if not bool(prediction.probs.isfinite().all()):
            raise FloatingPointError(f"{self.config.method} has diverged: it predicts probabilities not finite")
        return prediction

    # ---- as a learner in a fit (`fitting`) --------------------------------------------------------------------

    def start_epoch(self, epoch: int, left: int) -> bool:
        """Images are augmented when TAGI's are: from the second epoch on."""
        return epoch > 0

    def measures(self) -> Row:
        return {}

    def save(self, path: Path, **extra: Any) -> None:
        extra |= {"epochs": self.epochs, "images": self.images}
        checkpoint.save(path, as_module(self.state()), extra=extra)

    def restore(self, path: Path) -> Row:
        """Become what a checkpoint holds; returns what was saved with it."""
        extra = checkpoint.restore(path, as_module(self.state()))
        if extra.get("images") != self.images:
            raise CheckpointError(f"{path}: learned from {extra.get('images')} images, not {self.images}")
        self.epochs = int(extra["epochs"])
        return extra


def as_module(tensors: Mapping[str, Tensor]) -> nn.Module:
    """The tensors themselves as the buffers of a module, which a checkpoint keeps."""
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name.replace(".", "_"), tensor)
    return module


@torch.no_grad()
def softmax(net: nn.Module, images: Tensor) -> Tensor:
    """An ordinary network's class probabilities (N, C), in whatever mode the network is."""
    return torch.cat([net(x).softmax(1) for x in images.split(PREDICTION_BATCH)])


def from_draws(draws: Iterable[Tensor]) -> ClassPrediction:
    """From the probabilities (N, C) of several networks."""
    each = list(draws)
    if not each:
        raise ValueError("draws must hold at least one network's probabilities, got none")
    probs = torch.stack(each)
    wide = probs.double()
    epistemic, aleatoric = wide.var(0, correction=0).to(probs), (wide * (1 - wide)).mean(0).to(probs)
    return ClassPrediction(wide.mean(0).to(probs), epistemic, aleatoric)


def channels_last(net: nn.Module, device: str) -> nn.Module:
    """The layout in which convolutions are fastest, in training and in evaluation alike: bits depend on it."""
    moved: nn.Module = net.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved
