"""Pooling. K is the number of entries of a window.

AvgPool2d, AdaptiveAvgPool2d
                a = (a₁ + … + a_K)/K            E = Σ m/K, var = Σ v/K²      (paper eq. 1)
MaxPool2d       one entry of the window passes on with its mean and variance:
                `stochastic=False`  the entry of largest mean
                `stochastic=True`   Peters & Welling's pooling, named in section 3.1.1: in training an entry is
                                    drawn by its probability of being the largest; in eval the likeliest one
The operations are linear in what passes, so autograd's own backward already carries the messages. Images that do
not fit a window, and sizes that are none, are refused by torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
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
    """`torch.nn.MaxPool2d`; with `stochastic=True` the pooling of Peters & Welling."""

    def __init__(
        self,
        kernel_size: int | Pair,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        ceil_mode: bool = False,
        *,
        stochastic: bool = False,
    ) -> None:
        super().__init__()
        self.set_windows(kernel_size, stride, padding)
        self.dilation, self.ceil_mode = as_pair("dilation", dilation), ceil_mode
        self.stochastic = stochastic

    def mean_needs_var(self) -> bool:
        return self.stochastic

    def moments(self, x: Gaussian) -> Moments:
        index = self.index(x)
        mean, var = (
            None if t is None else t.flatten(-2).gather(-1, index.flatten(-2)).view(index.shape)
            for t in (x.mean, x.var)
        )
        assert mean is not None
        return mean, var

    @torch.no_grad()
    def index(self, x: Gaussian) -> Tensor:
        """Where in the plane of each channel the entry lies that each window passes on."""
        drawn = self.stochastic and x.var is not None
        # The largest of one joint sample falls on each entry with its probability of being the largest.
        values = x.sample() if drawn and self.training else x.mean
        options = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        largest, index = functional.max_pool2d(values, *options, return_indices=True)
        if max(self.dilation) > 1 and any(self.padding) and largest.isinf().any():
            raise ValueError(
                f"MaxPool2d: on an input of {values.shape[-2]}x{values.shape[-1]} a window of "
                f"dilation={self.dilation} holds nothing but padding={self.padding}"
            )
        if drawn and not self.training:
            return self.likeliest(x.mean, x.variance, index.shape)
        return index

    def likeliest(self, mean: Tensor, var: Tensor, shape: torch.Size, nodes: int = 12) -> Tensor:
        """Where each window's entry of greatest P(largest) lies: P_i = E_{t~N_i}[Π_{j≠i} Φ((t−m_j)/σ_j)],
        by Gauss–Hermite quadrature: approximate where the window's variances differ much."""
        inside, places = self.windows(mean, shape)
        means = mean.flatten(-2)[..., places]
        stds = var.flatten(-2)[..., places].clamp_min(torch.finfo(var.dtype).tiny).sqrt()
        points, weights = np.polynomial.hermite_e.hermegauss(nodes)
        chances = []
        for i in range(len(places)):
            chance = torch.zeros(shape, dtype=mean.dtype, device=mean.device)
            for point, weight in zip(points.tolist(), weights.tolist(), strict=True):
                t = means[..., i, :, :] + point * stds[..., i, :, :]
                log_below = torch.special.log_ndtr((t.unsqueeze(-3) - means) / stds).where(inside, 0.0)
                chance += weight * torch.exp(log_below.sum(-3) - log_below[..., i, :, :])
            chances.append(chance.where(inside[i], -1.0))
        best = torch.stack(chances, -3).argmax(-3, keepdim=True)
        return places.expand_as(means).gather(-3, best).squeeze(-3)

    def windows(self, x: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """(K, H′, W′): where in the plane each window's entries lie, and whether they do or are padding."""
        rows, columns = (
            torch.arange(n, device=x.device) * self.stride[axis]
            - self.padding[axis]
            + torch.arange(self.kernel_size[axis], device=x.device)[:, None] * self.dilation[axis]
            for axis, n in enumerate(shape[-2:])
        )
        rows, columns = rows[:, None, :, None], columns[:, None, :]
        height, width = x.shape[-2:]
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        return inside.flatten(0, 1), torch.where(inside, rows * width + columns, 0).flatten(0, 1)
