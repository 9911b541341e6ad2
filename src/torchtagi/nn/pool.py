"""Pooling. K is the number of entries of a window.

AvgPool2d, AdaptiveAvgPool2d
                a = (a₁ + … + a_K)/K            E = Σ m/K, var = Σ v/K²      (paper eq. 1)
MaxPool2d       the entry of largest mean passes on with its mean and variance
The operations are linear in what passes, so autograd's own backward already carries the messages. Images that do
not fit a window, and sizes that are none, are refused by torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.gaussian import Gaussian, Moments, as_gaussian, lift
from torchtagi.nn.layer import Layer, Pair, as_pair

Geometry = tuple[Pair, Pair, Pair, bool, bool]  # kernel, stride, padding, ceil_mode, count_include_pad
avg_pool2d_backward = torch.ops.aten.avg_pool2d_backward.default


class AvgPoolMoments(torch.autograd.Function):
    """Windows that all have the same divisor."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, var: Tensor | None, geometry: Geometry, divisor: int
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(mean)  # its shape and memory layout are what is needed
        ctx.geometry, ctx.divisor = geometry, divisor
        return (
            functional.avg_pool2d(mean, *geometry, divisor),
            None if var is None else functional.avg_pool2d(var, *geometry, divisor**2),
        )

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        (like,) = ctx.saved_tensors
        return (
            avg_pool2d_backward(dmean, like, *ctx.geometry, ctx.divisor),
            avg_pool2d_backward(dvar, like, *ctx.geometry, ctx.divisor**2) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )


class Pool2d(Layer):
    """What all pooling layers share."""

    pool: Callable[[Tensor], Tensor]
    divisors: Callable[[Tensor], Tensor]

    def check_input(self, mean: Tensor, var: Tensor | None) -> None:
        if mean.ndim not in (3, 4):
            raise ValueError(
                f"{type(self).__name__}: input must have shape (N, C, H, W) or (C, H, W), got {tuple(mean.shape)}"
            )

    def set_windows(self, kernel_size: int | Pair, stride: int | Pair | None, padding: int | Pair) -> None:
        self.kernel_size = as_pair("kernel_size", kernel_size)
        self.stride = as_pair("stride", self.kernel_size if stride is None else stride)
        self.padding = as_pair("padding", padding)

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        x = as_gaussian(x)
        self.check_input(x.mean, x.var)
        return super().forward(x) if self.function is not None else lift(self.moments, x)

    def moments(self, x: Gaussian) -> Moments:
        """Averages, where each window has a divisor of its own."""
        return self.pool(x.mean), None if x.var is None else self.pool(x.var) / self.divisors(x.mean)


class AvgPool2d(Pool2d):
    """`torch.nn.AvgPool2d`: windows may overlap; padded zeros count unless `count_include_pad` is False."""

    function: type[torch.autograd.Function] | None = AvgPoolMoments
    output_is_free = True

    def __init__(
        self,
        kernel_size: int | Pair,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.set_windows(kernel_size, stride, padding)
        self.ceil_mode, self.count_include_pad, self.divisor_override = (
            ceil_mode,
            count_include_pad,
            divisor_override,
        )
        self.geometry: Geometry = (self.kernel_size, self.stride, self.padding, ceil_mode, count_include_pad)
        if (ceil_mode or not count_include_pad) and divisor_override is None:
            self.function = None

    def operands(self) -> tuple[Any, ...]:
        return self.geometry, self.divisor_override or self.kernel_size[0] * self.kernel_size[1]

    def pool(self, t: Tensor) -> Tensor:
        return functional.avg_pool2d(t, *self.geometry)

    def divisors(self, mean: Tensor) -> Tensor:
        """What torch used: at the border (entries covered)/(their average of ones)."""
        ones = torch.ones_like(mean.flatten(0, -3)[:1])
        return functional.avg_pool2d(ones, *self.geometry, 1) / self.pool(ones)


class AdaptiveAvgPool2d(Pool2d, nn.AdaptiveAvgPool2d):  # type: ignore[misc]
    """`torch.nn.AdaptiveAvgPool2d`: as many windows as `output_size` says, of nearly equal size; where one does not
    divide the other, they overlap as torch's do. None keeps the input's size."""

    def pool(self, t: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(t, self.output_size)

    def divisors(self, mean: Tensor) -> Tensor:
        """Window i of n reaches from ⌊i·size/n⌋ to ⌈(i + 1)·size/n⌉."""
        sizes = zip(mean.shape[-2:], self.pool(mean[:1]).shape[-2:], strict=True)
        heights, widths = (
            mean.new_tensor([-(-(i + 1) * size // n) - i * size // n for i in range(n)]) for size, n in sizes
        )
        return heights[:, None] * widths


class MaxPool2d(Pool2d):
    """`torch.nn.MaxPool2d`: the entry of largest mean passes on."""

    def __init__(
        self,
        kernel_size: int | Pair,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.set_windows(kernel_size, stride, padding)
        self.dilation, self.ceil_mode = as_pair("dilation", dilation), ceil_mode

    def moments(self, x: Gaussian) -> Moments:
        options = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        mean, index = functional.max_pool2d(x.mean, *options, return_indices=True)
        var = None if x.var is None else x.var.flatten(-2).gather(-1, index.flatten(-2)).view(index.shape)
        return mean, var
