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

A mean pass (`nn.mean_pass`) knows only the second part of σ². The first is a share of it that changes slowly, and
is what the last full pass saw: σ² = (1 + ρ) Σ (m − μ)²/A, ρ = Σ v/Σ (m − μ)². So a mean pass is torch's own norm
with γ/√(1 + ρ) for γ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor
from torch.nn import functional

from torchtagi import distributed
from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.nn import mean_pass
from torchtagi.nn.layer import Layer, Place, apply_function, require_sizes
from torchtagi.parameter import GaussianParameter, Positions

LARGEST_SHARE = 1e6  # of variances in a channel whose means do not differ


@dataclass(frozen=True)
class Pool:
    """The units that were normalised together, for a message that moves their statistics."""

    dims: tuple[int, ...]
    count: float
    divisor: float  # count − correction
    group: distributed.Group | None  # the processes whose units they are

    def answer(self, message: Tensor, unit: Tensor) -> Tensor:
        """u − Σu/A − â Σ(u â)/(A − correction)"""
        sums = torch.stack([message.sum(self.dims, keepdim=True), (message * unit).sum(self.dims, keepdim=True)])
        if self.group is not None:
            self.group.sum_(sums)
        return torch.addcmul(message - sums[0] / self.count, unit, sums[1] / -self.divisor)


