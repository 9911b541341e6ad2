"""A body beside a shortcut: their means add and their variances add, as if the two were independent."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchtagi.nn.shape import Identity


class Residual(nn.Module):
    """body(x) + shortcut(x); the shortcut passes x on unless one is given. Ordinary layers inside work too."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = Identity() if shortcut is None else shortcut

    def forward(self, x: Any) -> Any:
        return self.body(x) + self.shortcut(x)
