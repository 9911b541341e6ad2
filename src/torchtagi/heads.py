"""A network's last layer: how many outputs it was written with, and as many as a likelihood needs."""

from __future__ import annotations

from typing import Any

from torch import nn

from torchtagi.nn.affine import Affine, ConvolutionLayer, Linear


def last_layer(net: nn.Module, outputs: int | None = None) -> tuple[str, Affine]:
    """The layer with weights that was registered last, or the only one that has so many outputs."""
    layers = [(name, part) for name, part in net.named_modules() if isinstance(part, Affine)]
    if not layers:
        raise ValueError("the network has no layer with weights: Linear, Conv2d or ConvTranspose2d")
    fitting = [entry for entry in layers if outputs_of(entry[1]) == outputs]
    return fitting[0] if len(fitting) == 1 else layers[-1]


def outputs_of(layer: Affine) -> int:
    return layer.out_features if isinstance(layer, Linear) else getattr(layer, "out_channels")  # noqa: B009


def with_outputs(net: nn.Module, written: int, needed: int) -> nn.Module:
    """`net` with a last layer of `needed` outputs: one written with `written` is replaced, with a fresh prior."""
    name, layer = last_layer(net, written)
    outputs = outputs_of(layer)
    if outputs == needed:
        return net
    if outputs != written:
        raise ValueError(
            f"the network's last layer, {name or type(layer).__name__}, has {outputs} outputs, but there are "
            f"{written} classes or targets: write it with {written}"
        )
    options: dict[str, Any] = layer.config()
    options["out_features" if isinstance(layer, Linear) else "out_channels"] = needed
    assert layer.weight is not None
    like = layer.weight.mean
    fresh: Any = type(layer)(**options, device=like.device, dtype=like.dtype)
    fresh.train(layer.training)
    if isinstance(layer, ConvolutionLayer):
        fresh.product.precision = layer.product.precision
    if not name:
        return fresh  # type: ignore[no-any-return]
    parent, _, own = name.rpartition(".")
    setattr(net.get_submodule(parent), own, fresh)
    return net
