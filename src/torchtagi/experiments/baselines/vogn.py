"""VOGN, variational online Gauss–Newton (Khan et al. 2018; Osawa et al. 2019, algorithm 1).

Natural-gradient variational inference for q(w) = N(μ, σ²), 1/σ² = N s + δ + Γ, with N examples, the curvature s of
a weight, prior precision δ and damping Γ (Nγ in the paper). Γ keeps drawn weights close enough to their means for a
network to work with them, without pulling the means to zero as a larger δ would. A step, ĝ and ĥ the means over a
batch, and over `mc_samples` weights drawn from q, of single examples' gradients and of their squares:

    m ← β₁ m + ĝ + μ δ/N
    s ← (1 − β₂) s + β₂ ĥ
    μ ← μ − α b m/(s + b),   b = (δ + Γ)/N

The papers' step is α m/(s + b); with the factor b, a direction without curvature (s ≪ b) moves by α m, as SGD's of
the same α does, whatever N, δ and Γ are. A rate found on a part of the images then serves for all of them.

ĥ is the Gauss–Newton estimate of the curvature from single examples' gradients. s starts as the first batch's.
At rest E_q[Σ_n ∇ℓ_n] + δμ = 0 and 1/σ² = E_q[Σ_n (∇ℓ_n)²] + δ + Γ.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.experiments.baselines.baseline import Baseline
from torchtagi.experiments.baselines.per_example import gradient_moments


@dataclass
class Vogn:
    """The optimizer, for any loss that is a sum over examples. The network's parameters are the means μ."""

    net: nn.Module
    images: int
    learning_rate: float
    prior_precision: float = 1.0
    damping: float = 0.0
    momentum: float = 0.9
    curvature_rate: float = 0.01
    mc_samples: int = 1

    def __post_init__(self) -> None:
        self.means = list(self.net.parameters())
        self.curvature = [torch.zeros_like(mean) for mean in self.means]
        self.velocity = [torch.zeros_like(mean) for mean in self.means]
        self.base = (self.prior_precision + self.damping) / self.images

    def vars(self) -> list[Tensor]:
        """σ² of each weight."""
        return [1 / (self.images * (s + self.base)) for s in self.curvature]

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """While it lasts, the network has weights drawn from q."""
        with torch.no_grad():
            kept = [mean.clone() for mean in self.means]
            for mean, var in zip(self.means, self.vars(), strict=True):
                mean.add_(torch.randn_like(mean) * var.sqrt())
        try:
            yield
        finally:
            with torch.no_grad():
                for mean, before in zip(self.means, kept, strict=True):
                    mean.copy_(before)

    def start(self, losses: Callable[[], Tensor]) -> None:
        """Take the curvature of a first batch, before anything is drawn."""
        for curvature, square in zip(self.curvature, gradient_moments(self.net, losses).mean_square, strict=True):
            curvature.copy_(square)

    def step(self, losses: Callable[[], Tensor]) -> float:
        """`losses` calls the network once and returns each example's loss; returns their mean over the draws."""
        found = []
        for _ in range(self.mc_samples):
            with self.drawn():
                found.append(gradient_moments(self.net, losses))
        with torch.no_grad():
            for index, mean in enumerate(self.means):
                gradient = torch.stack([moments.mean[index] for moments in found]).mean(0)
                square = torch.stack([moments.mean_square[index] for moments in found]).mean(0)
                m, s = self.velocity[index], self.curvature[index]
                m.mul_(self.momentum).add_(gradient).add_(mean, alpha=self.prior_precision / self.images)
                s.lerp_(square, self.curvature_rate)
                mean.addcdiv_(m, s + self.base, value=-self.learning_rate * self.base)
        return float(torch.stack([moments.losses.mean() for moments in found]).mean())


class VognLearner(Baseline):
    """VOGN on images; predictions average over networks drawn from q."""

    def __init__(self, config: Any, images: int) -> None:
        super().__init__(config, images)
        names = ("learning_rate", "prior_precision", "damping", "momentum", "curvature_rate", "mc_samples")
        self.optimizer = Vogn(self.net, images, **{name: config.hyperparameters[name] for name in names})

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        probs: list[Tensor] = []

        def losses() -> Tensor:
            logits = self.net(x)
            probs.append(logits.detach().softmax(1))
            return functional.cross_entropy(logits, y, reduction="none")

        self.net.train()
        if not int(self.steps):
            self.optimizer.start(losses)
            probs.clear()
        self.optimizer.learning_rate = self.learning_rate
        loss = self.optimizer.step(losses)
        return torch.stack(probs).mean(0), loss

    def drawn(self) -> AbstractContextManager[Any]:
        return self.optimizer.drawn()

    def state(self) -> dict[str, Tensor]:
        parts = {"velocity": self.optimizer.velocity, "curvature": self.optimizer.curvature}
        names = [name for name, _ in self.net.named_parameters()]
        own = {f"{part}.{name}": t for part in parts for name, t in zip(names, parts[part], strict=True)}
        return {**super().state(), **own}