class NormMoments(torch.autograd.Function):
    """â and v̂, followed by a Gaussian γ and β if there are any; without a `pool` the statistics get no message."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        var: Tensor | None,
        centre: Tensor,
        scale: Tensor,
        weight: Tensor | None,
        weight_var: Tensor,
        bias: Tensor,
        bias_var: Tensor,
        pool: Pool | None,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.pool = pool
        unit = torch.addcmul(-centre * scale, mean, scale)
        if weight is None:
            ctx.save_for_backward(unit if pool is not None else None, None, scale, None)
            return unit, None if var is None else var * scale.square()
        ctx.save_for_backward(mean, centre, scale, weight)
        out_mean = torch.addcmul(bias, unit, weight)
        out_var = torch.addcmul(bias_var, unit.square_(), weight_var)
        if var is not None:
            out_var.addcmul_(var, torch.addcmul(weight_var, weight, weight) * scale.square())
        return out_mean, out_var

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        unit, centre, scale, weight = ctx.saved_tensors
        pool, asks = ctx.pool, ctx.needs_input_grad
        gain = scale if weight is None else weight * scale
        dx = dx_var = dweight = dweight_var = dbias = dbias_var = None
        if weight is not None and (asks[4] or asks[5] or pool is not None):
            unit = torch.addcmul(-centre * scale, unit, scale)  # a γ is sent â, but what was kept is m
        if asks[0]:
            dunit = dmean if weight is None or pool is None else dmean * weight
            dx = dmean * gain if pool is None else pool.answer(dunit, unit) * scale
        if asks[1]:
            dx_var = dvar * gain.square()
        if asks[4] or asks[5]:
            dweight = (dmean * unit).sum_to_size(weight.shape)
            dweight_var = unit.square_().mul_(dvar).sum_to_size(weight.shape)
        if asks[6] or asks[7]:
            dbias, dbias_var = dmean.sum_to_size(weight.shape), dvar.sum_to_size(weight.shape)
        return dx, dx_var, None, None, dweight, dweight_var, dbias, dbias_var, None


class NormalisedMeans(torch.autograd.Function):
    """γ â + β of means, by torch's kernels, which know statistics of one process only: they are given those of all,
    and their backward half is taken apart at its sums. (That is faster than the whole, too.)"""

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        centre: Tensor,
        variance: Tensor,
        eps: float,
        pool: Pool,
    ) -> Tensor:
        ctx.save_for_backward(mean, weight, centre, variance)
        ctx.eps, ctx.pool, ctx.has_bias = eps, pool, bias is not None
        if not len(mean):  # as another process may have some
            return mean.clone()
        return torch.native_batch_norm(mean, weight, bias, centre, variance, False, 0.0, eps)[0]

    @staticmethod
    def backward(ctx: Any, message: Tensor) -> tuple[Tensor | None, ...]:
        mean, weight, centre, variance = ctx.saved_tensors
        sums = weight.new_zeros(2, len(weight))
        if len(mean):
            if message.stride() != mean.stride():  # which torch's kernel gets wrong for one sample
                message = torch.empty_like(mean).copy_(message)
            held = weight, centre, variance, None, None, False, ctx.eps, [False, True, True]
            sums = torch.stack(torch.ops.aten.native_batch_norm_backward(message, mean, *held)[1:])
        dweight, dbias = sums.clone() if ctx.pool.group is not None else sums
        if ctx.pool.group is not None:
            ctx.pool.group.sum_(sums)
        # u γ/σ − (γ/σ)(Σu + â Σ(u â))/A, with â = (m − μ)/σ
        scale = torch.rsqrt(variance + ctx.eps)
        gain = weight * scale
        slope, level = (gain * part / -ctx.pool.count for part in sums)
        slope = slope * scale
        shape = (-1, *(1,) * (mean.ndim - 2))
        level, slope, gain = (part.view(shape) for part in (level - slope * centre, slope, gain))
        dx = torch.addcmul(level, message, gain).addcmul_(mean, slope)
        return dx, dweight, dbias if ctx.has_bias else None, None, None, None, None


class Norm(Layer):
    """Shared by both norms, which take two arguments beside torch's own:

    `correction`  1 for the unbiased variance of the authors' code; the paper's eq. 3 has 0.
    `differentiate_statistics` lets the message know that they move with the units; False holds them (eq. 5).
    """

    variance_share: Tensor
    """ρ of the last full pass in training."""
    eps: float
    correction: int
    differentiate_statistics: bool
    layout: Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]]
    """For inputs of so many dimensions: those that are normalised together, and the shape of γ and β."""

    def add_parameters(self, shape: tuple[int, ...], weight: bool, bias: bool, **options: Any) -> None:
        """γ ~ N(1, 1/units) and β ~ N(0, 1/units), the authors' prior. A γ without β keeps β at zero."""
        if not self.eps >= 0:
            raise ValueError(f"eps must not be negative, got {self.eps}")
        var = 1 / math.prod(shape)
        like = {name: options.get(name) for name in ("device", "dtype")}
        self.register_buffer("variance_share", torch.zeros(self.share_shape(), **like))
        self.weight = GaussianParameter(shape, **options).set_(1.0, var, given=False) if weight else None
        self.bias = GaussianParameter(shape, **options).set_(0.0, var, given=False) if weight and bias else None

    def share_shape(self) -> tuple[int, ...]:
        """Of ρ: one number, for samples come and go, or one for each channel."""
        return ()

    def mean_needs_var(self) -> bool:
        return not self.differentiate_statistics  # as torch's own norms do, which mean passes use

    def statistics(self, x: Gaussian) -> tuple[Tensor, Tensor, Pool | None]:
        """μ and σ² to normalise by, and the units they are of; None if they are given."""
        return self.mixture(x)

    def pooled_over(self) -> distributed.Group | None:
        """The processes whose units are normalised together with this one's."""
        return None

    def mixture(self, x: Gaussian) -> tuple[Tensor, Tensor, Pool]:
        """μ and σ² of eq. 3. A single unit has no spread of its own to divide: the divisor is one at least."""
        dims, _ = self.layout(x.ndim)
        group = self.pooled_over()
        centre = x.mean.mean(dims, keepdim=True)
        spread = (x.mean - centre).square_().sum(dims, keepdim=True)
        own_var = torch.zeros_like(spread) if x.var is None else x.var.sum(dims, keepdim=True)
        count = float(math.prod(x.mean.shape[dim] for dim in dims))
        if group is not None:
            count, centre, spread, own_var = of_all(group, count, centre, spread, own_var)
        if x.var is not None:
            if self.training and not spread.requires_grad:
                own, others = own_var.flatten(), spread.flatten()
                if not self.share_shape():
                    own, others = distributed.everyones(own.sum(), others.sum())
                tiny = torch.finfo(spread.dtype).tiny
                self.variance_share.copy_((own / others.clamp_min(tiny)).clamp_max(LARGEST_SHARE))
            spread = spread + own_var
        divisor = max(count - self.correction, 1)
        return centre, spread / divisor, Pool(dims, count, divisor, group)

    def normalised_means(self, mean: Tensor) -> Tensor:
        """A mean pass, by torch's own norm."""
        raise AssertionError("each norm says what it normalises")

    def affine_means(self, count: float) -> tuple[Tensor, Tensor | None, Tensor]:
        """γ/√(1 + ρ) and β, and 1/√(1 + ρ) itself, for statistics of so many units."""
        scale = torch.rsqrt(1 + self.variance_share) * math.sqrt(max(count - self.correction, 1) / count)
        weight, bias = (None if part is None else part.mean for part in (self.weight, self.bias))
        return scale if weight is None else weight * scale, bias, scale

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        x = as_gaussian(x)
        self.check_input(x.mean, x.var)
        if mean_pass.state.active:
            return Gaussian.trusted(self.normalised_means(x.mean), None)
        with torch.no_grad():
            centre, variance, pool = self.statistics(x)
        plain: tuple[Tensor, ...] = ()
        if x.plain is not None and pool is not None:
            plain_centre, plain_variance, _ = self.mixture(x.plain)
            plain = plain_centre, torch.rsqrt(plain_variance + self.eps)
        affine: list[Tensor | None] = [None] * 4
        if self.weight is not None:
            _, shape = self.layout(x.ndim)
            weight, weight_var = self.weight.pair()
            bias = (torch.zeros_like(weight),) * 2 if self.bias is None else self.bias.pair()
            affine = [part.view(shape) for part in (weight, weight_var, *bias)]
        scale = torch.rsqrt(variance + self.eps)
        pool = pool if self.differentiate_statistics else None
        return apply_function(NormMoments, x, centre, scale, *affine, pool, plain=plain)


