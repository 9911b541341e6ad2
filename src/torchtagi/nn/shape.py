"""Layers that only rearrange units, mean and variance alike, messages back the same way; and residual blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.nn.layer import Layer


class FlattenMoments(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, var: Tensor | None, start_dim: int, end_dim: int
    ) -> tuple[Tensor, Tensor | None]:
        ctx.shape = mean.shape
        return mean.flatten(start_dim, end_dim), None if var is None else var.flatten(start_dim, end_dim)

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        return dmean.reshape(ctx.shape), dvar.reshape(ctx.shape) if ctx.needs_input_grad[1] else None, None, None


class Flatten(Layer):
    """`torch.nn.Flatten`."""

    function = FlattenMoments
    passes_message_on = True

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def operands(self) -> tuple[Any, ...]:
        return self.start_dim, self.end_dim


class Unflatten(Layer):
    """`torch.nn.Unflatten`."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        return as_gaussian(x).map(lambda t: t.unflatten(self.dim, self.unflattened_size))


class ZeroPad2d(Layer):
    """`torch.nn.ZeroPad2d`: certain zeros around the image; (left, right, top, bottom) or one number.

    For padding on the right and bottom only, `ZeroPad2d((0, 1, 0, 1))`; a negative number crops.
    """

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        self.padding = tuple(padding) if isinstance(padding, tuple | list) else (padding,) * 4
        if len(self.padding) != 4 or not all(isinstance(side, int) for side in self.padding):
            raise ValueError(f"padding must be one number or (left, right, top, bottom), got {padding!r}")

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        return as_gaussian(x).map(lambda t: functional.pad(t, self.padding))


class Identity(Layer):
    """Passes its input on; a residual block's straight shortcut."""

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        return as_gaussian(x)


class Residual(nn.Module):
    """body(x) + shortcut(x), as if the two were independent: their means add and their variances add. The shortcut
    passes x on unless one is given; ordinary layers inside work too."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = Identity() if shortcut is None else shortcut

    def forward(self, x: Any) -> Any:
        return self.body(x) + self.shortcut(x)
