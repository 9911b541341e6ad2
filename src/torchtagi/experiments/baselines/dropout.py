"""MC-dropout (Gal & Ghahramani 2016): dropout before every layer with weights but the first, kept on in prediction.

Each forward pass drops other units, so it is a network drawn from an approximate posterior; predictions average
over `draws` of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from torchtagi.experiments.baselines.backprop import Backprop
from torchtagi.experiments.baselines.baseline import ordinary_network
from torchtagi.experiments.baselines.config import BaselineConfig
from torchtagi.experiments.classify.prediction import softmax


def add_dropout(net: nn.Module, rate: float) -> nn.Module:
    """Put every convolution and linear layer of `net`, but the first, behind dropout; in place."""
    found = [name for name, part in net.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    for name in found[1:]:
        parent, _, child = name.rpartition(".")
        behind = nn.Sequential(nn.Dropout(rate), net.get_submodule(name))
        setattr(net.get_submodule(parent), child, behind)
    return net


class McDropout(Backprop):
    """Adam on a network with dropout; in prediction everything else is in evaluation mode."""

    def build(self, config: BaselineConfig) -> nn.Module:
        return add_dropout(ordinary_network(config), config.number("rate"))

    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        self.net.eval()
        for part in self.net.modules():
            if isinstance(part, nn.Dropout):
                part.train()
        for _ in range(count):
            yield softmax(self.net, images)
