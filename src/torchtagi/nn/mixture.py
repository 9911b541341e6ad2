"""Activations with exact moments: no linearisation, so a unit at m = −1, v = 4 is not simply dead.

Most are piecewise linear, and the moments of a Gaussian cut at their corners are closed forms. With σ = √v, φ and Φ
the standard normal density and distribution, and f(z) the function:

    forward     E[f(z)],  var[f(z)]
    backward    J dm, J² dv   with the gain J = cov(z, f(z))/v = E[f′(z)]   (Stein's lemma)

MixtureReLU     f(z) = max(0, z)                        J = Φ(m/σ)
MixtureTanh     f(z) = min(1, max(−1, z))               J = Φ((1−m)/σ) − Φ((−1−m)/σ)
MixtureSigmoid  f(z) = (MixtureTanh(z) + 1)/2           J half of that
Exp             f(z) = exp(z)                           J = E[f] = exp(m + v/2),  var[f] = (exp(v) − 1) E[f]²
EvenExp         exp on every second unit, for outputs that are variances
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtagi.nn.activation import UnitMoments, Unitwise


def standard_density(x: Tensor) -> Tensor:
    return torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)


def standard_deviation(var: Tensor) -> Tensor:
    """√v, kept off zero: the moments then tend to those of a certain unit."""
    return var.clamp_min(torch.finfo(var.dtype).tiny).sqrt()


def rectified_moments(mean: Tensor, var: Tensor) -> UnitMoments:
    """Mean, variance and gain of max(0, z).

    With t = −|m|/σ and Mills' ratio M = Φ/φ, both at t, the moments of max(0, σt + σε), ε ~ N(0, 1), are free of
    cancellation: σ e₁ with e₁ = φ(1 − |t|M), and σ² e₂ with e₂ = φ((t² + 1)M − |t|). They are those sought below
    zero. Above it max(0, z) = z + max(0, −z), whose moments are m + σ e₁ and v(1 − e₂ − 2|t| e₁ − e₁²).
    """
    std = standard_deviation(var)
    ratio = mean / std
    depth = ratio.abs().clamp_max(40)  # where φ is zero in double precision too
    density = standard_density(depth)
    mills = math.sqrt(math.pi / 2) * torch.special.erfcx(depth / math.sqrt(2))
    first = density * (1 - depth * mills)
    second = density * ((depth.square() + 1) * mills - depth)
    share = torch.where(mean > 0, 1 - second - first * (2 * depth + first), second - first.square())
    return mean.clamp_min(0) + std * first, var * share.clamp_min(0), torch.special.ndtr(ratio)


def clamped_moments(mean: Tensor, var: Tensor) -> UnitMoments:
    """Mean, variance and gain of min(1, max(−1, z))."""
    std = standard_deviation(var)
    below, above = (-1 - mean) / std, (1 - mean) / std
    p_below, p_above = torch.special.ndtr(below), torch.special.ndtr(-above)
    gain = (1 - p_below - p_above).clamp_min(0)
    d_below, d_above = standard_density(below), standard_density(above)
    value = mean * gain + std * (d_below - d_above) + p_above - p_below
    second = (mean.square() + var) * gain + std * (d_below * (mean - 1) - d_above * (mean + 1)) + p_above + p_below
    return value, (second - value.square()).clamp_min(0), gain


class MixtureReLU(Unitwise):
    """max(0, z) with exact moments."""

    moments = staticmethod(rectified_moments)


class MixtureTanh(Unitwise):
    """z cut to [−1, 1], with exact moments."""

    moments = staticmethod(clamped_moments)


class MixtureSigmoid(Unitwise):
    """z cut to [−1, 1] and brought to [0, 1], with exact moments."""

    def moments(self, mean: Tensor, var: Tensor) -> UnitMoments:
        value, out_var, gain = clamped_moments(mean, var)
        return (value + 1) / 2, out_var / 4, gain / 2


class Exp(Unitwise):
    """exp(z) with exact moments."""

    def moments(self, mean: Tensor, var: Tensor) -> UnitMoments:
        value = torch.exp(mean + var / 2)
        return value, torch.expm1(var) * value.square(), value


class EvenExp(Exp):
    """Pairs [mean, noise variance, mean, …] for `HeteroscedasticRegression`: exp on the second of each."""

    def moments(self, mean: Tensor, var: Tensor) -> UnitMoments:
        if mean.shape[-1] % 2:
            raise ValueError(f"EvenExp: input must have an even last dimension, got shape {tuple(mean.shape)}")
        noise = torch.arange(mean.shape[-1], device=mean.device) % 2 == 1
        value, out_var, gain = super().moments(mean, var)
        return torch.where(noise, value, mean), torch.where(noise, out_var, var), torch.where(noise, gain, 1.0)
