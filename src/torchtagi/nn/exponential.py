"""Exponentials with exact moments, for outputs that are variances.

e = exp(z):   E[e] = exp(m + v/2),  var[e] = (exp(v) − 1) E[e]²,  gain J = cov(z, e)/v = E[e]
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtagi.nn.activation import Unitwise


class Exp(Unitwise):
    """exp(z) with exact moments."""

    def moments(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        if var is None:
            value = torch.exp(mean)
            return value, None, value
        value = torch.exp(mean + var / 2)
        return value, torch.expm1(var) * value.square(), value


class EvenExp(Unitwise):
    """Pairs [mean, noise variance, mean, …] for `HeteroscedasticRegression`: exp on the second of each."""

    def moments(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        if mean.shape[-1] % 2:
            raise ValueError(f"EvenExp: input must have an even last dimension, got shape {tuple(mean.shape)}")
        noise = torch.arange(mean.shape[-1], device=mean.device) % 2 == 1
        value, out_var, gain = Exp().moments(mean, var)
        return (
            torch.where(noise, value, mean),
            None if var is None or out_var is None else torch.where(noise, out_var, var),
            torch.where(noise, gain, 1.0),
        )
