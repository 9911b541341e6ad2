"""Layers that only rearrange units, mean and variance alike, messages back the same way; and residual blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.nn.layer import Layer


class FlattenMoments(torch.autograd.Function):
    """A view, as a Function that a chain can hold."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, var: Tensor | None, start_dim: int, end_dim: int
    ) -> tuple[Tensor, Tensor | None]:
        ctx.shape = mean.shape
        return mean.flatten(start_dim, end_dim), None if var is None else var.flatten(start_dim, end_dim)

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        return dmean.reshape(ctx.shape), dvar.reshape(ctx.shape) if ctx.needs_input_grad[1] else None, None, None


class Flatten(Layer, nn.Flatten):  # type: ignore[misc]
    """`torch.nn.Flatten`."""

    function = FlattenMoments
    passes_message_on = True

    def operands(self) -> tuple[Any, ...]:
        return self.start_dim, self.end_dim


class Rearrangement(Layer):
    """A layer of torch's, of mean and variance alike."""

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        return as_gaussian(x).map(super(Layer, self).forward)


class Unflatten(Rearrangement, nn.Unflatten):  # type: ignore[misc]
    """`torch.nn.Unflatten`."""


class ZeroPad2d(Rearrangement, nn.ZeroPad2d):  # type: ignore[misc]
    """`torch.nn.ZeroPad2d`: certain zeros around the image; (left, right, top, bottom) or one number.

    For padding on the right and bottom only, `ZeroPad2d((0, 1, 0, 1))`; a negative number crops.
    """


class Identity(Rearrangement, nn.Identity):  # type: ignore[misc]
    """Passes its input on; a residual block's straight shortcut."""


class Residual(nn.Module):
    """body(x) + shortcut(x), as if the two were independent: their means add and their variances add. The shortcut
    passes x on unless one is given; ordinary layers inside work too."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body
        self.shortcut = Identity() if shortcut is None else shortcut

    def forward(self, x: Any) -> Any:
        return self.body(x) + self.shortcut(x)
