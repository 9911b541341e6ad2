"""MC-dropout (Gal & Ghahramani 2016): dropout before every layer with weights but the first, kept on in prediction.

Each forward pass drops other units, so it is a network drawn from an approximate posterior; predictions average
over `draws` of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from torchtagi.experiments.baselines.backprop import Backprop
from torchtagi.experiments.baselines.config import RivalConfig
from torchtagi.experiments.baselines.rival import ordinary_network
from torchtagi.experiments.classify.prediction import softmax


class Dropped(nn.Module):
    """A layer behind dropout."""

    def __init__(self, rate: float, layer: nn.Module) -> None:
        super().__init__()
        self.dropout = nn.Dropout(rate)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layer(self.dropout(x))
        return z


def add_dropout(net: nn.Module, rate: float) -> nn.Module:
    """Put every convolution and linear layer of `net`, but the first, behind dropout; in place."""
    found = [name for name, part in net.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    for name in found[1:]:
        parent, _, child = name.rpartition(".")
        setattr(net.get_submodule(parent), child, Dropped(rate, net.get_submodule(name)))
    return net


class McDropout(Backprop):
    """Adam on a network with dropout; in prediction everything else is in evaluation mode."""

    def build(self, config: RivalConfig) -> nn.Module:
        return add_dropout(ordinary_network(config), config.number("rate"))

    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        self.net.eval()
        for part in self.net.modules():
            if isinstance(part, nn.Dropout):
                part.train()
        for _ in range(count):
            yield softmax(self.net, images)
