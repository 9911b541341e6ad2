"""A network that others learn through: it passes messages on, and stays as it is to the bit.

Its running statistics are not mixed with the same batch again: where they are the scale (`use_running`) the layer
runs as in evaluation, which is the same scale without the mixing; whatever else writes to a buffer is undone.
Messages still reach the means of Gaussian parameters, where `Update(frozen=...)` counts the uncertainty of what it
does not change. Nothing applies them. Other parameters receive no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from torchtagi.inference.buffers import buffers_kept
from torchtagi.nn.norm import BatchNorm
from torchtagi.parameter import GaussianParameter


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Keep `module` as it is for a while."""
    means = {id(part.mean) for part in module.modules() if isinstance(part, GaussianParameter)}
    silenced = [p for p in module.parameters() if p.requires_grad and id(p) not in means]
    norms = [
        part for part in module.modules() if isinstance(part, BatchNorm) and part.use_running and part.training
    ]
    for parameter in silenced:
        parameter.requires_grad_(False)
    for norm in norms:
        norm.eval()
    try:
        with buffers_kept(module):
            yield
    finally:
        for parameter in silenced:
            parameter.requires_grad_(True)
        for norm in norms:
            norm.train()
