"""VOGN, variational online Gauss–Newton (Khan et al. 2018; Osawa et al. 2019, algorithm 1).

Natural-gradient variational inference for q(w) = N(μ, 1/(N s + δ + Γ)), N examples, prior precision δ, damping Γ
(Nγ in the paper). A step, ĝ and ĥ the means over a batch, and over `mc_samples` weights drawn from q, of single
examples' gradients and of their squares:

    m ← β₁ m + ĝ + μ δ/N
    s ← (1 − β₂) s + β₂ ĥ
    μ ← μ − α m/(s + (δ + Γ)/N)

ĥ is the Gauss–Newton estimate of the curvature from single examples' gradients. s starts as the first batch's.
At rest E_q[Σ_n ∇ℓ_n] + δμ = 0 and 1/σ² = E_q[Σ_n (∇ℓ_n)²] + δ + Γ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.baselines.config import RivalConfig
from torchtagi.baselines.per_example import gradient_moments
from torchtagi.baselines.rival import (
    Rival,
    list_tensors,
    load_list,
    load_module,
    module_tensors,
    ordinary_network,
    scheduled,
)
from torchtagi.baselines.weight_posterior import WeightPosterior


class Vogn:
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
                mean.addcdiv_(m, s + base, value=-self.learning_rate)
        self.steps += 1
        return float(torch.stack([moments.losses.mean() for moments in found]).mean())


class VognLearner(Rival):
    """Cross-entropy on images."""

    def __init__(self, config: RivalConfig, images: int) -> None:
        super().__init__(config, images)
        self.net = ordinary_network(config)
        self.vogn = Vogn(
            self.net,
            images,
            **{name: config.number(name) for name in ("learning_rate", "prior_precision", "damping", "momentum")},
            curvature_rate=config.number("curvature_rate"),
            mc_samples=config.count("mc_samples"),
        )

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        self.net.train()
        self.vogn.learning_rate = scheduled(self.config, self.images, int(self.vogn.steps))
        probs: list[Tensor] = []

        def losses() -> Tensor:
            logits = self.net(x)
            probs.append(logits.detach().softmax(1))
            return functional.cross_entropy(logits, y, reduction="none")

        loss = self.vogn.step(losses)
        return torch.stack(probs).mean(0), loss

    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        return self.vogn.posterior.draws(images, count)

    def tensors(self) -> dict[str, Tensor]:
        return {
            **module_tensors("net", self.net),
            **list_tensors("velocity", self.vogn.velocity),
            **list_tensors("curvature", self.vogn.posterior.curvature),
            "steps": self.vogn.steps,
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        load_module("net", self.net, tensors)
        load_list("velocity", self.vogn.velocity, tensors)
        load_list("curvature", self.vogn.posterior.curvature, tensors)
        self.vogn.steps.copy_(tensors["steps"])
