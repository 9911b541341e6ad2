"""Statistics of a step: what the messages on all parameters of an update amount to.

s is a parameter's variance, g and h the gradient and the curvature of its message (`inference.update`). All sums
are computed in the constructor; the rules of the update read them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchtagi.compat import foreach_add_, foreach_div, foreach_div_, foreach_mul, foreach_mul_, foreach_norm
from torchtagi.parameter import GaussianParameter

Tensors = list[Tensor] | tuple[Tensor, ...]


class Statistics:
    """The tensors that got a message, as this process's shards."""

    steps: Tensors  # s g, the direction of the means
    terms: Tensors  # s g²
    lengths: list[float]  # Σ s g² of each tensor, its squared length in prior standard deviations
    shrinks: Tensors  # s h, the relative change of the variances
    peaks: list[float]  # the largest |s h| of each tensor
    factors: list[float]  # ρ of each tensor
    shared: list[int | None]  # of each shared tensor its column; None: none of it is on this process
    positions: list[float]  # of each shared tensor at how many positions of a sample it acts

    def __init__(self, parameters: Iterable[GaussianParameter], sharded: bool, averaged_over: int) -> None:
        rows = [
            (mean, var, mean.grad, var.grad, var, part.shared)
            for part in parameters
            for mean, var in (part.pair(),)
            if mean.grad is not None and var.grad is not None
        ]
        self.positions = [row[5].count for row in rows if row[5] is not None]
        rows = [(*map(local, row[:4]), *row[4:]) for row in rows] if sharded else rows
        here = [row[0].numel() > 0 for row in rows]
        columns = itertools.accumulate(here, initial=0)
        self.shared = [
            column if some else None for column, some, row in zip(columns, here, rows, strict=False) if row[5]
        ]
        self.means, self.vars, gradients, curvatures, self.owners, _ = (
            map(list, zip(*itertools.compress(rows, here), strict=True)) if any(here) else ([],) * 6
        )
        self.steps, self.terms, self.shrinks, self.lengths, self.peaks = [], [], [], [], []
        if self.means:
            if averaged_over > 1:
                gradients = list(foreach_mul(gradients, averaged_over))
                curvatures = list(foreach_mul(curvatures, averaged_over))
            self.steps = foreach_mul(self.vars, gradients)
            self.terms = foreach_mul(self.steps, gradients)
            self.lengths = totals(self.terms)
            self.shrinks = foreach_mul(self.vars, curvatures)
            self.peaks = largest(self.shrinks)
        self.factors = [1.0] * len(self.means)
        self.length = sum(self.lengths) + 0.0 * sum(self.peaks)  # not finite if any message is not

    def sharing_sums(self) -> list[float]:
        """Σ s g² and Σ s h over the tensors that are not shared; then of each shared one in turn both sums, and
        whether a message widens."""
        shrinks = [shrink.sum().item() for shrink in self.shrinks]
        own = [column for column in range(len(self.means)) if column not in self.shared]
        sums = [sum(self.lengths[column] for column in own), sum(shrinks[column] for column in own)]
        for column in self.shared:
            if column is None:
                sums += (0.0, 0.0, 0.0)
            else:
                widens = self.shrinks[column].amin().item() < 0
                sums += (self.lengths[column], shrinks[column], float(widens))
        return sums

    def take_factors(self, factors: Sequence[float]) -> None:
        """One for each shared tensor, or none at all."""
        for column, factor in zip(self.shared, factors, strict=False):
            if column is not None:
                self.factors[column] = factor

    def forget(self, share: float, state: dict[Tensor, Any]) -> None:
        """Let a share of the precision gained fade: s⁺ = s/(1 − share + share s/s₀), s₀ the prior's in `state`."""
        share = min(share, 1.0)
        if any(owner not in state for owner in self.owners):
            raise RuntimeError("the network has other tensors than its Update: load_state_dict(assign=True)?")
        priors = [local(state[owner]["prior"]).to(var) for owner, var in zip(self.owners, self.vars, strict=True)]
        ratios = foreach_div(self.vars, priors)
        foreach_mul_(ratios, share)
        foreach_add_(ratios, 1.0 - share)
        foreach_div_(self.vars, ratios)

    def pull(self, share: float, state: dict[Tensor, Any]) -> None:
        """Let a share of the means return: m⁺ = m + share (s/s₀)(m₀ − m)."""
        share = min(share, 1.0)
        for mean, var, owner in zip(self.means, self.vars, self.owners, strict=True):
            prior_mean, prior = (local(state[owner][name]).to(var) for name in ("prior_mean", "prior"))
            mean.addcmul_(prior_mean - mean, var / prior, value=share)


def squared_length(parameters: Iterable[GaussianParameter], sharded: bool) -> float:
    """Σ s g² over the parameters whose means got a message."""
    pairs = [(var, mean.grad) for mean, var in (part.pair() for part in parameters) if mean.grad is not None]
    pairs = [(local(var), local(gradient)) for var, gradient in pairs] if sharded else pairs
    return sum((var * gradient * gradient).sum().item() for var, gradient in pairs)


def local(tensor: Any) -> Any:
    """This process's shard of it, if it is sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def sharing_factors(sums: list[float], innovation: float, positions: list[float]) -> list[float]:
    """ρ of each shared tensor, from Σ s g² and Σ s h of all that are not shared and then, for each that is, from
    both, from how many processes' shares of it have messages that widen, and from how large it can be at most."""

    def ratio(length: float, shrink: float) -> float:
        return length / (innovation * shrink) if innovation * shrink > 0 else 1.0

    common = max(1.0, ratio(sums[0], sums[1]))
    rows = zip(sums[2::3], sums[3::3], sums[4::3], positions, strict=True)
    return [
        1.0 if widens else max(1.0, min(ratio(length, shrink) / common, bound))
        for length, shrink, widens, bound in rows
    ]


# Norms of many tensors at once are one kernel on a GPU. On a CPU they are not vectorised, and take ten times as
# long as the sums and extremes that they are here.


def largest(tensors: Tensors) -> list[float]:
    """The largest absolute value in each of them; NaN if it holds one."""
    if tensors[0].is_cpu:
        return [max(-low.item(), high.item()) for low, high in map(torch.aminmax, tensors)]
    return torch.stack(foreach_norm(tensors, math.inf)).tolist()


def totals(tensors: Tensors) -> list[float]:
    """The sum of each of them; no entry may be negative."""
    if tensors[0].is_cpu:
        return [tensor.sum().item() for tensor in tensors]
    return torch.stack(foreach_norm(tensors, 1)).tolist()
