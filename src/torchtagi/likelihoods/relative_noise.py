"""Regression whose noise the network predicts too, by its logarithm.

The outputs come in pairs, the mean m of a target and the logarithm s of its noise, in units of a noise R that is
learned like any other:

    y = z + e,   z ~ N(m, v),   e ~ N(0, b),   b = R eˢ

In s an error's negative log-likelihood is ½ (s + e²/b) but for a constant. Its derivative is ½ (1 − e²/b), the
expectation of its curvature ½. That is what an observation s + e²/b − 1 of s with variance 2 sends. Errors are not
seen, but given y it is known how large e² is in the mean. With r = y − m,

    told = s + ⟨e²⟩/b − 1,        ⟨e²⟩ = (b r/(v + b))² + b v/(v + b)

So new observations are learned, but not further than to where s is best for them: with ρ = ⟨e²⟩/b they are told as
s + log ρ, with variance 2 log ρ/(ρ − 1), which has the same derivative at s.

What was learned before has pulled m towards itself. If v is the variance that is left, E[r²] = b (1 − h) with the
leverage h = v/b, and the derivative of the restricted likelihood (REML: Patterson and Thompson 1971) is
½ (1 − h − r²/b). So does

    told = s + r²/(b (1 − h)) − 1,        with variance 2/(1 − h)

say it, an error corrected for its leverage. The balance is that of ⟨e²⟩ = r² + v, but that would come near it by
(1 − h) of the way only, and take for noise what moving means have not come to yet. The prior of s has mean 0, and a
variance that is learned like that of all weights: where nothing is to be gained the noise is nearly one for all.

What has not been learned yet looks like noise. So in the first part of a fit s is not observed. In the first epoch
in which it is, y is new to it, though y may have been learned by m.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods.observation import Message, observe, require_output
from torchtagi.likelihoods.regression import Regression

NOISE = 2.0
FURTHEST = 9.0  # of e²/b, as one error says: 3 in 1,000 are larger
LARGEST = 100.0  # noise variance, of standardised targets: far from the data s may be anything
LEAST_FREE = 0.1  # 1 − h: what is known by heart says nothing of noise


class RelativeNoise(Regression):
    """The network's outputs are pairs (mean, logarithm of the relative noise)."""

    observes = True
    """Whether s is observed."""

    def split(self, z: Gaussian) -> tuple[Gaussian, Tensor]:
        log = z[:, 1::2]
        expected = (log.mean + log.variance / 2).clamp(max=math.log(torch.finfo(log.dtype).max) / 2)
        base = self.learned_noise_var if self.observes else self.predictive_noise_var
        noise_var = base * expected.exp()
        return z[:, ::2], noise_var.clamp(max=LARGEST).maximum(self.noise_var)

    def sites(
        self, z: Gaussian, y: Tensor, noise_var: Tensor, weights: Tensor, known: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        base, signal = noise_var.log(), z[:, ::2]
        log = torch.clamp(z[:, 1::2].mean, self.noise_var.log() - base, math.log(LARGEST) - base)
        own = (noise_var * log.exp()).expand_as(y)
        misfit, information = self.misfit(signal, y, own, known)
        told = log + misfit if self.observes else y * math.nan
        weights = weights.expand_as(y)
        return (
            interleaved(y, told),
            interleaved(own / weights, NOISE / (weights * information)),
            interleaved(weights * (-log).exp(), weights * information),
        )

    def misfit(self, signal: Gaussian, y: Tensor, noise_var: Tensor, known: bool) -> tuple[Tensor, Tensor]:
        """How far from s y says it is, NaN where y is, and how much it knows of it; `known` says that m has learned
        y. A sample of weight w has one error, of which w times as much is known."""
        error = y - signal.mean
        if known:
            free = (1 - signal.variance / noise_var).clamp_min(LEAST_FREE)
            return (error.square() / (noise_var * free)).clamp(max=FURTHEST) - 1, free
        share = noise_var / (signal.variance + noise_var)
        ratio = ((share * error).square() + share * signal.variance) / noise_var
        ratio = torch.where(torch.isnan(y), math.nan, ratio.clamp(1 / FURTHEST, FURTHEST))
        far = ratio.log()
        return far, torch.where(far.abs() > 1e-3, (ratio - 1) / far, 1.0)

    def check(self, z: Gaussian, y: Tensor) -> Tensor | None:
        pairs = require_output("z", z, 2 * y.shape[-1])
        return super().check(pairs[:, ::2], y)

    @torch.no_grad()
    def message(self, z: Gaussian, y: Tensor) -> Message:
        """R is learned from errors relative to the noise that s says, but for repeats while s is observed: R and
        the level of s would chase each other."""
        observed = self.check(z, y)
        weights = self.weights_like(y)
        weights = weights if isinstance(weights, Tensor) else torch.ones_like(y[:, :1])
        least = self.noise_var.log() - self.learned_noise_var.log()
        scale = (-z[:, 1::2].mean.clamp_min(least) / 2).exp()
        if self.observes and self.repeats:
            noise_var = self.divided_by_weights(self.learned_noise_var, z[:, ::2])
        else:
            noise_var = self.training_noise_var(z[:, ::2] * scale, y * scale, observed)
        told, variances, _ = self.sites(z, y, self.learned_noise_var, weights, known=self.repeats)
        variances[:, ::2] = noise_var / scale.square()
        return observe(z, told, variances, ~torch.isnan(told))

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
