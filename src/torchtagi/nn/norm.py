"""Layer and batch normalisation (paper eq. 2-6).

A is the set of units normalised together: a sample's units for layer norm, a channel's units over the batch
for batch norm. Its Gaussian mixture has

    μ = Σ m / A        σ² = [Σ v + Σ (m − μ)²] / A          (eq. 3; A − `correction` in the second divisor)

    forward     â = (m − μ)/σ,  v̂ = v/σ²                   (eq. 4)
                E[z] = γ â + β,  var[z] = (γ² + V_γ) v̂ + V_γ â² + V_β     with a Gaussian affine γ, β
    backward    to a:  (γ/σ) dm           (γ/σ)² dv         (eq. 5: the statistics are held constant)
                to γ:  Σ dm·â             Σ dv·â²
                to β:  Σ dm               Σ dv

Held constant, the statistics seem to leave it to the units to shift and to scale; the next forward pass takes both
away again, so what asked for them asks on, and the weights in front of the norm grow from step to step. With
`differentiate_statistics`, the default, the message knows that μ and σ move with the units: u = γ dm becomes

    u − Σu/A − â Σ(u â)/(A − correction)       before it is divided by σ,

the transposed Jacobian of â at the means. The variance's message keeps its 1/σ², which is right to order 1/A.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch import distributed as dist

from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.nn.layer import Layer, apply_function, require_sizes
from torchtagi.parameter import GaussianParameter, Positions


@dataclass(frozen=True)
class Pool:
    """The units that were normalised together, for a message that moves their statistics."""

    dims: tuple[int, ...]
    count: float
    divisor: float
    """count − correction."""
    shared: bool
    """Among all processes."""

    def answer(self, message: Tensor, unit: Tensor) -> Tensor:
        """u − Σu/A − â Σ(u â)/(A − correction)"""
        sums = torch.stack([message.sum(self.dims, keepdim=True), (message * unit).sum(self.dims, keepdim=True)])
        if self.shared:
            dist.all_reduce(sums)
        return torch.addcmul(message - sums[0] / self.count, unit, sums[1] / -self.divisor)


class ScaleMoments(torch.autograd.Function):
    """â and v̂; without a `pool` the statistics get no message."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, var: Tensor | None, centre: Tensor, scale: Tensor, pool: Pool | None
    ) -> tuple[Tensor, Tensor | None]:
        unit = torch.addcmul(-centre * scale, mean, scale)
        ctx.save_for_backward(scale, *([] if pool is None else [unit]))
        ctx.pool = pool
        return unit, None if var is None else var * scale.square()

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        scale, *unit = ctx.saved_tensors
        if ctx.pool is not None:
            dmean = ctx.pool.answer(dmean, unit[0])
        return dmean * scale, dvar * scale.square() if ctx.needs_input_grad[1] else None, None, None, None


