"""Deep ensembles (Lakshminarayanan et al. 2017): several networks of different initialisations, averaged.

Members see the same batches. What makes them differ is their initialisation, by far the larger part of an
ensemble's diversity (Fort et al. 2019).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from torchtagi.experiments.baselines.backprop import Backprop
from torchtagi.experiments.baselines.baseline import Baseline
from torchtagi.experiments.baselines.config import BaselineConfig


class Ensemble(Baseline):
    """`members` networks trained by Adam; the spread of their answers is the epistemic part."""

    def __init__(self, config: BaselineConfig, images: int) -> None:
        super().__init__(config, images)
        count = config.count("members")
        # ensembles of different seeds share no member
        seeds = range(config.seed * count, (config.seed + 1) * count)
        self.members = [Backprop(dataclasses.replace(config, seed=seed), images) for seed in seeds]
        for member in self.members:
            member.steps = self.steps
        torch.manual_seed(config.seed)

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        probs, losses = zip(*(member.step(x, y) for member in self.members), strict=True)
        return torch.stack(probs).mean(0), sum(losses) / len(losses)

    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        """The members are all there is to draw."""
        for member in self.members:
            yield from member.draws(images, 1)

    def state(self) -> dict[str, Tensor]:
        return {
            f"member{index}.{key}": value
            for index, member in enumerate(self.members)
            for key, value in member.state().items()
        }
