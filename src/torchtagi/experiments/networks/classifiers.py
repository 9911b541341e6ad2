"""The classification networks of Appendix B, exactly as its tables list them.

Our layers have torch's names and arguments, so each builder makes either network: pass `layers=torch.nn` for the
ordinary one that backprop trains. "Pooling" in the paper's tables is average pooling. The output has 11 units,
the nodes of the ten-class tree; an ordinary network has its classes instead.
"""

from __future__ import annotations

from types import ModuleType

from torch import nn as torch_nn

import torchtagi.nn
from torchtagi.nn import Residual


def mnist_cnn(outputs: int = 11, *, layers: ModuleType = torchtagi.nn) -> torch_nn.Sequential:
    """32-64 convolutions and 150 units for 1×28×28 images (Appendix B.1.1)."""
    net: torch_nn.Sequential = layers.Sequential(
        layers.Conv2d(1, 32, 4, padding=1),
        layers.ReLU(),
        layers.AvgPool2d(3, 2),
        layers.Conv2d(32, 64, 5),
        layers.ReLU(),
        layers.AvgPool2d(3, 2),
        layers.Flatten(),
        layers.Linear(64 * 4 * 4, 150),
        layers.ReLU(),
        layers.Linear(150, outputs),
    )
    return net


def cifar_3conv(
    outputs: int = 11, norm: str = "none", *, norm_first: bool = False, layers: ModuleType = torchtagi.nn
) -> torch_nn.Sequential:
    """32-32-64 convolutions and 64 units for 3×32×32 images (Appendix B.1.2).

    `norm` is `none`, `layer` or `batch`, after each convolution's ReLU as in the authors' networks, or before it
    with `norm_first`.
    """
    if norm not in ("none", "layer", "batch"):
        raise ValueError(f"norm must be none, layer or batch, got {norm!r}")
    parts: list[torch_nn.Module] = []
    for channels_in, channels, size in ((3, 32, 32), (32, 32, 16), (32, 64, 8)):
        parts.append(layers.Conv2d(channels_in, channels, 5, padding=2))
        if norm == "none":
            parts.append(layers.ReLU())
        elif norm == "layer":
            shape = (channels, size, size)
            parts += in_order(layers.ReLU(), layers.LayerNorm(shape, elementwise_affine=False), norm_first)
        else:
            parts += in_order(layers.ReLU(), layers.BatchNorm2d(channels, affine=False), norm_first)
        parts.append(layers.AvgPool2d(3, 2, padding=1))
    net: torch_nn.Sequential = layers.Sequential(
        *parts, layers.Flatten(), layers.Linear(64 * 4 * 4, 64), layers.ReLU(), layers.Linear(64, outputs)
    )
    return net


def in_order(activation: torch_nn.Module, norm: torch_nn.Module, norm_first: bool) -> list[torch_nn.Module]:
    return [norm, activation] if norm_first else [activation, norm]


def convolved(
    channels_in: int, channels: int, size: int, stride: int, norm_first: bool, layers: ModuleType
) -> list[torch_nn.Module]:
    """A convolution that keeps the size at stride 1, its ReLU and its batch norm."""
    return [
        layers.Conv2d(channels_in, channels, size, stride, size // 2, bias=False),
        *in_order(layers.ReLU(), layers.BatchNorm2d(channels, affine=False), norm_first),
    ]


def residual_block(channels_in: int, channels: int, stride: int, norm_first: bool, layers: ModuleType) -> Residual:
    """Two convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""
    body = layers.Sequential(
        *convolved(channels_in, channels, 3, stride, norm_first, layers),
        *convolved(channels, channels, 3, 1, norm_first, layers),
    )
    if stride == 1 and channels_in == channels:
        return Residual(body, layers.Identity())
    return Residual(body, layers.Sequential(*convolved(channels_in, channels, 1, stride, norm_first, layers)))


def resnet18(
    outputs: int = 11, width: int = 64, *, norm_first: bool = False, layers: ModuleType = torchtagi.nn
) -> torch_nn.Sequential:
    """The usual CIFAR ResNet18: four stages of two blocks, `width` to 8·`width` channels; half of it with 32.

    Each convolution is followed by ReLU and then batch norm, the authors' order, or the other way round with
    `norm_first`.
    """
    parts = convolved(3, width, 3, 1, norm_first, layers)
    channels_in = width
    for stage in range(4):
        channels = width << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            parts.append(residual_block(channels_in, channels, stride, norm_first, layers))
            channels_in = channels
    net: torch_nn.Sequential = layers.Sequential(
        *parts, layers.AvgPool2d(4), layers.Flatten(), layers.Linear(channels_in, outputs)
    )
    return net
