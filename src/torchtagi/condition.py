"""Conditioning a network on a batch, in chunks.

Bayes' rule is associative: the posterior after one chunk is the prior for the next, and in a linear model the
order makes no difference. Where every step linearises anew, small chunks are the better approximation: one step
on 256 correlated observations moves along a single direction, sixteen steps on 16 along sixteen.
"""

from __future__ import annotations

from torch import Tensor, nn

from torchtagi.checks import require_values
from torchtagi.update import Update

CHUNK = 16  # the paper's batch; docs/design.md compares batches of 1 to 256 taken whole and in chunks


def condition(
    net: nn.Module, likelihood: nn.Module, posterior: Update, x: Tensor, y: Tensor, chunk: int = CHUNK
) -> float:
    """Update `net` with the observations y at x, `chunk` at a time; returns their negative log-evidence."""
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    require_values("x", x)
    if len(y) != len(x):
        raise ValueError(f"y must have as many entries as x, {len(x)}, got {len(y)}")
    total = 0.0
    for inputs, targets in zip(x.split(chunk), y.split(chunk), strict=True):
        posterior.zero_grad()
        evidence = likelihood(net(inputs), targets)
        evidence.backward()
        posterior.step()
        total += evidence.item()
    posterior.zero_grad()
    return total
