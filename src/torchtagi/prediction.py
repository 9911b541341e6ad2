"""What a model predicts: class probabilities or real numbers, with the two parts of their uncertainty.

The law of total variance divides what is not known about an observation: `epistemic`, what more data would tell, is
the variance that comes from the weights; `aleatoric`, what no data will tell, is that of the observation itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchtagi.gaussian import Gaussian


@dataclass(frozen=True)
class ClassPrediction:
    """Class probabilities (N, C), and the two parts of each indicator's variance P(1 − P)."""

    probs: Tensor
    epistemic: Tensor
    aleatoric: Tensor
    classes: Sequence[Any] | None = None
    """What the classes are called; 0, 1, … unless given."""

    @property
    def indices(self) -> Tensor:
        """The likeliest class's place among the classes."""
        return self.probs.argmax(1)

    @property
    def labels(self) -> Any:
        """The likeliest class: a tensor of whole numbers, or a list of names."""
        if self.classes is None:
            return self.indices
        if all(isinstance(name, int) for name in self.classes):
            return torch.tensor(self.classes, device=self.probs.device)[self.indices]
        return [self.classes[index] for index in self.indices.tolist()]

    @property
    def confidence(self) -> Tensor:
        return self.probs.amax(1)

    @property
    def entropy(self) -> Tensor:
        terms: Tensor = torch.special.entr(self.probs)
        return terms.sum(1)


@dataclass(frozen=True)
class RegressionPrediction:
    """Targets in their own units: `mean`, and the two parts of their variance, std² = epistemic + aleatoric."""

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor

    @property
    def gaussian(self) -> Gaussian:
        return Gaussian.trusted(self.mean, self.epistemic + self.aleatoric)

    @property
    def std(self) -> Tensor:
        return self.gaussian.std

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The central interval that holds an observation with probability `level`."""
        return self.gaussian.interval(level)

    def sample(self, *size: int, generator: torch.Generator | None = None) -> Tensor:
        return self.gaussian.sample(*size, generator=generator)

    def log_prob(self, y: Tensor) -> Tensor:
        return self.gaussian.log_prob(y)