class ScaleAffineMoments(torch.autograd.Function):
    """The same, followed by a Gaussian γ and β."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        var: Tensor | None,
        centre: Tensor,
        scale: Tensor,
        weight: Tensor,
        weight_var: Tensor,
        bias: Tensor,
        bias_var: Tensor,
        pool: Pool | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(mean, centre, scale, weight)
        ctx.affine_shape, ctx.pool = weight.shape, pool
        unit = torch.addcmul(-centre * scale, mean, scale)
        out_mean = torch.addcmul(bias, unit, weight)
        out_var = torch.addcmul(bias_var, unit.square_(), weight_var)
        if var is not None:
            out_var.addcmul_(var, torch.addcmul(weight_var, weight, weight) * scale.square())
        return out_mean, out_var

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        mean, centre, scale, weight = ctx.saved_tensors
        asks = ctx.needs_input_grad
        gain = weight * scale
        dx = dmean * gain if asks[0] and ctx.pool is None else None
        dx_var = dvar * gain.square() if asks[1] else None
        dweight = dweight_var = None
        if asks[4] or asks[5] or (asks[0] and ctx.pool is not None):
            unit = torch.addcmul(-centre * scale, mean, scale)
            if asks[0] and ctx.pool is not None:
                dx = ctx.pool.answer(dmean * weight, unit) * scale
        if asks[4] or asks[5]:
            dweight = (dmean * unit).sum_to_size(ctx.affine_shape)
            dweight_var = (unit.square_().mul_(dvar)).sum_to_size(ctx.affine_shape)
        dbias = dmean.sum_to_size(ctx.affine_shape) if asks[6] else None
        dbias_var = dvar.sum_to_size(ctx.affine_shape) if asks[7] else None
        return dx, dx_var, None, None, dweight, dweight_var, dbias, dbias_var, None


def mixture(x: Gaussian, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """μ and the sum Σ v + Σ (m − μ)² over `dims`, kept as ones."""
    centre = x.mean.mean(dims, keepdim=True)
    spread = (x.mean - centre).square_().sum(dims, keepdim=True)
    if x.var is not None:
        spread += x.var.sum(dims, keepdim=True)
    return centre, spread


class Norm(Layer):
    """Shared by both norms: the affine part and the scaling."""

    eps: float
    correction: int
    differentiate_statistics: bool

    def check_options(self, eps: float, correction: int) -> None:
        if not eps >= 0:
            raise ValueError(f"eps must not be negative, got {eps}")
        if correction < 0:
            raise ValueError(f"correction must not be negative, got {correction}")

    def add_affine(self, shape: tuple[int, ...], weight: bool, bias: bool, units: int, **options: Any) -> None:
        """γ ~ N(1, 1/units) and β ~ N(0, 1/units), the authors' prior. A γ without β keeps β at zero."""
        self.weight = self.bias = None
        if weight:
            self.weight = GaussianParameter(shape, **options).fill(1.0, 1.0 / units)
            self.bias = GaussianParameter(shape, **options).fill(0.0, 1.0 / units) if bias else None

    def scale(
        self,
        x: Gaussian,
        centre: Tensor,
        variance: Tensor,
        shape: tuple[int, ...],
        pool: Pool | None,
        plain: tuple[Tensor, Tensor] | None,
    ) -> Gaussian:
        """`plain` are centre and variance as differentiable functions of x, where x has plain moments."""
        scale = torch.rsqrt(variance + self.eps)
        statistics = () if plain is None else (plain[0], torch.rsqrt(plain[1] + self.eps))
        if self.weight is None:
            return apply_function(ScaleMoments, x, centre, scale, pool, plain=statistics)
        weight, weight_var = self.weight.mean.view(shape), self.weight.var.view(shape)
        if self.bias is None:
            bias, bias_var = torch.zeros_like(weight), torch.zeros_like(weight)
        else:
            bias, bias_var = self.bias.mean.view(shape), self.bias.var.view(shape)
        operands = (centre, scale, weight, weight_var, bias, bias_var, pool)
        return apply_function(ScaleAffineMoments, x, *operands, plain=statistics)

    def divisor(self, count: float) -> float:
        """A − correction, at least one: a single unit has no spread of its own to divide."""
        return max(count - self.correction, 1)


class LayerNorm(Norm):
    """`torch.nn.LayerNorm` for Gaussians: normalises each sample over its last dimensions.

    `channel_affine=True` keeps one γ and β for each channel of (C, H, W), as the authors' code does, instead
    of one for each unit.
    """

    arguments: ClassVar = (
        *("normalized_shape", "eps", "elementwise_affine", "bias"),
        *("channel_affine", "correction", "differentiate_statistics"),
    )

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        channel_affine: bool = False,
        correction: int = 0,
        differentiate_statistics: bool = True,
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        if not shape:
            raise ValueError(f"normalized_shape must name at least one dimension, got {normalized_shape!r}")
        for size in shape:
            require_sizes(normalized_shape=size)
        self.check_options(eps, correction)
        self.normalized_shape, self.eps, self.correction = shape, eps, correction
        self.elementwise_affine, self.channel_affine = elementwise_affine, channel_affine
        self.differentiate_statistics = differentiate_statistics
        self.affine_shape = (shape[0], *(1,) * (len(shape) - 1)) if channel_affine else shape
        units = 1
        for size in self.affine_shape:
            units *= size
        positions = Positions() if channel_affine else None
        if positions is not None:
            positions.count = math.prod(shape[1:])
        self.add_affine(
            *(self.affine_shape, elementwise_affine, bias, units), shared=positions, device=device, dtype=dtype
        )

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        x = as_gaussian(x)
        rank = len(self.normalized_shape)
        if tuple(x.shape[-rank:]) != self.normalized_shape:
            raise ValueError(f"LayerNorm: input must end in shape {self.normalized_shape}, got {tuple(x.shape)}")
        dims = tuple(range(-rank, 0))
        with torch.no_grad():
            centre, spread = mixture(x, dims)
            count = x.mean[0].numel() if x.ndim == rank + 1 else x.mean.numel() // spread.numel()
            variance = spread / self.divisor(count)
        pool = Pool(dims, count, self.divisor(count), False) if self.differentiate_statistics else None
        plain = None
        if x.plain is not None:
            plain_centre, plain_spread = mixture(x.plain, dims)
            plain = plain_centre, plain_spread / self.divisor(count)
        return self.scale(x, centre, variance, self.affine_shape, pool, plain)


