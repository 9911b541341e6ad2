"""The two players of the game, as the paper's Figures 1 and 2 draw them."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn


class Verdict(NamedTuple):
    """What the discriminator makes of images: Pnet's output, and Qnet's if it was asked."""

    reality: Any
    codes: Any


class Discriminator(nn.Module):
    """Dnet with its heads: Pnet for real or generated, and in an infoGAN Qnet for the latent codes.

    The heads share the trunk, so its message is the sum of both heads' (Figure 2a).
    """

    def __init__(self, trunk: nn.Module, reality: nn.Module, codes: nn.Module | None = None) -> None:
        super().__init__()
        self.trunk, self.reality = trunk, reality
        self.codes = codes

    def forward(self, images: Any, codes_from: int | None = 0) -> Verdict:
        """Pnet's verdict on all images, Qnet's from the image of that number on; None asks it nothing."""
        features = self.trunk(images)
        codes = None
        if self.codes is not None and codes_from is not None:
            codes = self.codes(features[codes_from:] if codes_from else features)
        return Verdict(self.reality(features), codes)


class Players(nn.Module):
    """Discriminator and generator, saved as one."""

    def __init__(self, discriminator: Discriminator, generator: nn.Module) -> None:
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
