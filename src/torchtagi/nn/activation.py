"""Activations linearised at the mean, as in the paper (section 2): a ≈ f(m) + J (z − m), J = f′(m).

forward     E[a] = f(m)          var[a] = J² v
backward    J dm                 J² dv
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchtagi.checks import require_positive
from torchtagi.nn.layer import Layer

Moments = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None, Tensor]]

threshold_backward = torch.ops.aten.threshold_backward.default
threshold_backward_into = torch.ops.aten.threshold_backward.grad_input
leaky_relu_backward = torch.ops.aten.leaky_relu_backward.default


class ReLUMoments(torch.autograd.Function):
    """J is 1 above zero and 0 below: one masked copy for each stream, forward and backward."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if getattr(ctx, "owns_input", False):
            out = torch.relu_(mean)
            ctx.save_for_backward(out)
            return out, None if var is None else threshold_backward_into(var, out, 0, grad_input=var)
        out = torch.relu(mean)
        ctx.save_for_backward(out)
        return out, None if var is None else threshold_backward(var, out, 0)

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor, Tensor | None]:
        (out,) = ctx.saved_tensors
        if getattr(ctx, "owns_message", False):
            threshold_backward_into(dmean, out, 0, grad_input=dmean)
            if ctx.needs_input_grad[1]:
                threshold_backward_into(dvar, out, 0, grad_input=dvar)
            return dmean, dvar if ctx.needs_input_grad[1] else None
        return (
            threshold_backward(dmean, out, 0),
            threshold_backward(dvar, out, 0) if ctx.needs_input_grad[1] else None,
        )


class LeakyReLUMoments(torch.autograd.Function):
    """J is 1 above zero and `slope` below."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor | None, slope: float) -> tuple[Tensor, Tensor | None]:
        ctx.slope = slope
        ctx.save_for_backward(mean)
        out = torch.nn.functional.leaky_relu(mean, slope)
        return out, None if var is None else leaky_relu_backward(var, mean, slope**2, False)

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        (mean,) = ctx.saved_tensors
        return (
            leaky_relu_backward(dmean, mean, ctx.slope, False),
            leaky_relu_backward(dvar, mean, ctx.slope**2, False) if ctx.needs_input_grad[1] else None,
            None,
        )


class GainMoments(torch.autograd.Function):
    """Any unit-wise function whose moments and gain J are given by `moments(mean, var)`."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor | None, moments: Moments) -> tuple[Tensor, Tensor | None]:
        out_mean, out_var, gain = moments(mean, var)
        ctx.save_for_backward(gain)
        return out_mean, out_var

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        (gain,) = ctx.saved_tensors
        return gain * dmean, gain.square().mul_(dvar) if ctx.needs_input_grad[1] else None, None


class ReLU(Layer):
    """max(0, z), linearised at the mean."""

    function = ReLUMoments


class LeakyReLU(Layer):
    """z above zero, `negative_slope`·z below, linearised at the mean."""

    function = LeakyReLUMoments
    arguments: ClassVar = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def operands(self) -> tuple[Any, ...]:
        return (self.negative_slope,)


class Unitwise(Layer):
    """An activation that knows its output's mean, variance and gain."""

    function = GainMoments

    def operands(self) -> tuple[Any, ...]:
        return (self.moments,)

    def moments(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        raise AssertionError("each unit-wise activation defines its moments")


def linearised(value: Tensor, slope: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    return value, None if var is None else slope.square().mul_(var), slope


class Tanh(Unitwise):
    """tanh, linearised at the mean."""

    def moments(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        value = torch.tanh(mean)
        return linearised(value, 1 - value.square(), var)


class Sigmoid(Unitwise):
    """1/(1 + exp(−z)), linearised at the mean."""

    def moments(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        value = torch.sigmoid(mean)
        return linearised(value, value * (1 - value), var)


class Softplus(Unitwise):
    """log(1 + exp(βz))/β, linear above `threshold` as in torch; linearised at the mean."""

    arguments: ClassVar = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        require_positive("beta", beta)
        self.beta, self.threshold = beta, threshold

    def moments(self, mean: Tensor, var: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        value = torch.nn.functional.softplus(mean, self.beta, self.threshold)
        slope = torch.where(mean * self.beta > self.threshold, 1.0, torch.sigmoid(self.beta * mean))
        return linearised(value, slope, var)
