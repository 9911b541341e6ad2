"""VOGN, variational online Gauss–Newton (Khan et al. 2018; Osawa et al. 2019, algorithm 1).

Natural-gradient variational inference for q(w) = N(μ, 1/(N s + δ + Γ)), N examples, prior precision δ, damping Γ
(Nγ in the paper). A step, ĝ and ĥ the means over a batch, and over `mc_samples` weights drawn from q, of single
examples' gradients and of their squares:

    m ← β₁ m + ĝ + μ δ/N
    s ← (1 − β₂) s + β₂ ĥ
    μ ← μ − α b m/(s + b),   b = (δ + Γ)/N

The papers' step is α m/(s + b); with the factor b, a direction without curvature (s ≪ b) moves by α m, as SGD's of
the same α does, whatever N, δ and Γ are. A rate found on a part of the images then serves for all of them.

ĥ is the Gauss–Newton estimate of the curvature from single examples' gradients. s starts as the first batch's.
At rest E_q[Σ_n ∇ℓ_n] + δμ = 0 and 1/σ² = E_q[Σ_n (∇ℓ_n)²] + δ + Γ.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.experiments.baselines.config import RivalConfig
from torchtagi.experiments.baselines.per_example import gradient_moments
from torchtagi.experiments.baselines.variational import VariationalLearner, VariationalOptimizer
from torchtagi.experiments.baselines.weight_posterior import WeightPosterior


class Vogn(VariationalOptimizer):
    """The optimizer, for any loss that is a sum over examples."""

    def __init__(
        self,
        net: nn.Module,
        images: int,
        learning_rate: float,
        prior_precision: float = 1.0,
        damping: float = 0.0,
        momentum: float = 0.9,
        curvature_rate: float = 0.01,
        mc_samples: int = 1,
    ) -> None:
        self.net, self.learning_rate = net, learning_rate
        self.momentum, self.curvature_rate, self.mc_samples = momentum, curvature_rate, mc_samples
        self.posterior = WeightPosterior(net, images, prior_precision, damping)
        self.velocity = [torch.zeros_like(parameter) for parameter in self.posterior.parameters]
        self.steps = torch.zeros((), dtype=torch.int64)

    def step(self, losses: Callable[[], Tensor]) -> float:
        """`losses` calls the network once and returns each example's loss; returns their mean over the draws."""
        posterior = self.posterior
        if not self.steps:
            first = gradient_moments(self.net, losses)
            for curvature, square in zip(posterior.curvature, first.mean_square, strict=True):
                curvature.copy_(square)
        found = []
        for _ in range(self.mc_samples):
            with posterior.drawn():
                found.append(gradient_moments(self.net, losses))
        share, base = posterior.prior_share, posterior.base
        with torch.no_grad():
            for index, mean in enumerate(posterior.parameters):
                gradient = torch.stack([moments.mean[index] for moments in found]).mean(0)
                square = torch.stack([moments.mean_square[index] for moments in found]).mean(0)
                m, s = self.velocity[index], posterior.curvature[index]
                m.mul_(self.momentum).add_(gradient).add_(mean, alpha=share)
                s.lerp_(square, self.curvature_rate)
                mean.addcdiv_(m, s + base, value=-self.learning_rate * base)
        self.steps += 1
        return float(torch.stack([moments.losses.mean() for moments in found]).mean())


class VognLearner(VariationalLearner):
    """VOGN on images."""

    optimizer: Vogn

    def make_optimizer(self, config: RivalConfig, net: nn.Module, images: int) -> Vogn:
        names = ("learning_rate", "prior_precision", "damping", "momentum", "curvature_rate")
        numbers = {name: config.number(name) for name in names}
        return Vogn(net, images, **numbers, mc_samples=config.count("mc_samples"))

    def optimize(self, x: Tensor, y: Tensor, probs: list[Tensor]) -> float:
        def losses() -> Tensor:
            logits = self.net(x)
            probs.append(logits.detach().softmax(1))
            return functional.cross_entropy(logits, y, reduction="none")

        return self.optimizer.step(losses)
