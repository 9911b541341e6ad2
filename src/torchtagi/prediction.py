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
    def labels(self) -> Any:
        """The likeliest class: a tensor of whole numbers, or a list of names."""
        indices = self.probs.argmax(1)
        if self.classes is None:
            return indices
        if all(isinstance(name, int) for name in self.classes):
            return torch.tensor(self.classes, device=self.probs.device)[indices]
        return [self.classes[index] for index in indices.tolist()]

    @property
    def confidence(self) -> Tensor:
        return self.probs.amax(1)

    @property
    def entropy(self) -> Tensor:
        terms: Tensor = torch.special.entr(self.probs)
        return terms.sum(1)


class RegressionPrediction(Gaussian):
    """Targets in their own units: a Gaussian, with the two parts of its variance, var = epistemic + aleatoric."""

    def __init__(self, mean: Tensor, epistemic: Tensor, aleatoric: Tensor) -> None:
        super().__init__(mean, epistemic + aleatoric, None)
        self.epistemic, self.aleatoric = epistemic, aleatoric
