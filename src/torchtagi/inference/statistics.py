"""One parameter group of an update at a step: what its tensors heard, in the columns that the rules work on.

s is a parameter's variance, g and h its messages on mean and variance (`torchtagi.inference.update`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from torchtagi.parameter import Places

Tensors = list[Tensor] | tuple[Tensor, ...]


class Group:
    """One parameter group at a step: the tensors that heard a message, as this process's shards."""

    steps: Tensors  # s g, the direction of the means
    terms: Tensors  # s g², its squared length in prior standard deviations
    shrinks: Tensors  # s h, the relative change of the variances
    lengths: list[float]
    length: float  # of all terms
    peaks: list[float]  # the largest |s h| of each tensor
    factors: list[float]  # ρ of each tensor
    shared: list[int | None]  # of each shared tensor its place in the columns; None: none of it is on this process
    most: list[float]  # of each shared tensor at how many places of a sample it acts
    owners: list[Tensor]  # the parameters that the variances are, or are shards of
    priors: Tensors  # their variances before anything was learned, if they are remembered

    def __init__(
        self, group: dict[str, Any], places: dict[Tensor, Places], sharded: bool, averaged_over: int
    ) -> None:
        self.lr = float(group["lr"])
        tensors = group["params"]
        rows = [
            (mean, var, dmean, dvar, places.get(mean))
            for mean, var in zip(tensors[::2], tensors[1::2], strict=True)
            if (dmean := mean.grad) is not None and (dvar := var.grad) is not None
        ]
        self.most = [row[4].count for row in rows if row[4] is not None]
        self.heard = bool(rows)  # whether a message came, be it to another process's shards
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
        self.means, self.vars, self.dmeans, self.dvars, _ = (
            map(list, zip(*rows, strict=True)) if rows else ([],) * 5
        )
        if averaged_over > 1 and self.means:
            self.dmeans = list(torch._foreach_mul(self.dmeans, averaged_over))
            self.dvars = list(torch._foreach_mul(self.dvars, averaged_over))

    def squares(self) -> float:
        """Σ s g² over the group."""
        self.steps = torch._foreach_mul(self.vars, self.dmeans)
        self.terms = torch._foreach_mul(self.steps, self.dmeans)
        self.lengths = totals(self.terms)
        self.length = sum(self.lengths)
        return self.length

    def largest_shrinks(self) -> float:
        """The sum of the largest |s h| of all tensors."""
        self.shrinks = torch._foreach_mul(self.vars, self.dvars)
        self.peaks = largest(self.shrinks)
        self.factors = [1.0] * len(self.peaks)
        return sum(self.peaks)

    def own_sums(self) -> tuple[float, float]:
        """Σ s g² and Σ −s h over the tensors that are not shared."""
        own = [place for place in range(len(self.means)) if place not in self.shared]
        return sum(self.lengths[place] for place in own), -sum(self.shrinks[place].sum().item() for place in own)

    def shared_sums(self) -> list[float]:
        """Of each shared tensor in turn: Σ s g², Σ −s h, and whether a message widens."""
        sums: list[float] = []
        for place in self.shared:
            if place is None:
                sums += (0.0, 0.0, 0.0)
            else:
                shrink = self.shrinks[place]
                sums += (self.lengths[place], -shrink.sum().item(), float(shrink.amax().item() > 0))
        return sums

    def share(self, factors: Iterator[float]) -> None:
        """Take the next factors for the shared tensors, one for each."""
        for place, factor in zip(self.shared, factors, strict=False):
            if place is not None:
                self.factors[place] = factor

    def recall(self, state: dict[Tensor, Any]) -> None:
        """Find the prior variances, where the parameters are now."""
        priors = [state[owner]["prior"] for owner in self.owners]
        priors = [prior.to_local() if hasattr(prior, "to_local") else prior for prior in priors]
        self.priors = [prior.to(var) for prior, var in zip(priors, self.vars, strict=True)]

    def forget(self, share: float) -> None:
        """Let a share of the precision gained fade: s⁺ = s/(1 − share + share s/s₀)."""
        share = min(share, 1.0)
        ratios = torch._foreach_div(self.vars, self.priors)
        torch._foreach_mul_(ratios, share)
        torch._foreach_add_(ratios, 1.0 - share)
        torch._foreach_div_(self.vars, ratios)


def sharing_factors(sums: list[float], innovation: float, most: list[float]) -> list[float]:
    """ρ of each shared tensor, from Σ s g² and Σ −s h of all that are not shared and then, for each that is, from
    both, from how many processes' shares of it have messages that widen, and from how large it can be at most."""

    def ratio(length: float, shrink: float) -> float:
        return length / (innovation * shrink) if innovation * shrink > 0 else 1.0

    common = max(1.0, ratio(sums[0], sums[1]))
    rows = zip(sums[2::3], sums[3::3], sums[4::3], most, strict=True)
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
    return torch.stack(torch._foreach_norm(tensors, math.inf)).tolist()


def totals(tensors: Tensors) -> list[float]:
    """The sum of each of them; no entry may be negative."""
    if tensors[0].is_cpu:
        return [tensor.sum().item() for tensor in tensors]
    return torch.stack(torch._foreach_norm(tensors, 1)).tolist()
