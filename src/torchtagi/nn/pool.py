"""Pooling. K is the number of entries of a window.

AvgPool2d, AdaptiveAvgPool2d
                a = (a₁ + … + a_K)/K            E = Σ m/K, var = Σ v/K²      (paper eq. 1)
MaxPool2d       one entry of the window passes on with its mean and variance:
                `stochastic=False`  the entry of largest mean
                `stochastic=True`   Peters & Welling's pooling, named in section 3.1.1: in training an entry is
                                    drawn by its probability of being the largest; in eval the likeliest one
The operations are linear in what passes, so autograd's own backward already carries the messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from torchtagi.gaussian import Gaussian, Moments, as_gaussian, lift
from torchtagi.nn.layer import Layer, Pair, as_pair


def require_rank(name: str, x: Tensor) -> None:
    if x.ndim != 4:
        raise ValueError(f"{name}: input must have shape (N, C, H, W), got {tuple(x.shape)}")


def check_images(layer: AvgPool2d | MaxPool2d, x: Tensor) -> None:
    name = type(layer).__name__
    require_rank(name, x)
    for axis in (0, 1):
        if 2 * layer.padding[axis] > layer.kernel_size[axis]:
            raise ValueError(
                f"{name}: padding={layer.padding} is more than half of kernel_size={layer.kernel_size}"
            )
        reach = layer.dilation[axis] * (layer.kernel_size[axis] - 1) + 1
        beyond = layer.stride[axis] - 1 if layer.ceil_mode else 0  # how far the last window may reach
        if x.shape[2 + axis] + 2 * layer.padding[axis] + beyond < reach:
            raise ValueError(
                f"{name}: an input of {x.shape[2]}x{x.shape[3]} with padding={layer.padding} is smaller than a "
                f"window of kernel_size={layer.kernel_size}"
            )
        if layer.dilation[axis] > 1 and layer.padding[axis] and not every_window_has_an_entry(layer, axis, x):
            raise ValueError(
                f"{name}: on an input of {x.shape[2]}x{x.shape[3]} a window of dilation={layer.dilation} holds "
                f"nothing but padding={layer.padding}"
            )


def every_window_has_an_entry(layer: AvgPool2d | MaxPool2d, axis: int, x: Tensor) -> bool:
    size, kernel, padding = x.shape[2 + axis], layer.kernel_size[axis], layer.padding[axis]
    last = size + 2 * padding - layer.dilation[axis] * (kernel - 1) - 1
    return all(
        any(0 <= start + k * layer.dilation[axis] < size for k in range(kernel))
        for start in range(-padding, last - padding + 1, layer.stride[axis])
    )


Geometry = tuple[Pair, Pair, Pair, bool, bool]  # kernel, stride, padding, ceil_mode, count_include_pad
avg_pool2d_backward = torch.ops.aten.avg_pool2d_backward.default


class AvgPoolMoments(torch.autograd.Function):
    """Windows of `entries` units, all of the same divisor."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, var: Tensor | None, geometry: Geometry, entries: int
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(mean)  # its shape and memory layout are what is needed
        ctx.geometry, ctx.entries = geometry, entries
        return (
            functional.avg_pool2d(mean, *geometry, entries),
            None if var is None else functional.avg_pool2d(var, *geometry, entries**2),
        )

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        (like,) = ctx.saved_tensors
        return (
            avg_pool2d_backward(dmean, like, *ctx.geometry, ctx.entries),
            avg_pool2d_backward(dvar, like, *ctx.geometry, ctx.entries**2) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )


