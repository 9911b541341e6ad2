"""A mean pass: a network run on its means alone, as the ordinary torch network that they are.

Variances change slowly. A step between two that carry them takes its learning rates, the weights' variances, as
they are, and the outputs' variance as it was. Weights and units are certain in it, so a layer's forward half
computes no variance, and torch's own autograd can carry the gradients back. `inference.passes` says which steps are
mean passes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class State(threading.local):
    active = False


state = State()


@contextmanager
def mean_pass() -> Iterator[None]:
    """What networks compute meanwhile are means, and no variances."""
    before, state.active = state.active, True
    try:
        yield
    finally:
        state.active = before
