"""Calibrating the prior: before anything is learned, a network's scale is fitted to a few of its inputs.

`calibrate_prior` does five things, in this order. Weights whose prior is the user's own (`GaussianParameter.given`)
stay as they are.

1.  Means of hidden weights get He et al.'s scale, 2/fan_in, which keeps a ReLU network's signal alive through its
    depth; biases get mean zero. Heads, the layers behind which no other has weights, keep 1/fan_in.
2.  Hidden layers whose outputs' means differ by less than `SPREAD` from input to input are scaled up to it,
weights'
    means and standard deviations alike: with average pooling most of a unit is what all inputs have in common, and
    the messages have little to tell inputs apart by. Layers that spread more than `LARGEST_SPREAD`, because the
    inputs have another scale than 1, are scaled down. (Mishkin and Matas, 2016, scale ordinary networks layer by
    layer to data; here it is the part that depends on the input that counts.)
3.  One factor on all variances gives the predictions the targets' own variance, 1 for the ±1 codes of classes and
for
    standardised targets. With much less the first errors look impossible, with much more they say little.
4.  Of each hidden layer's E[w²] no more than 4/L may be variance, L the number of layers with weights. A norm
divides
    by the whole spread of its units, that of their means and their variances alike. If a share r of a layer's
    weights' second moment is variance, the share of its units' spread that is signal, 1 − ρ, becomes (1 − r)(1 − ρ)
    behind it: with r = ⅔, which step 3 alone finds for ResNet18, nothing of an image is left behind eighteen
    layers.
5.  What the predictions then lack of the targets' variance the heads get.

All of it is one factor on the means and one on the variances of each parameter, which the parameter keeps: a second
call takes them back first, and ends where the first one did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.checks import require_positive, require_values
from torchtagi.compat import pytree
from torchtagi.gaussian import Gaussian
from torchtagi.inference.buffers import buffers_kept
from torchtagi.nn.layer import Layer
from torchtagi.parameter import GaussianParameter, gaussian_parameters

LARGEST_SPREAD = 1.0  # the same log has 2, for inputs of other scales
SPREAD = 0.25  # results/ablation/prior_spread.jsonl has it beside 0.5 and none
SIGNAL = 4.0  # so that about e⁻⁴ of a unit's spread is signal behind all layers, and more where shortcuts are short

Inputs = Tensor | Gaussian


def calibrate_prior(net: nn.Module, inputs: Inputs, target_var: float = 1.0) -> None:
    """Fit the prior of a network that has not learned yet to a handful of its inputs, say 16, and to the variance
    of its targets; see the head of this file. Running statistics are left as they were.

    The network may have several heads, and parts that stay as they are; it is unchanged if it is refused.
    """
    require_values("inputs", inputs.mean if isinstance(inputs, Gaussian) else inputs)
    require_positive("target_var", target_var)
    parameters = gaussian_parameters([net])
    if not parameters:
        raise ValueError("calibrate_prior: the network has no GaussianParameter; tagi.convert(net) gives it some")
    if any(parameter.learned for parameter in parameters):
        raise ValueError(
            "calibrate_prior: the network has learned already, and what it has learned is no prior any more; "
            "calibrate a new network, or none"
        )
    free = [parameter for parameter in parameters if not parameter.given]
    if not free:
        return
    layers, heads = layers_and_heads(net, inputs)
    hidden = [layer for layer in layers if layer not in heads and is_free(layer)]
    with torch.no_grad(), buffers_kept(net), restored_on_error(parameters):
        for parameter in free:
            mean_factor, var_factor = parameter.calibration
            scale(parameter, 1 / mean_factor, 1 / var_factor)
        use_he_scale(hidden, layers)
        if len(inputs) > 1:
            spread_signal(
                net, inputs, {layer: SPREAD if layer in hidden else 0.0 for layer in layers if is_free(layer)}
            )
        whole = len(free) == len(parameters)
        match_variance(net, inputs, free, target_var, required=whole)
        if limit_variance(hidden, SIGNAL / max(len(layers), 1)):
            own = [part for part in gaussian_parameters(heads) if not part.given]
            match_variance(net, inputs, own, target_var, required=whole)


@contextmanager
def restored_on_error(parameters: Sequence[GaussianParameter]) -> Iterator[None]:
    before = [
        (part, part.mean.detach().clone(), part.var.detach().clone(), part.calibration) for part in parameters
    ]
    try:
        yield
    except BaseException:
        for part, mean, var, calibration in before:
            part.mean.copy_(mean)
            part.var.copy_(var)
            part.calibration = calibration
        raise


def scale(parameter: GaussianParameter, mean_factor: float, var_factor: float) -> None:
    parameter.mean.mul_(mean_factor)
    parameter.var.mul_(var_factor)
    before = parameter.calibration
    parameter.calibration = before[0] * mean_factor, before[1] * var_factor


def is_free(layer: Layer) -> bool:
    return layer.weight is not None and not layer.weight.given


def layers_and_heads(net: nn.Module, inputs: Inputs) -> tuple[list[Layer], set[Layer]]:
    """The layers with weights that a forward pass calls, in the order of their first calls, and the heads among
    them, behind which no other layer has weights on the way to some output."""
    called: dict[Layer, None] = {}
    made: dict[Any, Layer] = {}

    def note(layer: Layer, arguments: Any, z: Gaussian) -> None:
        called.setdefault(layer)
        made[z.mean.grad_fn] = layer

    watches = [part.register_forward_hook(note) for part in net.modules() if is_weighted(part)]
    frozen = [mean for mean in (part.mean for part in gaussian_parameters([net])) if not mean.requires_grad]
    try:
        for mean in frozen:  # so that there is a graph
            mean.requires_grad_(True)
        with buffers_kept(net), torch.enable_grad():
            outputs = gaussian_outputs(net(inputs.detach()))
    finally:
        for watch in watches:
            watch.remove()
        for mean in frozen:
            mean.requires_grad_(False)
    return list(called), last_layers([output.mean.grad_fn for output in outputs], made)


def is_weighted(part: nn.Module) -> bool:
    return isinstance(part, Layer) and "prior" in part.arguments


def gaussian_outputs(output: Any) -> list[Gaussian]:
    leaves, _ = pytree.tree_flatten(output, is_leaf=lambda leaf: isinstance(leaf, Gaussian))
    found = [leaf for leaf in leaves if isinstance(leaf, Gaussian)]
    if not found:
        raise TypeError(f"calibrate_prior: the network's output holds no Gaussian, got {type(output).__name__}")
    return found


def last_layers(nodes: list[Any], made: dict[Any, Layer]) -> set[Layer]:
    """The layers that a graph meets first on its way back from these nodes."""
    found, seen = set(), set()
    while nodes:
        node = nodes.pop()
        if node in made:
            found.add(made[node])
        elif node is not None and node not in seen:
            seen.add(node)
            nodes += [following for following, _ in node.next_functions]
    return found


def use_he_scale(hidden: Sequence[Layer], layers: Sequence[Layer]) -> None:
    for layer in hidden:
        if layer.prior == "lecun":
            assert layer.weight is not None
            scale(layer.weight, math.sqrt(2), 1.0)
    for layer in layers:
        if layer.bias is not None and not layer.bias.given:
            layer.bias.mean.zero_()


def spread_signal(net: nn.Module, inputs: Inputs, least: dict[Layer, float]) -> None:
    """`least` says by how much the outputs of each layer have to differ."""
    done: set[Layer] = set()

    def spread_outputs(
        layer: Layer, arguments: tuple[Any, ...], named: dict[str, Any], z: Gaussian
    ) -> Gaussian | None:
        if layer in done:
            return None
        done.add(layer)
        spread = z.mean.var(0).mean().sqrt().item()
        factor = min(max(spread, least[layer]), LARGEST_SPREAD) / spread if spread > 0 else 1.0
        if factor == 1:
            return None
        assert layer.weight is not None
        scale(layer.weight, factor, factor**2)
        again: Gaussian = layer(*arguments, **named)
        return again

    watches = [layer.register_forward_hook(spread_outputs, with_kwargs=True) for layer in least]
    try:
        net(inputs)  # each layer sees what those before it say at their new scale
    finally:
        for watch in watches:
            watch.remove()


def match_variance(
    net: nn.Module,
    inputs: Inputs,
    parameters: Sequence[GaussianParameter],
    target_var: float,
    *,
    required: bool,
) -> None:
    """Scale these variances by the one factor that gives the outputs the targets' variance in the mean. Where there
    is none they stay, or are refused."""
    before = [parameter.var.clone() for parameter in parameters]

    def scale_by(factor: float) -> None:
        for parameter, var in zip(parameters, before, strict=True):
            parameter.var.copy_(var * factor)

    def predictive_var(factor: float) -> float:
        scale_by(factor)
        return torch.cat([output.variance.flatten() for output in gaussian_outputs(net(inputs))]).mean().item()

    factor = bisect(predictive_var, target_var)
    scale_by(1.0)
    if factor is not None:
        for parameter in parameters:
            scale(parameter, 1.0, factor)
    if factor is None and required:
        raise ValueError(
            "calibrate_prior: no factor between 1e-6 and 1e6 on the weights' variances gives a predictive variance "
            f"of {target_var} at these inputs; are they of a usual scale? The prior is unchanged"
        )


def bisect(rising: Callable[[float], float], target: float) -> float | None:
    """The factor between 1e-6 and 1e6 at which `rising` is `target`, if there is one."""
    low, high = math.log(1e-6), math.log(1e6)
    if not rising(math.exp(low)) < target < rising(math.exp(high)):
        return None
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(math.exp(middle)) < target else (low, middle)
    return math.exp((low + high) / 2)


def limit_variance(hidden: Sequence[Layer], limit: float) -> bool:
    """Whether anything had to change."""
    changed = False
    for layer in hidden:
        weight = layer.weight
        assert weight is not None
        square = weight.mean.square().mean().item()
        var = weight.var.mean().item()
        if limit < 1 and var / (var + square) > limit * (1 + 1e-4):  # beyond rounding
            scale(weight, 1.0, square * limit / (1 - limit) / var)
            changed = True
    return changed