class AvgPool2d(Layer):
    """`torch.nn.AvgPool2d`: windows may overlap; padded zeros count unless `count_include_pad` is False."""

    function: type[torch.autograd.Function] | None = AvgPoolMoments
    output_is_free = True
    arguments: ClassVar = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")

    def __init__(
        self,
        kernel_size: int | Pair,
        stride: int | Pair | None = None,
        padding: int | Pair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = as_pair("kernel_size", kernel_size)
        self.stride = as_pair("stride", self.kernel_size if stride is None else stride)
        self.padding = as_pair("padding", padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        self.dilation = (1, 1)
        if ceil_mode or not count_include_pad:
            self.function = None

    def operands(self) -> tuple[Any, ...]:
        geometry = (self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)
        return geometry, self.kernel_size[0] * self.kernel_size[1]

    def check_input(self, mean: Tensor) -> None:
        check_images(self, mean)

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        if self.function is not None:
            return super().forward(x)
        x = as_gaussian(x)
        self.check_input(x.mean)
        return lift(self.bordered_moments, x)

    def bordered_moments(self, x: Gaussian) -> Moments:
        """Where windows at the border have divisors of their own."""
        geometry: Geometry = self.operands()[0]
        mean = functional.avg_pool2d(x.mean, *geometry)
        if x.var is None:
            return mean, None
        # At the border the divisor is whatever torch used there: (entries covered)/(their average of ones).
        ones = torch.ones_like(x.mean[:1, :1])
        covered = functional.avg_pool2d(ones, *geometry, 1)
        divisor = covered / functional.avg_pool2d(ones, *geometry)
        return mean, functional.avg_pool2d(x.var, *geometry, 1) / divisor.square()


class AdaptiveAvgPool2d(Layer):
    """`torch.nn.AdaptiveAvgPool2d`: as many windows as `output_size` says, of nearly equal size; where one does not
    divide the other, they overlap as torch's do. None keeps the input's size."""

    arguments: ClassVar = ("output_size",)

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        super().__init__()
        sizes = tuple(output_size) if isinstance(output_size, tuple | list) else (output_size, output_size)
        if len(sizes) != 2 or not all(size is None or (isinstance(size, int) and size >= 1) for size in sizes):
            raise ValueError(f"output_size must be one or two positive whole numbers or None, got {output_size!r}")
        self.output_size = sizes

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        x = as_gaussian(x)
        require_rank(type(self).__name__, x.mean)
        return lift(self.window_moments, x)

    def window_moments(self, x: Gaussian) -> Moments:
        mean = functional.adaptive_avg_pool2d(x.mean, self.output_size)
        if x.var is None:
            return mean, None
        heights, widths = (mean.new_tensor(window_sizes(x.shape[axis], mean.shape[axis])) for axis in (2, 3))
        entries = heights[:, None] * widths
        return mean, functional.adaptive_avg_pool2d(x.var, self.output_size) / entries


def window_sizes(size: int, windows: int) -> list[int]:
    """Window i of torch's adaptive pooling reaches from ⌊i·size/windows⌋ to ⌈(i + 1)·size/windows⌉."""
    return [-(-(i + 1) * size // windows) - i * size // windows for i in range(windows)]


class MaxPool2d(Layer):
    """`torch.nn.MaxPool2d`; with `stochastic=True` the pooling of Peters & Welling."""

    arguments: ClassVar = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "stochastic")

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
        self.kernel_size = as_pair("kernel_size", kernel_size)
        self.stride = as_pair("stride", self.kernel_size if stride is None else stride)
        self.padding = as_pair("padding", padding)
        self.dilation = as_pair("dilation", dilation)
        self.ceil_mode, self.stochastic = ceil_mode, stochastic

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        x = as_gaussian(x)
        check_images(self, x.mean)
        with torch.no_grad():
            if not self.stochastic or x.var is None:
                index = self.largest(x.mean)
            elif self.training:
                # The largest of one joint sample falls on each entry with its probability of being the largest.
                index = self.largest(x.sample())
            else:
                index = self.likeliest(x.mean, x.var)
        flat = index.flatten(2)
        return x.map(lambda t: t.flatten(2).gather(2, flat).view(index.shape))

    def largest(self, values: Tensor) -> Tensor:
        """Where in the plane of each channel the window's largest value lies."""
        _, index = functional.max_pool2d(
            values, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, True
        )
        return index

    def likeliest(self, mean: Tensor, var: Tensor, nodes: int = 12) -> Tensor:
        """Where each window's entry of greatest P(largest) lies: P_i = E_{t~N_i}[Π_{j≠i} Φ((t−m_j)/σ_j)],
        by Gauss–Hermite quadrature: approximate where the window's variances differ much."""
        plane = torch.arange(mean.shape[2] * mean.shape[3], device=mean.device, dtype=mean.dtype)
        places = self.windows(plane.view(1, 1, *mean.shape[2:]), fill=-1)
        inside = places >= 0
        means = self.windows(mean, fill=0)
        stds = self.windows(var, fill=1).clamp_min(torch.finfo(var.dtype).tiny).sqrt()
        points, weights = np.polynomial.hermite_e.hermegauss(nodes)
        chances = []
        for i in range(len(means)):
            chance = torch.zeros_like(means[0])
            for point, weight in zip(points.tolist(), weights.tolist(), strict=True):
                t = means[i] + point * stds[i]
                log_below = torch.where(inside, torch.special.log_ndtr((t - means) / stds), 0.0)
                chance += weight * torch.exp(log_below.sum(0) - log_below[i])
            chances.append(torch.where(inside[i], chance, -1.0))
        best = torch.stack(chances).argmax(0, keepdim=True)
        return places.expand_as(means).gather(0, best)[0].long()

    def windows(self, values: Tensor, fill: float) -> Tensor:
        """(K, N, C, H′, W′): each window's entries, `fill` where it reaches over the border."""
        (kh, kw), (sh, sw), (ph, pw), (dh, dw) = self.kernel_size, self.stride, self.padding, self.dilation
        with torch.no_grad():
            height, width = functional.max_pool2d(
                values[:1, :1], self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
            ).shape[2:]
        need_h = (height - 1) * sh + dh * (kh - 1) + 1 - values.shape[2] - ph
        need_w = (width - 1) * sw + dw * (kw - 1) + 1 - values.shape[3] - pw
        padded = functional.pad(values, (pw, max(need_w, 0), ph, max(need_h, 0)), value=fill)
        return torch.stack(
            [
                padded[
                    :,
                    :,
                    i * dh : i * dh + (height - 1) * sh + 1 : sh,
                    j * dw : j * dw + (width - 1) * sw + 1 : sw,
                ]
                for i in range(kh)
                for j in range(kw)
            ]
        )
