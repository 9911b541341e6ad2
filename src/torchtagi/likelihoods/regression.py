"""Regression: y = z + e with known or learned noise, a NaN target being missing; and labels −1 or +1."""

from __future__ import annotations

import torch
from torch import Tensor

from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods.link import LabelLikelihood
from torchtagi.likelihoods.observation import Likelihood, require_output, require_targets


class Regression(Likelihood):
    """y = z + e, e ~ N(0, noise_std²); `noise_std` is one number or one for each output."""

    def targets(self, z: Gaussian, y: Tensor) -> tuple[Tensor, Tensor | None]:
        return y, self.check(z, y)

    def split(self, z: Gaussian) -> tuple[Gaussian, Tensor]:
        """The targets without their noise, and its variance."""
        epistemic = Gaussian.trusted(z.mean, self.predictive_scale * z.variance)
        return epistemic, self.predictive_noise_var.expand_as(z.mean)

    def predict(self, z: Gaussian) -> Gaussian:
        """N(m, c v + R): the epistemic part of the variance and the noise."""
        epistemic, noise_var = self.split(require_output("z", z))
        return Gaussian.trusted(epistemic.mean, epistemic.variance + noise_var)

    def sites(
        self, z: Gaussian, y: Tensor, noise_var: Tensor, weights: Tensor, known: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What y, which may have been learned before, says of each output: values, the variance of their noise, and
        their precision in units of `of_outputs`' noise."""
        return y, noise_var / weights, weights.expand_as(y)

    def of_outputs(self, noise_var: Tensor) -> Tensor:
        """The noise of each output, by that of each target."""
        return noise_var

    def log_prob(self, z: Gaussian, y: Tensor) -> Tensor:
        """Summed over the outputs; a missing target counts nothing."""
        observed = self.check(z, y)
        log_prob = self.predict(z).log_prob(y)
        return (log_prob if observed is None else torch.where(observed, log_prob, 0.0)).flatten(1).sum(1)

    def check(self, z: Gaussian, y: Tensor) -> Tensor | None:
        """Which targets are there (None: all)."""
        require_output("z", z)
        missing = require_targets(y)
        if y.shape != z.shape:
            raise ValueError(f"y must have the outputs' shape {tuple(z.shape)}, got {tuple(y.shape)}")
        return None if missing is None else ~missing


class Binary(LabelLikelihood):
    """A label −1 or +1, taken as a noisy observation of the output; P(+1) = Φ(m/√(c v + R))."""

    def targets(self, z: Gaussian, y: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.check(z, y), None

    def predict(self, z: Gaussian) -> Tensor:
        """The probability of +1, one for each output."""
        require_output("z", z)
        probability: Tensor = torch.special.ndtr(self.margin(z))
        return probability

    def log_prob_at(self, margin: Tensor, labels: Tensor) -> Tensor:
        log_probs: Tensor = torch.special.log_ndtr(labels * margin)
        return log_probs.flatten(margin.ndim - labels.ndim + 1).sum(-1)

    def check(self, z: Gaussian, y: Tensor) -> Tensor:
        require_output("z", z)
        if not isinstance(y, Tensor) or y.shape != z.shape:
            shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise ValueError(f"y must have the outputs' shape {tuple(z.shape)}, got {shape}")
        target = y.to(z.dtype)
        if not bool((target.abs() == 1).all()):
            bad = target[target.abs() != 1][0].item()
            raise ValueError(f"y must be -1 or +1, got {bad}")
        return target
