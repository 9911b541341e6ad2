"""Regression: y = z + e with known noise, per output or per observation; a NaN target is missing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchtagi.checks import require_positive
from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods.link import LabelLikelihood
from torchtagi.likelihoods.observation import (
    Likelihood,
    Message,
    observe,
    require_fitting_noise,
    require_output,
    require_targets,
)


class Regression(Likelihood):
    """y = z + e, e ~ N(0, noise_std²).

    `noise_std` is one number or one for each output; a call may give its own, one for each observation.
    """

    def __init__(self, noise_std: float | Sequence[float] | Tensor = 1.0, learn_noise: bool = False) -> None:
        super().__init__(noise_std, learn_noise)

    def message(self, z: Gaussian, y: Tensor, noise_std: Tensor | None = None) -> Message:
        target, observed = self.check(z, y)
        noise_var = self.training_noise_var(z, target, observed) if noise_std is None else given(noise_std, z)
        return observe(z, target, noise_var, observed)

    def predict(self, z: Gaussian, noise_std: Tensor | None = None) -> Gaussian:
        """N(m, v + R): `z.var` is the epistemic part of its variance, the noise the aleatoric part."""
        require_output("z", z)
        noise_var = self.predictive_noise_var if noise_std is None else given(noise_std, z)
        return Gaussian.trusted(z.mean, z.variance + noise_var)

    def log_prob(self, z: Gaussian, y: Tensor, noise_std: Tensor | None = None) -> Tensor:
        """Summed over the outputs; a missing target counts nothing."""
        target, observed = self.check(z, y)
        log_prob = self.predict(z, noise_std).log_prob(target)
        if observed is not None:
            log_prob = torch.where(observed, log_prob, 0.0)
        return log_prob.flatten(1).sum(1)

    def check(self, z: Gaussian, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """The target, and which of its entries are there (None: all)."""
        require_output("z", z)
        missing = require_targets(y)
        if y.shape != z.shape:
            raise ValueError(f"y must have the outputs' shape {tuple(z.shape)}, got {tuple(y.shape)}")
        return y, None if missing is None else ~missing


def given(noise_std: Tensor, z: Gaussian) -> Tensor:
    """The noise variance of a call that brings its own."""
    require_positive("noise_std", noise_std)
    return require_fitting_noise(torch.as_tensor(noise_std, dtype=z.dtype, device=z.device).square(), z)


class Binary(LabelLikelihood):
    """A label −1 or +1, taken as a noisy observation of the output; P(+1) = Φ(m/√(v + R))."""

    def __init__(self, noise_std: float | Sequence[float] | Tensor = 1.0, learn_noise: bool = False) -> None:
        super().__init__(noise_std, learn_noise)

    def message(self, z: Gaussian, y: Tensor) -> Message:
        target = self.check(z, y)
        if self.training:
            self.score_link(z, target)
        return observe(z, target, self.training_noise_var(z, target, None), None)

    def predict(self, z: Gaussian) -> Tensor:
        """The probability of +1, one for each output."""
        require_output("z", z)
        probability: Tensor = torch.special.ndtr(z.mean / (z.variance + self.predictive_noise_var).sqrt())
        return probability

    def log_prob(self, z: Gaussian, y: Tensor) -> Tensor:
        target = self.check(z, y)
        return self.log_prob_given(z, target, self.predictive_noise_var)

    def log_prob_given(self, z: Gaussian, labels: Tensor, noise_var: Tensor) -> Tensor:
        margin = labels * z.mean / (z.variance + noise_var).sqrt()
        samples = margin.shape[: margin.ndim - z.ndim + 1]
        log_prob: Tensor = torch.special.log_ndtr(margin).reshape(*samples, -1).sum(-1)
        return log_prob

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
