"""A prior that fits the data's scale: one factor on all weight variances.

With means drawn at He's scale, the prior's predictive variance depends on depth and width. TAGI learns fastest
where it equals the targets' own variance (1 for the ±1 codes of classes and for standardised targets): much less
and the first innovations look impossible, much more and they say little. `match_prior` finds the factor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchtagi.checks import require_positive, require_values
from torchtagi.gaussian import Gaussian
from torchtagi.nn.layer import Layer
from torchtagi.parameter import GaussianParameter


@torch.no_grad()
def match_prior(net: nn.Module, inputs: Tensor, target_var: float = 1.0) -> float:
    """Scale all weight variances by one factor γ so that the mean prior predictive variance at `inputs` is
    `target_var`; returns γ. A handful of inputs, say 16, is enough. Running statistics are left as they were."""
    require_values("inputs", inputs)
    require_positive("target_var", target_var)
    parameters = [part for part in net.modules() if isinstance(part, GaussianParameter)]
    if not parameters:
        raise ValueError("match_prior: the network has no GaussianParameter")
    prior = [parameter.var.clone() for parameter in parameters]
    running = {name: buffer.clone() for name, buffer in net.named_buffers()}

    def predictive_var(log_factor: float) -> float:
        for parameter, var in zip(parameters, prior, strict=True):
            parameter.var.copy_(var * math.exp(log_factor))
        out: Gaussian = net(inputs)
        return out.variance.mean().item()

    low, high = math.log(1e-6), math.log(1e6)
    reachable = predictive_var(low) < target_var < predictive_var(high)
    for _ in range(30 if reachable else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if predictive_var(middle) < target_var else (low, middle)
    factor = math.exp((low + high) / 2) if reachable else 1.0
    for parameter, var in zip(parameters, prior, strict=True):
        parameter.var.copy_(var * factor)
    for name, buffer in net.named_buffers():
        buffer.copy_(running[name])
    if not reachable:
        raise ValueError(
            f"no factor between 1e-6 and 1e6 on the weight variances gives a predictive variance of {target_var} "
            "at these inputs; the prior is unchanged"
        )
    return factor


@torch.no_grad()
def use_relu_prior(net: nn.Module) -> None:
    """Weight means N(0, 2/fan_in) but for the last layer, which keeps N(0, 1/fan_in); zero bias means.

    He et al.'s scale keeps a ReLU network's signal alive through its depth. For networks built with the default
    `prior="he"`, whose means have variance 1/fan_in.
    """
    layers = [part for part in net.modules() if isinstance(part, Layer) and "prior" in part.arguments]
    for layer in layers[:-1]:
        if layer.weight is not None:
            layer.weight.mean.mul_(math.sqrt(2))
    for layer in layers:
        if layer.bias is not None:
            layer.bias.mean.zero_()
