"""The networks of a GAN, as the paper's Figures 1 and 2 draw them, and the scale of their prior."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from torchtagi.inference.buffers import buffers_kept
from torchtagi.nn import Conv2d, ConvTranspose2d, Linear
from torchtagi.nn.norm import BatchNorm
from torchtagi.parameter import GaussianParameter


class DiscriminatorOutput(NamedTuple):
    """Pnet's output, and Qnet's where it was run."""

    labels: Any
    codes: Any


class Discriminator(nn.Module):
    """Dnet with its heads: Pnet for real or generated, and in an infoGAN Qnet for the latent codes.

    The heads share Dnet, so the message it receives is the sum of both heads' (Figure 2a).
    """

    def __init__(self, dnet: nn.Module, pnet: nn.Module, qnet: nn.Module | None = None) -> None:
        super().__init__()
        self.dnet, self.pnet, self.qnet = dnet, pnet, qnet

    def forward(self, images: Any, codes_from: int | None = 0) -> DiscriminatorOutput:
        """Pnet's output for all images, Qnet's from the image of that number on; None: Qnet is not run."""
        features = self.dnet(images)
        codes = None
        if self.qnet is not None and codes_from is not None:
            codes = self.qnet(features[codes_from:] if codes_from else features)
        return DiscriminatorOutput(self.pnet(features), codes)


class Networks(nn.Module):
    """Discriminator and generator, saved as one."""

    def __init__(self, discriminator: Discriminator, generator: nn.Module) -> None:
        super().__init__()
        self.discriminator, self.generator = discriminator, generator


@torch.no_grad()
def scale_prior(networks: Networks, noise: int, code_gain: float, deep: bool) -> None:
    """Scale the prior of new networks.

    `code_gain` is a factor on the prior standard deviations of the generator's weights behind its `noise` units.
    Four nodes of a class beside 62 noise units would hardly change an image, and the noise would decide the digit.

    `deep` draws weight means at He et al.'s scale, 2/fan_in, in all but each head's last layer, and counts in
    transposed convolutions only the weights behind an output pixel, a share 1/stride² of the kernel. Without it
    every such layer halves what images differ by, and a deep generator starts with uniform colour.
    """
    discriminator, generator = networks.discriminator, networks.generator
    if deep:
        for chain in ([discriminator.dnet, discriminator.pnet], [discriminator.qnet], [generator]):
            layers = [layer for part in chain if part is not None for layer in weighted_layers(part)]
            for layer in layers:
                if layer is not layers[-1]:
                    layer.weight.mean.mul_(math.sqrt(2))
                if layer.bias is not None:
                    layer.bias.mean.zero_()
        for layer in weighted_layers(generator):
            stride = layer.stride[0] if isinstance(layer, ConvTranspose2d) else 1
            layer.weight.mean.mul_(stride)
    first = weighted_layers(generator)[0].weight
    first.mean[:, noise:] *= code_gain
    first.var[:, noise:] *= code_gain**2


def weighted_layers(net: nn.Module) -> list[Any]:
    return [part for part in net.modules() if isinstance(part, Linear | Conv2d | ConvTranspose2d)]


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """While others learn through `module`: it passes messages on, and stays as it is to the bit.

    Its running statistics are not mixed with the same batch again: where they are the scale (`use_running`) the
    layer runs as in evaluation, which is the same scale without the mixing; whatever else writes to a buffer is
    undone. Messages still reach the means of Gaussian parameters, where `Update(frozen=...)` counts the uncertainty
    of what it does not change. Nothing applies them. Other parameters receive no gradient.
    """
    means = {id(part.mean) for part in module.modules() if isinstance(part, GaussianParameter)}
    silenced = [p for p in module.parameters() if p.requires_grad and id(p) not in means]
    norms = [m for m in module.modules() if isinstance(m, BatchNorm) and m.use_running and m.training]

    def learn(learns: bool) -> None:
        for parameter in silenced:
            parameter.requires_grad_(learns)
        for norm in norms:
            norm.train(learns)

    learn(False)
    try:
        with buffers_kept(module):
            yield
    finally:
        learn(True)
