"""Outputs that are class probabilities, in closed form: Remax and a log-normal softmax.

Both divide positive units e_i by their sum, in logarithms, taking e_i and Σ e_j as log-normal:

    log e_i  ~  N(λ_i, ω_i)              ω = log(1 + var[e]/E[e]²),  λ = log E[e] − ω/2
    log Σ e  ~  N(λ_Σ, ω_Σ)              likewise from ΣE[e] and Σvar[e]
    c_i = cov(log e_i, log Σ e) = log(1 + var[e_i]/(E[e_i] ΣE[e]))

    a_i = exp(log e_i − log Σ e):   E[a_i] = exp(λ_i − λ_Σ + u_i/2),  u_i = ω_i + ω_Σ − 2c_i
                                    var[a_i] = (exp(u_i) − 1) E[a_i]²

Remax               e = max(0, z) with exact moments; its means are then divided by their sum. The gain is the
                    authors': cov(a_i, z_i) = E[a_i] E[e_i] (exp(ω_i − c_i) − 1)/Φ, at most √(var[a_i] v_i)
ClosedFormSoftmax   e = exp(z), exactly log-normal; cov(a_i, z_i) = E[a_i] (v_i − c_i)

The message to each unit comes from its own probability only, as in the authors' code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtagi.nn.activation import UnitMoments, Unitwise
from torchtagi.nn.mixture import rectified_moments


def log_ratio(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E[a], u, ω and c of the head of this file, from the moments of e."""
    total, total_var = mean.sum(-1, keepdim=True), var.sum(-1, keepdim=True)
    spread = torch.log1p(var / mean.square())
    total_spread = torch.log1p(total_var / total.square())
    shared = torch.log1p(var / (mean * total))
    ratio_spread = spread + total_spread - 2 * shared
    log_mean = (mean.log() - spread / 2) - (total.log() - total_spread / 2) + ratio_spread / 2
    return log_mean.exp(), ratio_spread, spread, shared


class Remax(Unitwise):
    """Rectified units over their sum, in the last dimension."""

    def moments(self, mean: Tensor, var: Tensor) -> UnitMoments:
        positive, positive_var, active = rectified_moments(mean, var)
        tiny = torch.finfo(mean.dtype).tiny ** 0.25  # its square and product still have room above zero
        positive = positive.clamp_min(tiny)
        value, ratio_spread, spread, shared = log_ratio(positive, positive_var)
        value = value / value.sum(-1, keepdim=True)
        out_var = torch.expm1(ratio_spread).clamp_min(0) * value.square()
        covariance = torch.expm1(spread - shared) * value * positive / active.clamp_min(tiny)
        covariance = torch.minimum(covariance, (out_var * var).sqrt())
        return value, out_var, covariance / var.clamp_min(tiny)


class ClosedFormSoftmax(Unitwise):
    """exp(z) over its sum, in the last dimension."""

    def moments(self, mean: Tensor, var: Tensor) -> UnitMoments:
        # a common shift leaves the ratio as it is and keeps the exponentials in range
        mean = mean - (mean + var / 2).amax(-1, keepdim=True)
        exponential = torch.exp(mean + var / 2)
        value, ratio_spread, _, shared = log_ratio(exponential, torch.expm1(var) * exponential.square())
        out_var = torch.expm1(ratio_spread).clamp_min(0) * value.square()
        # (v − c)/v → 1 − E[a] as v → 0
        certain = exponential / exponential.sum(-1, keepdim=True)
        slope = torch.where(var > 1e-6, (var - shared) / var.clamp_min(1e-6), 1 - certain)
        return value, out_var, value * slope
