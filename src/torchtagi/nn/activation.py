"""Activations linearised at the mean, as in the paper (section 2): a ≈ f(m) + J (z − m), J = f′(m).

forward     E[a] = f(m)          var[a] = J² v
backward    J dm                 J² dv
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtagi.nn.layer import Layer

UnitMoments = tuple[Tensor, Tensor, Tensor]
"""Mean and variance of a unit's output, and the gain J."""

threshold_backward = torch.ops.aten.threshold_backward.default
threshold_backward_into = torch.ops.aten.threshold_backward.grad_input
leaky_relu_backward = torch.ops.aten.leaky_relu_backward.default
leaky_relu_backward_into = torch.ops.aten.leaky_relu_backward.grad_input


def scaled(values: Tensor, like: Tensor, factor: float, in_place: bool) -> Any:
    """`values` where `like` is above zero, `factor` times them elsewhere."""
    if factor == 0:  # the faster kernel
        if in_place:
            return threshold_backward_into(values, like, 0, grad_input=values)
        return threshold_backward(values, like, 0)
    if in_place:
        return leaky_relu_backward_into(values, like, factor, False, grad_input=values)
    return leaky_relu_backward(values, like, factor, False)


class ReLUMoments(torch.autograd.Function):
    """J is 1 above zero and `slope` below. Each stream is copied once, and not at all within a chain."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor | None, slope: float) -> tuple[Tensor, Tensor | None]:
        owned = getattr(ctx, "owns_input", False) and slope >= 0
        if slope == 0:  # torch's own ReLU is the faster one
            out = torch.relu_(mean) if owned else torch.relu(mean)
        else:
            out = torch.nn.functional.leaky_relu(mean, slope, owned)
        like = out if slope >= 0 else mean
        ctx.slope = slope
        ctx.save_for_backward(like)
        return out, None if var is None else scaled(var, like, slope**2, owned)

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        (like,) = ctx.saved_tensors
        owned = getattr(ctx, "owns_message", False)
        dx_var = scaled(dvar, like, ctx.slope**2, owned) if ctx.needs_input_grad[1] else None
        return scaled(dmean, like, ctx.slope, owned), dx_var, None


class GainMoments(torch.autograd.Function):
    """Any unit-wise function whose moments and gain J are given by `moments(mean, var)`. A certain unit is the
    limit of no variance, and stays certain."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, var: Tensor | None, moments: Callable[[Tensor, Tensor], UnitMoments]
    ) -> tuple[Tensor, Tensor | None]:
        out_mean, out_var, gain = moments(mean, torch.zeros_like(mean) if var is None else var)
        ctx.save_for_backward(gain)
        return out_mean, None if var is None else out_var

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        (gain,) = ctx.saved_tensors
        return gain * dmean, gain.square().mul_(dvar) if ctx.needs_input_grad[1] else None, None


class ReLU(Layer):
    """max(0, z), linearised at the mean."""

    function = ReLUMoments
    negative_slope = 0.0

    def operands(self) -> tuple[Any, ...]:
        return (self.negative_slope,)


class LeakyReLU(ReLU):
    """z above zero, `negative_slope`·z below, linearised at the mean."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope


class Unitwise(Layer):
    """An activation that knows its output's mean, variance and gain."""

    function = GainMoments
    linearise: Callable[[Tensor], tuple[Tensor, Tensor]]
    """f(m) and f′(m)."""

    def operands(self) -> tuple[Any, ...]:
        return (self.moments,)

    def mean_needs_var(self) -> bool:
        return type(self).moments is not Unitwise.moments

    def moments(self, mean: Tensor, var: Tensor) -> UnitMoments:
        """Linearised; activations with exact moments have their own."""
        value, slope = self.linearise(mean)
        return value, slope.square().mul_(var), slope


class Tanh(Unitwise):
    """tanh, linearised at the mean."""

    def linearise(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.tanh(mean)
        return value, 1 - value.square()


class Sigmoid(Unitwise):
    """1/(1 + exp(−z)), linearised at the mean."""

    def linearise(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.sigmoid(mean)
        return value, value * (1 - value)


class Softplus(Unitwise, torch.nn.Softplus):  # type: ignore[misc]
    """log(1 + exp(βz))/β, linear above `threshold` as in torch; linearised at the mean."""

    def linearise(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.nn.functional.softplus(mean, self.beta, self.threshold)
        return value, torch.where(mean * self.beta > self.threshold, 1.0, torch.sigmoid(self.beta * mean))
