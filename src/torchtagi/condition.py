"""Conditioning a network on a batch, in chunks.

Bayes' rule is associative: the posterior after one chunk is the prior for the next, and in a linear model the
order makes no difference. Where every step linearises anew, small chunks are the better approximation: one step
on 256 correlated observations moves along a single direction, sixteen steps on 16 along sixteen.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtagi import direct
from torchtagi.checks import require_values
from torchtagi.update import Update

CHUNK = 16  # the paper's batch; docs/design.md compares batches of 1 to 256 taken whole and in chunks


def condition(
    net: nn.Module,
    likelihood: nn.Module,
    posterior: Update,
    x: Tensor,
    y: Tensor,
    chunk: int = CHUNK,
    before: direct.Watch | None = None,
) -> float:
    """Update `net` with the observations y at x, `chunk` at a time; returns their negative log-evidence.

    `before(z, targets)` is shown each chunk's outputs, for looking at, before they are learned from. Where the
    network is a plain `Sequential` of layers, the steps do without autograd (see `direct`); results are the same.
    """
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    require_values("x", x)
    samples = len(x)
    if len(y) != samples:
        raise ValueError(f"y must have as many entries as x, {samples}, got {len(y)}")
    whole = samples <= chunk
    total = 0.0
    try:
        for inputs, targets in [(x, y)] if whole else zip(x.split(chunk), y.split(chunk), strict=True):
            posterior.zero_grad()
            evidence = direct.learn(net, likelihood, posterior, inputs, targets, before)
            if evidence is None:
                evidence = learn(net, likelihood, posterior, inputs, targets, before)
            total += evidence.item()
    finally:
        posterior.zero_grad()  # not even a message that could not be learned from is left behind
    return total


def learn(
    net: nn.Module, likelihood: nn.Module, posterior: Update, x: Tensor, y: Tensor, before: direct.Watch | None
) -> Tensor:
    """One step by autograd."""
    z = net(x)
    if before is not None:
        with torch.no_grad():
            before(z, y)
    evidence: Tensor = likelihood(z, y)
    evidence.backward()
    posterior.step()
    return evidence
