"""Outputs that are class probabilities, in closed form: Remax and a log-normal softmax.

Both divide positive units e_i by their sum, in logarithms, taking e_i and Σ e_j as log-normal. With a unit's share
s_i = E[e_i]/ΣE[e] and its relative variance r_i = var[e_i]/E[e_i]²:

    ω_i = var[log e_i] = log(1 + r_i)              ω_Σ = var[log Σ e] = log(1 + Σ r_j s_j²)
    c_i = cov(log e_i, log Σ e) = log(1 + r_i s_i)

    a_i = exp(log e_i − log Σ e):   E[a_i] = s_i exp(ω_Σ − c_i)
                                    var[a_i] = (exp(u_i) − 1) E[a_i]²,  u_i = ω_i + ω_Σ − 2c_i

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


def log_ratio(share: Tensor, relative: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """E[a], exp(u) − 1, ω and c of the head of this file, from s and r."""
    spread, common = torch.log1p(relative), torch.log1p(relative * share)
    total_spread = torch.log1p((relative * share.square()).sum(-1, keepdim=True))
    surplus = torch.expm1(spread + total_spread - 2 * common).clamp_min(0)
    return share * torch.exp(total_spread - common), surplus, spread, common


class Remax(Unitwise):
    """Rectified units over their sum, in the last dimension."""

    def moments(self, mean: Tensor, var: Tensor) -> UnitMoments:
        positive, positive_var, active = rectified_moments(mean, var)
        tiny = torch.finfo(mean.dtype).tiny ** 0.25  # its square and product still have room above zero
        positive = positive.clamp_min(tiny)
        share, relative = positive / positive.sum(-1, keepdim=True), positive_var / positive.square()
        value, surplus, spread, common = log_ratio(share, relative)
        value = value / value.sum(-1, keepdim=True)
        out_var = surplus * value.square()
        covariance = torch.expm1(spread - common) * value * positive / active.clamp_min(tiny)
        covariance = torch.minimum(covariance, (out_var * var).sqrt())
        return value, out_var, covariance / var.clamp_min(tiny)


class ClosedFormSoftmax(Unitwise):
    """exp(z) over its sum, in the last dimension."""

    def moments(self, mean: Tensor, var: Tensor) -> UnitMoments:
        share = torch.softmax(mean + var / 2, -1)
        value, surplus, _, common = log_ratio(share, torch.expm1(var))
        # (v − c)/v → 1 − E[a] as v → 0
        slope = torch.where(var > 1e-6, (var - common) / var.clamp_min(1e-6), 1 - share)
        return value, surplus * value.square(), value * slope
