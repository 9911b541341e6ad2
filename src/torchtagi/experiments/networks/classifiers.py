"""The classification networks of Appendix B, exactly as its tables list them.

Our layers have torch's names and arguments, so each builder makes either network: pass `layers=torch.nn` for the
ordinary one that backprop trains. "Pooling" in the paper's tables is average pooling. The output has 11 units,
the nodes of the ten-class tree; an ordinary network has its classes instead.
"""

from typing import Any

from torch import nn as torch_nn

import torchtagi.nn
from torchtagi.nn import Residual


def mnist_cnn(outputs: int = 11, *, layers: Any = torchtagi.nn) -> Any:
    """32-64 convolutions and 150 units for 1×28×28 images (Appendix B.1.1)."""
    return layers.Sequential(
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


def cifar_3conv(outputs: int = 11, norm: str = "none", *, layers: Any = torchtagi.nn) -> Any:
    """32-32-64 convolutions and 64 units for 3×32×32 images (Appendix B.1.2); `norm`, after each convolution's ReLU
    as in the authors' networks, is `none`, `layer` or `batch`."""
    if norm not in ("none", "layer", "batch"):
        raise ValueError(f"norm must be none, layer or batch, got {norm!r}")
    parts: list[torch_nn.Module] = []
    for channels_in, channels, size in ((3, 32, 32), (32, 32, 16), (32, 64, 8)):
        parts += [layers.Conv2d(channels_in, channels, 5, padding=2), layers.ReLU()]
        if norm == "layer":
            parts.append(layers.LayerNorm((channels, size, size), elementwise_affine=False))
        elif norm == "batch":
            parts.append(layers.BatchNorm2d(channels, affine=False))
        parts.append(layers.AvgPool2d(3, 2, padding=1))
    parts += [layers.Flatten(), layers.Linear(64 * 4 * 4, 64), layers.ReLU(), layers.Linear(64, outputs)]
    return layers.Sequential(*parts)


def resnet18(outputs: int = 11, width: int = 64, *, layers: Any = torchtagi.nn) -> Any:
    """The usual CIFAR ResNet18: four stages of two blocks, `width` to 8·`width` channels; half of it with 32. Each
    convolution is followed by ReLU and then batch norm, the authors' order."""

    def convolved(channels_in: int, channels: int, size: int, stride: int) -> list[torch_nn.Module]:
        conv = layers.Conv2d(channels_in, channels, size, stride, size // 2, bias=False)
        return [conv, layers.ReLU(), layers.BatchNorm2d(channels, affine=False)]

    parts, channels_in = convolved(3, width, 3, 1), width
    for channels, stride in ((width << stage, s) for stage in range(4) for s in (2 if stage else 1, 1)):
        body = layers.Sequential(*convolved(channels_in, channels, 3, stride), *convolved(channels, channels, 3, 1))
        # the shortcut is a 1×1 convolution where the shape changes
        shortcut = layers.Identity()
        if stride != 1 or channels_in != channels:
            shortcut = layers.Sequential(*convolved(channels_in, channels, 1, stride))
        parts.append(Residual(body, shortcut))
        channels_in = channels
    return layers.Sequential(*parts, layers.AvgPool2d(4), layers.Flatten(), layers.Linear(channels_in, outputs))
