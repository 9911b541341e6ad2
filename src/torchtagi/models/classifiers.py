"""The classification networks of Appendix B, exactly as its tables list them.

Our layers have torch's names and arguments, so each builder makes either network: pass `layers=torch.nn` for the
ordinary one that backprop trains. "Pooling" in the paper's tables is average pooling. The output has 11 units,
the nodes of the ten-class tree; an ordinary network has its classes instead.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torch import nn as torch_nn

import torchtagi.nn


def mnist_cnn(outputs: int = 11, *, layers: ModuleType = torchtagi.nn) -> torch_nn.Module:
    """32-64 convolutions and 150 units for 1×28×28 images (Appendix B.1.1)."""
    net: torch_nn.Module = layers.Sequential(
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
) -> torch_nn.Module:
    """32-32-64 convolutions and 64 units for 3×32×32 images (Appendix B.1.2).

    `norm` is `none`, `layer` or `batch`, after each convolution's ReLU as in the authors' networks, or before it
    with `norm_first`.
    """
    if norm not in ("none", "layer", "batch"):
        raise ValueError(f"norm must be none, layer or batch, got {norm!r}")
    parts: list[torch_nn.Module] = []
    for channels_in, channels, size in ((3, 32, 32), (32, 32, 16), (32, 64, 8)):
        parts.append(layers.Conv2d(channels_in, channels, 5, padding=2))
        middle = [layers.ReLU()]
        if norm == "layer":
            middle.append(layers.LayerNorm((channels, size, size), elementwise_affine=False))
        elif norm == "batch":
            middle.append(layers.BatchNorm2d(channels, affine=False))
        parts += reversed(middle) if norm_first else middle
        parts.append(layers.AvgPool2d(3, 2, padding=1))
    net: torch_nn.Module = layers.Sequential(
        *parts, layers.Flatten(), layers.Linear(64 * 4 * 4, 64), layers.ReLU(), layers.Linear(64, outputs)
    )
    return net


class ResidualBlock(torch_nn.Module):
    """Two convolutions beside a shortcut, which is a 1×1 convolution where the shape changes."""

    def __init__(
        self, channels_in: int, channels: int, stride: int = 1, *, layers: ModuleType = torchtagi.nn
    ) -> None:
        super().__init__()
        self.channels_in, self.channels, self.stride = channels_in, channels, stride
        self.body = layers.Sequential(
            layers.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            layers.ReLU(),
            layers.BatchNorm2d(channels, affine=False),
            layers.Conv2d(channels, channels, 3, 1, 1, bias=False),
            layers.ReLU(),
            layers.BatchNorm2d(channels, affine=False),
        )
        self.shortcut: torch_nn.Module = layers.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = layers.Sequential(
                layers.Conv2d(channels_in, channels, 1, stride, bias=False),
                layers.ReLU(),
                layers.BatchNorm2d(channels, affine=False),
            )

    def config(self) -> dict[str, Any]:
        return {"channels_in": self.channels_in, "channels": self.channels, "stride": self.stride}

    def forward(self, x: Any) -> Any:
        return self.body(x) + self.shortcut(x)


def resnet18(outputs: int = 11, width: int = 64, *, layers: ModuleType = torchtagi.nn) -> torch_nn.Module:
    """The usual CIFAR ResNet18: four stages of two blocks, `width` to 8·`width` channels; half of it with 32.

    Each convolution is followed by ReLU and then batch norm, the authors' order.
    """
    parts: list[torch_nn.Module] = [
        layers.Conv2d(3, width, 3, padding=1, bias=False),
        layers.ReLU(),
        layers.BatchNorm2d(width, affine=False),
    ]
    channels_in = width
    for stage in range(4):
        channels = width << stage
        for block in range(2):
            stride = 2 if stage and not block else 1
            parts.append(ResidualBlock(channels_in, channels, stride, layers=layers))
            channels_in = channels
    net: torch_nn.Module = layers.Sequential(
        *parts, layers.AvgPool2d(4), layers.Flatten(), layers.Linear(channels_in, outputs)
    )
    return net
