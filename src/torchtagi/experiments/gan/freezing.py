"""A network that others learn through: it passes messages on, and stays as it is to the bit.

Its parameters are not asked to learn. Its running statistics are not mixed with this batch again: where they are
the scale (`use_running`) the layer is run as in evaluation, which is the same scale without the mixing; whatever
else writes to a buffer is undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from torchtagi.inference.buffers import buffers_kept
from torchtagi.nn.norm import BatchNorm
from torchtagi.parameter import GaussianParameter


@contextmanager
def frozen(*modules: nn.Module, deaf: bool = True) -> Iterator[None]:
    """Keep `modules` as they are for a while.

    `deaf=False` lets messages reach the means of their parameters, where an update that counts the uncertainty of
    what it does not change (`Update(frozen=...)`) can read them; nobody applies them. Those on variances nobody
    needs, and they are not made.
    """
    parts = [part for module in modules for part in module.modules()]
    means = {id(part.mean) for part in parts if isinstance(part, GaussianParameter)}
    asking = [p for module in modules for p in module.parameters() if p.requires_grad]
    silenced = asking if deaf else [p for p in asking if id(p) not in means]
    running = [part for part in parts if isinstance(part, BatchNorm) and part.use_running and part.training]
    for parameter in silenced:
        parameter.requires_grad_(False)
    for part in running:
        part.eval()
    try:
        with buffers_kept(*modules):
            yield
    finally:
        for parameter in silenced:
            parameter.requires_grad_(True)
        for part in running:
            part.train()
