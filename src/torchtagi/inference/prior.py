"""A prior that fits the data's scale: one factor on all weight variances.

With means drawn at He's scale, the prior's predictive variance depends on depth and width. TAGI learns fastest
where it equals the targets' own variance (1 for the ±1 codes of classes and for standardised targets): much less
and the first innovations look impossible, much more and they say little. `match_prior` finds the factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.checks import require_positive, require_values
from torchtagi.gaussian import Gaussian
from torchtagi.inference.buffers import buffers_kept
from torchtagi.nn.layer import Layer
from torchtagi.parameter import GaussianParameter

SIGNAL = 4.0  # so that about e⁻⁴ of a unit's spread is signal behind all layers, and more where shortcuts are short

SPREAD = 0.5  # results/ablation/cifar_3conv_prior.jsonl has it beside 1


@torch.no_grad()
def match_prior(
    net: nn.Module, inputs: Tensor, target_var: float = 1.0, *, layers: Sequence[nn.Module] | None = None
) -> float:
    """Scale the weight variances by one factor γ so that the mean prior predictive variance at `inputs` is
    `target_var`; returns γ. A handful of inputs, say 16, is enough. Running statistics are left as they were.
    `layers` are those whose variances are scaled; all unless given."""
    require_values("inputs", inputs)
    require_positive("target_var", target_var)
    among = [net] if layers is None else layers
    parameters = [part for layer in among for part in layer.modules() if isinstance(part, GaussianParameter)]
    if not parameters:
        raise ValueError("match_prior: the network has no GaussianParameter")
    prior = [parameter.var.clone() for parameter in parameters]

    def predictive_var(factor: float) -> float:
        for parameter, var in zip(parameters, prior, strict=True):
            parameter.var.copy_(var * factor)
        out: Gaussian = net(inputs)
        return out.variance.mean().item()

    factor = None
    try:
        with buffers_kept(net):
            factor = bisect(predictive_var, target_var)
    finally:
        for parameter, var in zip(parameters, prior, strict=True):
            parameter.var.copy_(var * (factor or 1.0))
    if factor is None:
        raise ValueError(
            f"no factor between 1e-6 and 1e6 on the weight variances gives a predictive variance of {target_var} "
            "at these inputs; the prior is unchanged"
        )
    return factor


def bisect(rising: Callable[[float], float], target: float) -> float | None:
    """The factor between 1e-6 and 1e6 at which `rising` is `target`, if there is one."""
    low, high = math.log(1e-6), math.log(1e6)
    if not rising(math.exp(low)) < target < rising(math.exp(high)):
        return None
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(math.exp(middle)) < target else (low, middle)
    return math.exp((low + high) / 2)


@torch.no_grad()
def keep_signal(net: nn.Module, inputs: Tensor, target_var: float = 1.0) -> bool:
    """Of each hidden layer's E[w²] let no more than 4/L be variance, L the number of layers with weights; what the
    predictions then lack of `target_var` the last layer gets. Returns whether anything had to change.

    A norm divides by the whole spread of its units, that of their means and their variances alike. If a share r of
    a layer's weights' second moment is variance, the share of its units' spread that is signal, 1 − ρ, becomes
    (1 − r)(1 − ρ) behind it: with r = ⅔, which `match_prior` finds for ResNet18, nothing of an image is left
    behind eighteen layers.
    """
    weighted = called_layers(net, inputs)
    limit = SIGNAL / max(len(weighted), 1)
    changed = False
    for layer in weighted[:-1]:
        weight = layer.weight
        if weight is None or limit >= 1:
            continue
        square = weight.mean.square().mean().item()
        share = weight.var.mean().item() / (weight.var.mean().item() + square)
        if share > limit * (1 + 1e-4):  # beyond rounding
            weight.var.mul_(square * limit / (1 - limit) / weight.var.mean().item())
            changed = True
    if changed:
        match_prior(net, inputs, target_var, layers=weighted[-1:])
    return changed


@torch.no_grad()
def spread_signal(net: nn.Module, inputs: Tensor, std: float = SPREAD) -> list[float]:
    """Scale the weights of each hidden layer, means and standard deviations alike, so that the means of its outputs
    differ by `std` from input to input; returns the factors, in the order in which a forward pass calls the layers.
    Running statistics are left as they were.

    He's scale keeps the size of a network's units, but with average pooling most of it is what all inputs have in
    common, and the messages have little to tell images apart by. Mishkin and Matas (2016) scale ordinary networks
    layer by layer to data; here it is the part that depends on the input that counts.
    """
    require_values("inputs", inputs)
    require_positive("std", std)
    if len(inputs) < 2:
        raise ValueError(f"inputs must be at least two, to differ from each other, got {len(inputs)}")
    hidden = {layer: layer.weight for layer in called_layers(net, inputs)[:-1] if layer.weight is not None}
    before = [(weight.mean.clone(), weight.var.clone()) for weight in hidden.values()]
    factors: dict[Layer, float] = {}

    def scale(layer: Layer, arguments: tuple[Any, ...], named: dict[str, Any], z: Gaussian) -> Gaussian | None:
        if layer in factors:
            return None
        spread = z.mean.var(0).mean().sqrt().item()
        factors[layer] = std / spread if spread > 0 else 1.0
        hidden[layer].mean.mul_(factors[layer])
        hidden[layer].var.mul_(factors[layer] ** 2)
        again: Gaussian = layer(*arguments, **named)
        return again

    watches = [layer.register_forward_hook(scale, with_kwargs=True) for layer in hidden]
    try:
        with buffers_kept(net):
            net(inputs)  # each layer sees what those before it say at their new scale
    except BaseException:
        for weight, (mean, var) in zip(hidden.values(), before, strict=True):
            weight.mean.copy_(mean)
            weight.var.copy_(var)
        raise
    finally:
        for watch in watches:
            watch.remove()
    return [factors[layer] for layer in hidden]


def called_layers(net: nn.Module, inputs: Tensor) -> list[Layer]:
    """The layers with weights that a forward pass calls, in the order of their first calls."""
    called: dict[Layer, None] = {}

    def note(layer: Layer, arguments: Any, z: Any) -> None:
        called.setdefault(layer)

    watches = [layer.register_forward_hook(note) for layer in weighted_layers(net)]
    try:
        with buffers_kept(net):
            net(inputs)
    finally:
        for watch in watches:
            watch.remove()
    return list(called)


def weighted_layers(net: nn.Module) -> list[Layer]:
    return [part for part in net.modules() if isinstance(part, Layer) and "prior" in part.arguments]


@torch.no_grad()
def use_relu_prior(net: nn.Module) -> None:
    """Weight means N(0, 2/fan_in) but for the last layer, which keeps N(0, 1/fan_in); zero bias means.

    He et al.'s scale keeps a ReLU network's signal alive through its depth. For networks built with the default
    `prior="he"`, whose means have variance 1/fan_in.
    """
    layers = weighted_layers(net)
    for layer in layers[:-1]:
        if layer.weight is not None:
            layer.weight.mean.mul_(math.sqrt(2))
    for layer in layers:
        if layer.bias is not None:
            layer.bias.mean.zero_()
