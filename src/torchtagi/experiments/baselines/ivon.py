"""IVON, improved variational online Newton (Shen et al. 2024, algorithm 1): VOGN without per-example gradients.

The curvature comes from the reparametrisation trick: w = μ + σε, and E[g (w − μ)]/σ² is the mean loss's Hessian
diagonal (Stein). It may be negative, so its update has a second-order term that keeps h + δ/N positive:

    ĥ = ĝ (w − μ)/σ²,                        1/σ² = N (h + δ/N)
    m ← β₁ m + (1 − β₁) ĝ
    h ← h + ρ(ĥ − h) + ½ ρ² (h − ĥ)²/(h + δ/N)
    μ ← μ − α (h₀ + δ/N) (m/(1 − β₁ᵗ) + μ δ/N)/(h + δ/N)

h starts as h₀ = `first_precision`/N, a precision of q that lets a network work with the weights drawn. The factor
h₀ + δ/N (the authors' `rescale_lr`) makes the first steps α m as SGD's, and so α independent of N, for h changes
slowly. As m is a mean of gradients and not their sum, an α here is like that of torch's SGD times 1/(1 − β₁).

A step costs one backward pass a drawn network, as Adam's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.experiments.baselines.config import RivalConfig
from torchtagi.experiments.baselines.variational import VariationalLearner, VariationalOptimizer
from torchtagi.experiments.baselines.weight_posterior import WeightPosterior


class Ivon(VariationalOptimizer):
    """The optimizer, for a mean loss over the examples of a batch."""

    def __init__(
        self,
        net: nn.Module,
        images: int,
        learning_rate: float,
        prior_precision: float = 1.0,
        momentum: float = 0.9,
        curvature_rate: float = 1e-4,
        first_precision: float = 5000.0,
        mc_samples: int = 1,
    ) -> None:
        self.net, self.learning_rate = net, learning_rate
        self.momentum, self.curvature_rate, self.mc_samples = momentum, curvature_rate, mc_samples
        self.posterior = WeightPosterior(net, images, prior_precision)
        for curvature in self.posterior.curvature:
            curvature.fill_(first_precision / images)
        self.first_base = first_precision / images + self.posterior.prior_share
        self.velocity = [torch.zeros_like(parameter) for parameter in self.posterior.parameters]
        self.steps = torch.zeros((), dtype=torch.int64)

    def step(self, loss: Callable[[], Tensor]) -> float:
        """`loss` calls the network and returns the batch's mean loss; returns its mean over the draws."""
        posterior, count = self.posterior, self.mc_samples
        gradient = [torch.zeros_like(parameter) for parameter in posterior.parameters]
        curvature = [torch.zeros_like(parameter) for parameter in posterior.parameters]
        variances, total = posterior.vars(), 0.0
        for _ in range(count):
            with posterior.drawn() as away:
                value = loss()
                found = torch.autograd.grad(value, posterior.parameters)
            total += value.item() / count
            for g, h, grad, shift, var in zip(gradient, curvature, found, away, variances, strict=True):
                g.add_(grad, alpha=1 / count)
                h.add_(grad * shift / var, alpha=1 / count)
        self.steps += 1
        share, unbiased = posterior.prior_share, 1 - self.momentum ** int(self.steps)
        rho, rate = self.curvature_rate, self.learning_rate * self.first_base
        with torch.no_grad():
            for index, mean in enumerate(posterior.parameters):
                m, h = self.velocity[index], posterior.curvature[index]
                m.lerp_(gradient[index], 1 - self.momentum)
                change = curvature[index] - h
                h.add_(rho * change + 0.5 * rho**2 * change.square() / (h + share))
                mean.addcdiv_(m / unbiased + share * mean, h + share, value=-rate)
        return total


class IvonLearner(VariationalLearner):
    """IVON on images."""

    optimizer: Ivon

    def make_optimizer(self, config: RivalConfig, net: nn.Module, images: int) -> Ivon:
        names = ("learning_rate", "prior_precision", "momentum", "curvature_rate", "first_precision")
        numbers = {name: config.number(name) for name in names}
        return Ivon(net, images, **numbers, mc_samples=config.count("mc_samples"))

    def optimize(self, x: Tensor, y: Tensor, probs: list[Tensor]) -> float:
        def loss() -> Tensor:
            logits = self.net(x)
            probs.append(logits.detach().softmax(1))
            return functional.cross_entropy(logits, y)

        return self.optimizer.step(loss)
