"""Statistics of a step: what the messages on all parameters of an update amount to.

s is a parameter's variance, g and h the gradient and the curvature of its message (`inference.update`). A mean pass
has no curvatures. All sums are tensors until `read` brings them to Python, together and once a step:
whoever waits for an accelerator waits once, whatever the number of layers.
"""

from __future__ import annotations

import itertools
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
    shrinks: Tensors  # s h, the relative change of the variances; none after a mean pass
    totals: list[float]  # Σ s h of each tensor, where any is shared
    lowest: list[float]  # the smallest s h of each tensor
    highest: list[float]  # the largest
    factors: list[float]  # ρ of each tensor
    shared: list[int | None]  # of each shared tensor its column; None: none of it is on this process
    positions: list[float]  # of each shared tensor at how many positions of a sample it acts

    def __init__(
        self, parameters: Iterable[GaussianParameter], full: bool, sharded: bool, averaged_over: int
    ) -> None:
        rows = [
            (mean, var, mean.grad, var.grad, var, part.shared)
            for part in parameters
            for mean, var in (part.pair(),)
            if mean.grad is not None and (var.grad is not None or not full)
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
        self.full = full
        self.steps = self.terms = self.shrinks = []
        if self.means:
            if averaged_over > 1:
                gradients = list(foreach_mul(gradients, averaged_over))
                curvatures = list(foreach_mul(curvatures, averaged_over)) if full else []
            self.steps = foreach_mul(self.vars, gradients)
            self.terms = foreach_mul(self.steps, gradients)
            self.shrinks = foreach_mul(self.vars, curvatures) if full else []
        self.factors = [1.0] * len(self.means)

    def sums(self) -> list[Tensor]:
        """What `take_sums` wants to know, as tensors."""
        if not self.means:
            return []
        of_means = totals(self.terms)
        if not self.full:
            return of_means
        extremes = [torch.aminmax(shrink) for shrink in self.shrinks]
        of_shared = [shrink.sum() for shrink in self.shrinks] if self.shared else []
        return [*of_means, *(e[0] for e in extremes), *(e[1] for e in extremes), *of_shared]

    def take_sums(self, numbers: Sequence[float]) -> None:
        columns = len(self.means)
        self.lengths, self.lowest, self.highest, self.totals = (
            list(numbers[kind * columns : (kind + 1) * columns]) for kind in range(4)
        )
        # not finite if any message is not
        self.length = sum(self.lengths) + 0.0 * (sum(self.lowest) + sum(self.highest))

    def sharing_sums(self) -> list[float]:
        """Σ s g² and Σ s h over the tensors that are not shared; then of each shared one in turn both sums, and
        whether a message widens."""
        own = [column for column in range(len(self.means)) if column not in self.shared]
        sums = [sum(self.lengths[column] for column in own), sum(self.totals[column] for column in own)]
        for column in self.shared:
            if column is None:
                sums += (0.0, 0.0, 0.0)
            else:
                sums += (self.lengths[column], self.totals[column], float(self.lowest[column] < 0))
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


def read(tensors: Sequence[Tensor]) -> list[float]:
    """Numbers on a device, in Python: the one moment of a step at which Python waits for it."""
    return torch.stack(list(tensors)).tolist() if tensors else []


def squared_length(parameters: Iterable[GaussianParameter], sharded: bool) -> list[Tensor]:
    """Σ s g² of each of the parameters whose means got a message."""
    pairs = [(var, mean.grad) for mean, var in (part.pair() for part in parameters) if mean.grad is not None]
    pairs = [(local(var), local(gradient)) for var, gradient in pairs] if sharded else pairs
    return [(var * gradient * gradient).sum() for var, gradient in pairs]


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


def totals(tensors: Tensors) -> list[Tensor]:
    """The sum of each of them; no entry may be negative. One kernel on a GPU; on a CPU a norm is not vectorised,
    and takes ten times as long as a sum."""
    if tensors[0].is_cpu:
        return [tensor.sum() for tensor in tensors]
    return list(foreach_norm(tensors, 1))