def of_all(
    group: distributed.Group, count: float, centre: Tensor, spread: Tensor, own_var: Tensor
) -> tuple[float, Tensor, Tensor, Tensor]:
    """How many units of a channel all processes have, their mean, Σ (m − μ)² and Σ v, from each one's own."""
    centre = centre if count else torch.zeros_like(centre)  # of no samples
    mine = torch.stack([torch.full_like(centre, count), centre, spread, own_var])
    counts, centres, spreads, own_vars = group.stacked(mine).unbind(1)
    count = float(counts.flatten(1)[:, 0].sum())
    centre = (counts * centres).sum(0) / count
    spread = spreads.sum(0) + (counts * (centres - centre).square()).sum(0)
    return count, centre, spread, own_vars.sum(0)


class LayerNorm(Norm):
    """`torch.nn.LayerNorm` for Gaussians: normalises each sample over its last dimensions."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        correction: int = 0,
        differentiate_statistics: bool = True,
        **place: Unpack[Place],
    ) -> None:
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
            raise ValueError(f"normalized_shape must be positive whole numbers, got {normalized_shape!r}")
        self.normalized_shape, self.eps, self.elementwise_affine = shape, eps, elementwise_affine
        self.correction, self.differentiate_statistics = correction, differentiate_statistics
        self.add_parameters(shape, elementwise_affine, bias, **place)

    def check_input(self, mean: Tensor, var: Tensor | None) -> None:
        if tuple(mean.shape[-len(self.normalized_shape) :]) != self.normalized_shape:
            raise ValueError(f"LayerNorm: input must end in shape {self.normalized_shape}, got {tuple(mean.shape)}")

    def layout(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(range(-len(self.normalized_shape), 0)), self.normalized_shape

    def normalised_means(self, mean: Tensor) -> Tensor:
        shape = self.normalized_shape
        weight, bias, _ = self.affine_means(math.prod(shape))
        if self.weight is None:
            return functional.layer_norm(mean, shape, eps=self.eps) * weight
        return functional.layer_norm(mean, shape, weight, bias, self.eps)


class BatchNorm(Norm):
    """Normalises each channel over the batch and, for images, over the pixels.

    Arguments as in torch, those of `Norm` and two more:
    `use_running` normalises with the running statistics in training too (after this batch is mixed in), as the
                  authors' code does: batches of different kinds, real and generated images say, then share one
                  scale instead of each being centred on its own.
    `sync`        shares the batch statistics among all processes of the default group. Those that learn together
                  (`distributed.joined`) share them anyway.
    The running statistics start as a copy of the first batch's; without a `momentum` they are those of all batches.
    """

    ranks: ClassVar[tuple[int, ...]]
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    """These three are None without `track_running_stats`."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        correction: int = 0,
        use_running: bool = False,
        sync: bool = False,
        differentiate_statistics: bool = True,
        **place: Unpack[Place],
    ) -> None:
        super().__init__()
        require_sizes(num_features=num_features)
        if use_running and not track_running_stats:
            raise ValueError("use_running=True needs track_running_stats=True")
        self.num_features, self.eps, self.momentum, self.affine = num_features, eps, momentum, affine
        self.track_running_stats, self.use_running, self.sync = track_running_stats, use_running, sync
        self.correction, self.differentiate_statistics = correction, differentiate_statistics
        self.positions = Positions() if 4 in self.ranks else None
        self.add_parameters((num_features,), affine, True, shared=self.positions, **place)
        buffers = {
            "running_mean": torch.zeros(num_features, **place),
            "running_var": torch.ones(num_features, **place),
            "num_batches_tracked": torch.zeros((), device=place.get("device"), dtype=torch.long),
        }
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer if track_running_stats else None)

    def check_input(self, mean: Tensor, var: Tensor | None) -> None:
        if mean.ndim not in self.ranks or mean.shape[1] != self.num_features:
            raise ValueError(
                f"{type(self).__name__}: input must have {' or '.join(map(str, self.ranks))} dimensions and "
                f"{self.num_features} channels in its second, got shape {tuple(mean.shape)}"
            )

    def layout(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (0, *range(2, rank)), (self.num_features, *(1,) * (rank - 2))

    def share_shape(self) -> tuple[int, ...]:
        return (self.num_features,)

    def pooled_over(self) -> distributed.Group | None:
        if self.training and distributed.state.group is not None:
            return distributed.state.group
        return distributed.everybody() if self.sync else None

    def by_running_statistics(self, mean: Tensor) -> Tensor:
        running = self.running_mean.clone(), self.running_var.clone()  # which a later pass changes in place
        weight, bias = (None if part is None else part.mean for part in (self.weight, self.bias))
        return functional.batch_norm(mean, *running, weight, bias, False, 0.0, self.eps)

    def normalised_means(self, mean: Tensor) -> Tensor:
        """Running statistics follow as in a full pass."""
        if not self.training and self.track_running_stats:
            return self.by_running_statistics(mean)
        with torch.no_grad():
            centre, variance, pool = self.statistics_of_means(mean)
        self.require_spread(pool.count)
        weight, bias, scale = self.affine_means(pool.count)
        if self.training and self.track_running_stats:
            with torch.no_grad():
                self.follow_statistics(centre, variance / scale.square())
        if self.use_running:
            return self.by_running_statistics(mean)
        normalised: Tensor = NormalisedMeans.apply(mean, weight, bias, centre, variance, self.eps, pool)
        return normalised

    def statistics_of_means(self, mean: Tensor) -> tuple[Tensor, Tensor, Pool]:
        """Those of all processes."""
        group, count = self.pooled_over(), mean.numel() / self.num_features
        if count:
            centre, variance = torch.batch_norm_update_stats(mean, None, None, 0.0)
        else:
            centre, variance = mean.new_zeros(2, self.num_features)
        if group is not None:
            count, centre, spread, _ = of_all(group, count, centre, variance * count, torch.zeros_like(centre))
            variance = spread / count
        return centre, variance, Pool(self.layout(mean.ndim)[0], count, count, group)

    def require_spread(self, count: float) -> None:
        if count == 1 and self.training and not self.use_running:
            raise ValueError(
                f"{type(self).__name__}: one value in each channel has no spread to normalise by; learn from "
                "more than one sample at a time, or normalise with running statistics (use_running=True)"
            )

    def follow_statistics(self, centre: Tensor, variance: Tensor) -> None:
        """Mix a batch's into the running ones."""
        self.num_batches_tracked += 1
        rate = self.num_batches_tracked.to(centre.dtype).reciprocal()
        if self.momentum is not None:
            rate = torch.where(rate < 1, self.momentum, rate)
        self.running_mean.lerp_(centre, rate)
        self.running_var.lerp_(variance, rate)

    def statistics(self, x: Gaussian) -> tuple[Tensor, Tensor, Pool | None]:
        if self.positions is not None:
            self.positions.count = math.prod(x.shape[2:])
        if self.training or not self.track_running_stats:
            centre, variance, pool = self.mixture(x)
            self.require_spread(pool.count)
            if self.training and self.track_running_stats:
                self.follow_statistics(centre.flatten(), variance.flatten())
            if not self.use_running:
                return centre, variance, pool
        _, shape = self.layout(x.ndim)
        return self.running_mean.view(shape), self.running_var.view(shape), None


class BatchNorm1d(BatchNorm):
    """`torch.nn.BatchNorm1d` for Gaussians: (N, C) or (N, C, L)."""

    ranks: ClassVar = (2, 3)


class BatchNorm2d(BatchNorm):
    """`torch.nn.BatchNorm2d` for Gaussians: (N, C, H, W)."""

    ranks: ClassVar = (4,)