class BatchNorm(Norm):
    """Normalises each channel over the batch and, for images, over the pixels.

    Arguments as in torch, and four more:
    `correction`  1 for the unbiased variance of the authors' code; the paper's eq. 3 has 0.
    `use_running` normalises with the running statistics in training too (after this batch is mixed in), as the
                  authors' code does: batches of different kinds, real and generated images say, then share one
                  scale instead of each being centred on its own.
    `sync`        shares the batch statistics among all processes of the default group.
    `differentiate_statistics` lets the message know that they move with the units; False holds them (eq. 5).
    The running statistics start as a copy of the first batch's.
    """

    arguments: ClassVar = (
        *("num_features", "eps", "momentum", "affine", "track_running_stats"),
        *("correction", "use_running", "sync", "differentiate_statistics"),
    )
    ranks: ClassVar[tuple[int, ...]]
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        correction: int = 0,
        use_running: bool = False,
        sync: bool = False,
        differentiate_statistics: bool = True,
    ) -> None:
        super().__init__()
        require_sizes(num_features=num_features)
        self.check_options(eps, correction)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum must lie between 0 and 1, got {momentum}")
        if use_running and not track_running_stats:
            raise ValueError("use_running=True needs track_running_stats=True")
        self.num_features, self.eps, self.momentum, self.affine = num_features, eps, momentum, affine
        self.track_running_stats, self.correction = track_running_stats, correction
        self.use_running, self.sync = use_running, sync
        self.differentiate_statistics = differentiate_statistics
        self.positions = Positions() if 4 in self.ranks else None
        self.add_affine(
            *((num_features,), affine, True, num_features), shared=self.positions, device=device, dtype=dtype
        )
        for name, value in (("running_mean", 0.0), ("running_var", 1.0)):
            running = torch.full((num_features,), value, device=device, dtype=dtype)
            self.register_buffer(name, running if track_running_stats else None)
        batches = torch.zeros((), dtype=torch.long, device=device) if track_running_stats else None
        self.register_buffer("num_batches_tracked", batches)

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        x = as_gaussian(x)
        if x.ndim not in self.ranks or x.shape[1] != self.num_features:
            raise ValueError(
                f"{type(self).__name__}: input must have {' or '.join(map(str, self.ranks))} dimensions and "
                f"{self.num_features} channels in its second, got shape {tuple(x.shape)}"
            )
        shape = (1, self.num_features, *(1,) * (x.ndim - 2))
        if self.positions is not None:
            self.positions.count = math.prod(x.shape[2:])
        pool = plain = None
        if x.plain is not None and (self.training or self.running_mean is None) and not self.use_running:
            plain = self.batch_statistics(x.plain)[:2]
        with torch.no_grad():
            if self.training or self.running_mean is None:
                centre, variance, pool = self.batch_statistics(x)
                if self.training and self.running_mean is not None:
                    self.track(centre.flatten(), variance.flatten())
            if self.running_mean is not None and (self.use_running or not self.training):
                assert self.running_var is not None
                centre, variance, pool = self.running_mean.view(shape), self.running_var.view(shape), None
        return self.scale(x, centre, variance, shape, pool if self.differentiate_statistics else None, plain)

    def batch_statistics(self, x: Gaussian) -> tuple[Tensor, Tensor, Pool]:
        dims = (0, *range(2, x.ndim))
        centre, spread = mixture(x, dims)
        count = float(x.mean.numel() // self.num_features)
        shared = self.sync and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if shared:
            mine = torch.stack([torch.full_like(centre, count), centre, spread])
            everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
            dist.all_gather(everyones, mine)
            counts, centres, spreads = torch.stack(everyones).unbind(1)
            count = float(counts[:, 0, 0].sum()) if counts.ndim == 3 else float(counts.select(2, 0).sum())
            centre = (counts * centres).sum(0) / count
            spread = spreads.sum(0) + (counts * (centres - centre).square()).sum(0)
        if count == 1 and self.training and not self.use_running:
            raise ValueError(
                f"{type(self).__name__}: one value in each channel has no spread to normalise by; learn from more "
                "than one sample at a time, or normalise with running statistics (use_running=True)"
            )
        return centre, spread / self.divisor(count), Pool(dims, count, self.divisor(count), shared)

    def track(self, centre: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        first = int(self.num_batches_tracked) == 0
        self.running_mean.lerp_(centre, 1.0 if first else self.momentum)
        self.running_var.lerp_(variance, 1.0 if first else self.momentum)
        self.num_batches_tracked += 1


class BatchNorm1d(BatchNorm):
    """`torch.nn.BatchNorm1d` for Gaussians: (N, C) or (N, C, L)."""

    ranks: ClassVar = (2, 3)


class BatchNorm2d(BatchNorm):
    """`torch.nn.BatchNorm2d` for Gaussians: (N, C, H, W)."""

    ranks: ClassVar = (4,)
