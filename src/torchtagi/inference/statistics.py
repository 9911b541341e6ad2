"""Parameter-group statistics: what the messages of one parameter group of an update amount to at a step.

s is a parameter's variance, g and h the gradient and the curvature of its message (`inference.update`). All sums
are computed in the constructor; the rules of the update read them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchtagi.compat import foreach_add_, foreach_div, foreach_div_, foreach_mul, foreach_mul_, foreach_norm
from torchtagi.parameter import Positions

Tensors = list[Tensor] | tuple[Tensor, ...]


class GroupStatistics:
    """One parameter group at a step: the tensors that got a message, as this process's shards."""

    steps: Tensors  # s g, the direction of the means
    terms: Tensors  # s g²
    lengths: list[float]  # Σ s g² of each tensor, its squared length in prior standard deviations
    shrinks: Tensors  # s h, the relative change of the variances
    peaks: list[float]  # the largest |s h| of each tensor
    factors: list[float]  # ρ of each tensor
    shared: list[int | None]  # of each shared tensor its column; None: none of it is on this process
    positions: list[float]  # of each shared tensor at how many positions of a sample it acts
    owners: list[Tensor]  # the parameters that the variances are, or are shards of

    def __init__(
        self, group: dict[str, Any], positions: dict[Tensor, Positions], sharded: bool, averaged_over: int
    ) -> None:
        self.lr = require_fraction(group["lr"])
        tensors = group["params"]
        rows = [
            (mean, var, gradient, curvature, positions.get(mean))
            for mean, var in zip(tensors[::2], tensors[1::2], strict=True)
            if (gradient := mean.grad) is not None and (curvature := var.grad) is not None
        ]
        self.positions = [row[4].count for row in rows if row[4] is not None]
        self.has_messages = bool(rows)  # be it to another process's shards
        owners = [row[1] for row in rows]
        if sharded:
            rows = [(*(tensor.to_local() for tensor in row[:4]), row[4]) for row in rows]
        here = [row[0].numel() > 0 for row in rows]
        self.owners = list(itertools.compress(owners, here))
        columns = itertools.accumulate(here, initial=0)
        self.shared = [
            column if some else None for column, some, row in zip(columns, here, rows, strict=False) if row[4]
        ]
        rows = list(itertools.compress(rows, here))
        self.means, self.vars, gradients, curvatures, _ = map(list, zip(*rows, strict=True)) if rows else ([],) * 5
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

    @property
    def length(self) -> float:
        """Σ s g² over the group; not finite if any of its messages is not."""
        return sum(self.lengths) + 0.0 * sum(self.peaks)

    def own_sums(self) -> tuple[float, float]:
        """Σ s g² and Σ s h over the tensors that are not shared."""
        own = [column for column in range(len(self.means)) if column not in self.shared]
        return sum(self.lengths[column] for column in own), sum(self.shrinks[column].sum().item() for column in own)

    def shared_sums(self) -> list[float]:
        """Of each shared tensor in turn: Σ s g², Σ s h, and whether a message widens."""
        sums: list[float] = []
        for column in self.shared:
            if column is None:
                sums += (0.0, 0.0, 0.0)
            else:
                shrink = self.shrinks[column]
                sums += (self.lengths[column], shrink.sum().item(), float(shrink.amin().item() < 0))
        return sums

    def take_factors(self, factors: Iterator[float]) -> None:
        """The next factors are those of the shared tensors, one for each."""
        for column, factor in zip(self.shared, factors, strict=False):
            if column is not None:
                self.factors[column] = factor

    def forget(self, share: float, state: dict[Tensor, Any]) -> None:
        """Let a share of the precision gained fade: s⁺ = s/(1 − share + share s/s₀), s₀ the prior's in `state`."""
        share = min(share, 1.0)
        priors = [local(state[owner]["prior"]).to(var) for owner, var in zip(self.owners, self.vars, strict=True)]
        ratios = foreach_div(self.vars, priors)
        foreach_mul_(ratios, share)
        foreach_add_(ratios, 1.0 - share)
        foreach_div_(self.vars, ratios)


def require_fraction(lr: Any) -> float:
    if not (lr >= 0 and math.isfinite(lr)):
        raise ValueError(f"lr, the fraction of the messages applied, must be finite and not negative, got {lr}")
    return float(lr)


def local(tensor: Any) -> Tensor:
    """This process's shard of it, if it is sharded."""
    shard: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return shard


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
