"""A Gaussian over the weights of an ordinary network, each on its own: drawing networks from it.

The network's parameters are the means μ; N examples, and for each weight a curvature s, the mean over examples of
the loss's second derivative as the method estimates it. With a prior N(0, 1/δ),

    q(w) = N(μ, σ²),   1/σ² = N s + δ + Γ = N (s + base)          Γ: damping, none in exact inference

Γ keeps the drawn weights close enough to their means for a network to work with them, without pulling the means to
zero as a larger δ would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from torchtagi.experiments.classify.prediction import softmax


class WeightPosterior:
    """`curvature` and the network's parameters are written by the method that learns them."""

    def __init__(self, net: nn.Module, images: int, prior_precision: float, damping: float = 0.0) -> None:
        self.net, self.images = net, images
        self.prior_precision, self.damping = prior_precision, damping
        self.parameters = list(net.parameters())
        self.curvature = [torch.zeros_like(parameter) for parameter in self.parameters]

    @property
    def prior_share(self) -> float:
        """δ/N: an example's share of the prior."""
        return self.prior_precision / self.images

    @property
    def base(self) -> float:
        """(δ + Γ)/N."""
        return (self.prior_precision + self.damping) / self.images

    def vars(self) -> list[Tensor]:
        """σ² of each weight."""
        return [1 / (self.images * (s + self.base)) for s in self.curvature]

    @contextmanager
    def drawn(self) -> Iterator[list[Tensor]]:
        """While it lasts, the network has weights drawn from q; yields how far they are from the means."""
        with torch.no_grad():
            means = [parameter.clone() for parameter in self.parameters]
            noise = [torch.randn_like(parameter) * var.sqrt() for parameter, var in self.pairs()]
            for parameter, away in zip(self.parameters, noise, strict=True):
                parameter.add_(away)
        try:
            yield noise
        finally:
            with torch.no_grad():
                for parameter, mean in zip(self.parameters, means, strict=True):
                    parameter.copy_(mean)

    def pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.parameters, self.vars(), strict=True)

    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        """The class probabilities of `count` networks, in evaluation mode."""
        self.net.eval()
        for _ in range(count):
            with self.drawn():
                probs = softmax(self.net, images)
            yield probs
