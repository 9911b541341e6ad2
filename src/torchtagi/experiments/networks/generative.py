"""The GAN and infoGAN networks of Appendix B, exactly as its tables list them but for two slips.

Dnet is the trunk that both heads share, Pnet tells real from generated images, Qnet reads the latent codes back,
Gnet draws. The MNIST Gnet's first layer has 64·7·7 = 3136 units, without which the next could not be 64×7×7 (the
table says 3072); the CelebA Gnet's last layer has stride 1, because it keeps 32×32 (the table says 2). As for the
classifiers, `layers=torch.nn` builds the ordinary twin that backprop trains.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from torch import nn as torch_nn

import torchtagi.nn

LEAK = 0.2  # Appendix B's leaky rate


def dnet(
    channels: Sequence[int],
    side: int,
    features: int,
    *,
    use_running: bool = False,
    layers: Any = torchtagi.nn,
) -> Any:
    """Images → features: convolution, leaky ReLU, batch norm and average pooling to half the size for each of
    `channels` but the first, the images' own; the last of them have `side`² pixels.

    `use_running` normalises with running statistics in training too (`nn.BatchNorm2d`), as the authors' code does:
    real and generated batches are then seen on one scale. Ordinary torch layers do not have it.
    """
    options = {"use_running": True} if use_running else {}
    parts: list[torch_nn.Module] = []
    for before, after in pairwise(channels):
        parts += [
            layers.Conv2d(before, after, 3, padding=1),
            layers.LeakyReLU(LEAK),
            layers.BatchNorm2d(after, affine=False, **options),
            layers.AvgPool2d(3, 2, padding=1),
        ]
    last = layers.Linear(channels[-1] * side**2, features)
    return layers.Sequential(*parts, layers.Flatten(), last, layers.LeakyReLU(LEAK))


def pnet(features: int, *, layers: Any = torchtagi.nn) -> Any:
    """Features → real (−1) or generated (+1)."""
    return layers.Sequential(layers.Linear(features, 1))


def qnet(features: int, hidden: int, outputs: int, *, layers: Any = torchtagi.nn) -> Any:
    """Features → the codes: the nodes of each category's tree, then the continuous ones."""
    return layers.Sequential(layers.Linear(features, hidden), layers.ReLU(), layers.Linear(hidden, outputs))


def gnet(side: int, convolutions: Sequence[tuple[int, int]], inputs: int, *, layers: Any = torchtagi.nn) -> Any:
    """Noise and codes → images, by 64 maps of `side`² and transposed convolutions of (channels, stride)."""
    before = 64
    parts = [layers.Linear(inputs, before * side**2), layers.ReLU(), layers.Unflatten(1, (before, side, side))]
    for channels, stride in convolutions:
        parts += [layers.ConvTranspose2d(before, channels, 3, stride, 1, stride - 1), layers.ReLU()]
        before = channels
    return layers.Sequential(*parts[:-1])


mnist_dnet = partial(dnet, (1, 32, 64), 7, 512)
mnist_pnet = partial(pnet, 512)
mnist_qnet = partial(qnet, 512, 300, outputs=13)
mnist_gnet = partial(gnet, 7, ((64, 1), (32, 2), (1, 2)), inputs=75)
celeba_dnet = partial(dnet, (3, 32, 32, 64), 4, 256)
celeba_pnet = partial(pnet, 256)
celeba_qnet = partial(qnet, 256, 256, outputs=110)
celeba_gnet = partial(gnet, 4, ((64, 1), (64, 2), (32, 2), (32, 2), (32, 1), (3, 1)), inputs=238)
