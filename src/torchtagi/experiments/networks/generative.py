"""The GAN and infoGAN networks of Appendix B, exactly as its tables list them but for two slips.

Dnet is the trunk that both heads share, Pnet tells real from generated images, Qnet reads the latent codes back,
Gnet draws. The MNIST Gnet's first layer has 64·7·7 = 3136 units, without which the next could not be 64×7×7 (the
table says 3072); the CelebA Gnet's last layer has stride 1, because it keeps 32×32 (the table says 2). As for the
classifiers, `layers=torch.nn` builds the ordinary twin that backprop trains.

`use_running` normalises with running statistics in training too (`nn.BatchNorm2d`), as the authors' code does: real
and generated batches are then seen on one scale. Ordinary torch layers do not have it.
"""

from __future__ import annotations

from types import ModuleType

from torch import nn as torch_nn

import torchtagi.nn

LEAK = 0.2  # Appendix B's leaky rate


def mnist_dnet(*, use_running: bool = False, layers: ModuleType = torchtagi.nn) -> torch_nn.Sequential:
    """1×28×28 → 512 features."""
    net: torch_nn.Sequential = layers.Sequential(
        *convolution_block(1, 32, use_running, layers),
        *convolution_block(32, 64, use_running, layers),
        layers.Flatten(),
        layers.Linear(64 * 7 * 7, 512),
        layers.LeakyReLU(LEAK),
    )
    return net


def mnist_pnet(*, layers: ModuleType = torchtagi.nn) -> torch_nn.Sequential:
    """512 features → real (−1) or generated (+1)."""
    net: torch_nn.Sequential = layers.Sequential(layers.Linear(512, 1))
    return net


def mnist_qnet(outputs: int = 13, *, layers: ModuleType = torchtagi.nn) -> torch_nn.Sequential:
    """512 features → the codes: 11 nodes of a ten-class tree and two continuous ones."""
    net: torch_nn.Sequential = layers.Sequential(
        layers.Linear(512, 300), layers.ReLU(), layers.Linear(300, outputs)
    )
    return net


def mnist_gnet(inputs: int = 75, *, layers: ModuleType = torchtagi.nn) -> torch_nn.Sequential:
    """62 noise units, 11 of the class and two continuous codes → 1×28×28."""
    net: torch_nn.Sequential = layers.Sequential(
        layers.Linear(inputs, 64 * 7 * 7),
        layers.ReLU(),
        layers.Unflatten(1, (64, 7, 7)),
        layers.ConvTranspose2d(64, 64, 3, padding=1),
        layers.ReLU(),
        layers.ConvTranspose2d(64, 32, 3, 2, 1, 1),
        layers.ReLU(),
        layers.ConvTranspose2d(32, 1, 3, 2, 1, 1),
    )
    return net


def celeba_dnet(*, use_running: bool = False, layers: ModuleType = torchtagi.nn) -> torch_nn.Sequential:
    """3×32×32 → 256 features."""
    net: torch_nn.Sequential = layers.Sequential(
        *convolution_block(3, 32, use_running, layers),
        *convolution_block(32, 32, use_running, layers),
        *convolution_block(32, 64, use_running, layers),
        layers.Flatten(),
        layers.Linear(64 * 4 * 4, 256),
        layers.LeakyReLU(LEAK),
    )
    return net


def celeba_pnet(*, layers: ModuleType = torchtagi.nn) -> torch_nn.Sequential:
    """256 features → real (−1) or generated (+1)."""
    net: torch_nn.Sequential = layers.Sequential(layers.Linear(256, 1))
    return net


def celeba_qnet(outputs: int = 110, *, layers: ModuleType = torchtagi.nn) -> torch_nn.Sequential:
    """256 features → the codes: ten trees of 11 nodes."""
    net: torch_nn.Sequential = layers.Sequential(
        layers.Linear(256, 256), layers.ReLU(), layers.Linear(256, outputs)
    )
    return net


def celeba_gnet(inputs: int = 238, *, layers: ModuleType = torchtagi.nn) -> torch_nn.Sequential:
    """128 noise units and ten classes of 11 → 3×32×32."""
    net: torch_nn.Sequential = layers.Sequential(
        layers.Linear(inputs, 64 * 4 * 4),
        layers.ReLU(),
        layers.Unflatten(1, (64, 4, 4)),
        layers.ConvTranspose2d(64, 64, 3, padding=1),
        layers.ReLU(),
        layers.ConvTranspose2d(64, 64, 3, 2, 1, 1),
        layers.ReLU(),
        layers.ConvTranspose2d(64, 32, 3, 2, 1, 1),
        layers.ReLU(),
        layers.ConvTranspose2d(32, 32, 3, 2, 1, 1),
        layers.ReLU(),
        layers.ConvTranspose2d(32, 32, 3, padding=1),
        layers.ReLU(),
        layers.ConvTranspose2d(32, 3, 3, padding=1),
    )
    return net


def convolution_block(
    channels_in: int, channels: int, use_running: bool, layers: ModuleType
) -> list[torch_nn.Module]:
    """Convolution, leaky ReLU, batch norm, and average pooling to half the size."""
    options = {"use_running": True} if use_running else {}
    return [
        layers.Conv2d(channels_in, channels, 3, padding=1),
        layers.LeakyReLU(LEAK),
        layers.BatchNorm2d(channels, affine=False, **options),
        layers.AvgPool2d(3, 2, padding=1),
    ]
