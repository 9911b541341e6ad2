"""What training, measuring and drawing need of a game, whoever plays it: inference or backprop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.experiments.gan.config import GanConfig
from torchtagi.experiments.gan.game import StepReport, with_grain
from torchtagi.experiments.gan.grouping import Grouping
from torchtagi.experiments.gan.heads import likeliest_classes
from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.gan.players import Players, Verdict
from torchtagi.gaussian import Gaussian
from torchtagi.inference.average import Average

LOOK_BATCH = 500  # fast enough, and small enough for a few hundred MB


class Engine(ABC):
    """A game that can be played, saved and looked at.

    `memory` holds whatever else the next step depends on, besides the players: noises, or an optimiser's moments.
    """

    config: GanConfig
    players: Players
    memory: nn.Module
    space: LatentSpace
    grouping: Grouping | None
    """The classes of real images, if Qnet is to observe any; it is in `memory`, too."""
    average: Average | None = None
    """The mean of the last players, who are then looked at; those who play know nothing of it."""

    def begin_average(self) -> None:
        """Follow the players from now on, if the configuration says so."""
        self.average = Average(self.players, self.config.average) if self.config.average else None

    @property
    def shown(self) -> Players:
        """The players who draw and are asked when somebody looks at the game."""
        if self.average is None:
            return self.players
        assert isinstance(self.average.net, Players)
        return self.average.net

    @abstractmethod
    def begin_epoch(self, epoch: int) -> None:
        """Set what changes from epoch to epoch; epochs count from 0."""

    @abstractmethod
    def step(self, real: Tensor, batch: int) -> StepReport:
        """Learn from a batch of real images, the epoch's so-manieth from 0. Latent points come from torch's global
        generator."""

    def classes(self, codes: Any) -> Tensor:
        """The class of each categorical code, (n, codes), by Qnet's outputs."""
        return likeliest_classes(self.class_log_probs(codes), len(codes))

    @abstractmethod
    def class_log_probs(self, codes: Any) -> list[Tensor]:
        """(n, classes) for each categorical code, by Qnet's outputs."""

    @abstractmethod
    def fake_probability(self, reality: Any) -> Tensor:
        """The probability of being generated, by Pnet's outputs."""

    def noises(self) -> dict[str, float]:
        """The noises now in force, for reports; none unless there are some."""
        return {}

    def read_ahead(self, block: Tensor) -> None:
        """Give classes to the real images of the next batches."""
        assert self.grouping is not None
        with looking(self.players):
            read = [
                self.class_log_probs(self.players.discriminator(self.seen(part)).codes)
                for part in block.split(LOOK_BATCH)
            ]
        self.grouping.set([torch.cat(parts) for parts in zip(*read, strict=True)])

    def seen(self, images: Tensor) -> Tensor:
        """Images as D sees them: with grain, if there is any."""
        return images + with_grain(images, self.config.grain) if self.config.grain else images

    # ---- looking: evaluation mode, in batches, without a trace -------------------------------------------

    def draw(self, latents: Latents) -> Tensor:
        """The images of these latent points, in the data's scale, on the CPU; a Gaussian's means."""
        with looking(self.shown):
            device = next(self.shown.parameters()).device
            inputs = self.space.encode(latents).to(device)
            return torch.cat([mean_of(self.shown.generator(part)).cpu() for part in inputs.split(LOOK_BATCH)])

    def opinions(self, images: Tensor, read_codes: bool = True) -> tuple[Tensor, Tensor | None]:
        """Pnet's probability that each image is generated, and the class of each categorical code."""
        with looking(self.shown):
            probabilities, classes = [], []
            for verdict in self.verdicts(images, read_codes):
                probabilities.append(self.fake_probability(verdict.reality).flatten().cpu())
                if verdict.codes is not None:
                    classes.append(self.classes(verdict.codes).cpu())
            return torch.cat(probabilities), torch.cat(classes) if classes else None

    def verdicts(self, images: Tensor, read_codes: bool) -> Iterator[Verdict]:
        device = next(self.shown.parameters()).device
        for part in images.split(LOOK_BATCH):
            yield self.shown.discriminator(part.to(device), codes_from=0 if read_codes else None)

    def features(self, images: Tensor) -> Tensor:
        """Dnet's features of images, (n, f)."""
        with looking(self.shown):
            device = next(self.shown.parameters()).device
            trunk = self.shown.discriminator.trunk
            return torch.cat([mean_of(trunk(part.to(device))).cpu() for part in images.split(LOOK_BATCH)])


def mean_of(output: Gaussian | Tensor) -> Tensor:
    return output.mean if isinstance(output, Gaussian) else output


@contextmanager
def looking(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without messages, and back to each part's own mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
