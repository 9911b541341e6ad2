"""Gradients of each example of a batch, and the mean of their squares, exactly and without a loop over examples.

n example, o output, i input (for a convolution: channel and position in the kernel), l position in the image;
a = a layer's input, g = the gradient of the summed loss at its output. Example n's gradient is

    linear:       G[n, o, i] = g[n, o] a[n, i]                 Σ_n G² = (g²)ᵀ a²: never formed
    convolution:  G[n, o, i] = Σ_l g[n, o, l] a[n, i, l]       one small product an example, then squared
    bias:         G[n, o]    = Σ_l g[n, o, l]

One backward pass gives g for all layers; it skips the weights' own gradients, which come from G.
With batch norm an example's loss depends on the others; G is then its share of the batch's gradient, as in VOGN.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNK_NUMBERS = 1 << 19
"""Of patches and G at a time: 2 MB, which stay in the cache (results/ablation/per_example.jsonl)."""

Sums = dict[Tensor, tuple[Tensor, Tensor]]
"""Σ_n G and Σ_n G² of parameters."""


class Moments(NamedTuple):
    """Over a batch: the mean gradient of each parameter and the mean of its squared per-example gradients."""

    losses: Tensor
    mean: list[Tensor]
    mean_square: list[Tensor]


def gradient_moments(net: nn.Module, losses: Callable[[], Tensor]) -> Moments:
    """`losses` calls `net` once and returns the loss of each example, (N,)."""
    layers = weighted_layers(net)
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if module in seen:
            raise ValueError(f"per-example gradients need each layer called once; {module} was called again")
        seen[module] = (inputs[0].detach(), output)

    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        each = losses()
    finally:
        for handle in handles:
            handle.remove()
    grads = torch.autograd.grad(each.sum(), [seen[layer][1] for layer in layers])
    found: Sums = {}
    for layer, grad in zip(layers, grads, strict=True):
        a = seen[layer][0]
        found |= linear_sums(layer, a, grad) if isinstance(layer, nn.Linear) else conv_sums(layer, a, grad)
    means, squares = ([found[p][k] / len(each) for p in net.parameters()] for k in range(2))
    return Moments(each.detach(), means, squares)


def weighted_layers(net: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    """The layers that have parameters; ValueError if there are others than linear and plain convolutions."""
    layers: list[nn.Linear | nn.Conv2d] = []
    for name, part in net.named_modules():
        if isinstance(part, nn.Linear) or (isinstance(part, nn.Conv2d) and is_plain(part)):
            layers.append(part)
        elif any(True for _ in part.parameters(recurse=False)):
            raise ValueError(f"per-example gradients are not known for {name or 'the network'}, {part}")
    return layers


def is_plain(layer: nn.Conv2d) -> bool:
    plain = (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
    return plain and not isinstance(layer.padding, str)


def linear_sums(layer: nn.Linear, a: Tensor, g: Tensor) -> Sums:
    sums = {layer.weight: (g.t() @ a, g.square().t() @ a.square())}
    if layer.bias is not None:
        sums[layer.bias] = (g.sum(0), g.square().sum(0))
    return sums


def conv_sums(layer: nn.Conv2d, a: Tensor, g: Tensor) -> Sums:
    weight = layer.weight
    outputs, channels, rows, columns = weight.shape
    total, squares = a.new_zeros(2, outputs, rows * columns * channels)
    numbers = weight.numel() + weight[0].numel() * g[0, 0].numel()
    for part, grad in zip(*(t.split(max(1, CHUNK_NUMBERS // numbers)) for t in (a, g)), strict=True):
        per_example = torch.bmm(grad.flatten(2), patches(layer, part))
        total += per_example.sum(0)
        squares += per_example.square_().sum(0)
    as_weight = [t.view(outputs, rows, columns, channels).permute(0, 3, 1, 2) for t in (total, squares)]
    sums = {weight: (as_weight[0], as_weight[1])}
    if layer.bias is not None:
        per_bias = g.sum((2, 3))
        sums[layer.bias] = (per_bias.sum(0), per_bias.square().sum(0))
    return sums


def patches(layer: nn.Conv2d, a: Tensor) -> Tensor:
    """What each output position sees, (N, position, kernel row · kernel column · channel).

    With channels last a kernel's row is one run of memory, and the copy is faster than `functional.unfold`'s.
    """
    assert not isinstance(layer.padding, str)
    (pad_h, pad_w), (step_h, step_w), (kernel_h, kernel_w) = layer.padding, layer.stride, layer.kernel_size
    padded = functional.pad(a.permute(0, 2, 3, 1), (0, 0, pad_w, pad_w, pad_h, pad_h)).contiguous()
    view = padded.unfold(1, kernel_h, step_h).unfold(2, kernel_w, step_w).permute(0, 1, 2, 4, 5, 3)
    return view.flatten(3).flatten(1, 2)
