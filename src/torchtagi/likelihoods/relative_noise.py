"""Regression whose noise the network predicts too, by its logarithm: for a joint covariance.

The outputs come in pairs, the mean m of a target and the logarithm s of its noise, in units of a noise R that is
learned like any other:

    y = z + e,   z ~ N(m, v),   e ~ N(0, R eˢ)

In s an error's negative log-likelihood is ½ (s + e²/(R eˢ)) but for a constant. Its derivative is
½ (1 − e²/(R eˢ)), and the expectation of its curvature ½. That is what an observation of s with variance 2 sends,

    told = s + ⟨e²⟩/(R eˢ) − 1

Errors are not seen. Given y they are

    ⟨e²⟩ = (b r/(v + b))² + b v/(v + b)        r = y − m,  b = R eˢ

where v is of before y was learned, and ⟨e²⟩ = r² + v where it is of afterwards: the E-step of
expectation–maximisation. The prior of s has mean 0, and a variance that is learned like that of all weights: where
nothing is to be gained the noise is one for all.

What has not been learned yet looks like noise. So in the first part of a fit s is not observed. In the first epoch
in which it is, y is new to it, though y may have been learned by m.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods.regression import Regression

NOISE = 2.0
FURTHEST = 8.0  # ⟨e²⟩/(R eˢ) − 1: of errors 3 in 1,000 are larger, and no single one shall move s further


class RelativeNoise(Regression):
    """The network's outputs are pairs (mean, logarithm of the relative noise)."""

    observes = True
    """Whether s is observed."""

    def split(self, z: Gaussian) -> tuple[Gaussian, Tensor]:
        log = z[:, 1::2]
        return z[:, ::2], self.predictive_noise_var * (log.mean + log.variance / 2).exp()

    def training_noise_var(self, z: Gaussian, target: Tensor, observed: Tensor | None) -> Tensor:
        """R."""
        return super().training_noise_var(z[:, ::2], target, observed)

    def sites(
        self, z: Gaussian, y: Tensor, noise_var: Tensor, weights: Tensor, known: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        signal, log = z[:, ::2], z[:, 1::2].mean
        noise_var = (noise_var * log.exp()).expand_as(y)
        told = log + self.misfit(signal, y, noise_var, weights, known) if self.observes else y * math.nan
        weights = weights.expand_as(y)
        return (
            interleaved(y, told),
            interleaved(noise_var / weights, NOISE / weights),
            interleaved(weights * (-log).exp(), weights),
        )

    def misfit(self, signal: Gaussian, y: Tensor, noise_var: Tensor, weights: Tensor, known: bool) -> Tensor:
        """⟨e²⟩/(R eˢ) − 1, NaN where y is; `known` says that m has learned it. A sample of weight w is w equal
        observations."""
        error = y - signal.mean
        if known:
            square = error.square() + signal.variance
        else:
            total = signal.variance + noise_var / weights
            share = noise_var / weights / total
            square = (share * error).square() + share * signal.variance
        return (square / noise_var - 1).clamp(max=FURTHEST)

    def as_it_is(self, told: Tensor, z: Gaussian) -> Tensor:
        """What leaves s where it is."""
        return interleaved(told[:, ::2], torch.where(torch.isnan(told), math.nan, z.mean)[:, 1::2])

    def of_noise(self, told: Tensor) -> Tensor:
        """What is told of s alone."""
        return interleaved(told[:, ::2] * math.nan, told[:, 1::2])

    def of_outputs(self, noise_var: Tensor) -> Tensor:
        return interleaved(noise_var, torch.full_like(noise_var, NOISE))


def interleaved(of_means: Tensor, of_logs: Tensor) -> Tensor:
    return torch.stack([of_means, of_logs], -1).flatten(-2)
