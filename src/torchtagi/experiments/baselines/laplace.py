"""Last-layer Laplace (Kristiadi et al. 2020, Daxberger et al. 2021): Adam's network, and a Gaussian about the last
layer's weights.

W (C, D) are these weights, bias included, φ (D) the features they meet with a one appended, p the probabilities.
The Hessian of the cross-entropy, Σ φφᵀ ⊗ (diag p − ppᵀ), is taken as a Kronecker product (Ritter et al. 2018):

    A = Σ φφᵀ = U diag(a) Uᵀ,    H = mean (diag p − ppᵀ) = V diag(h) Vᵀ,    precision of VᵀWU:  h_j a_i + δ
    logits  z ~ N(Wφ, V diag(s) Vᵀ),    s_j = Σ_i (Uᵀφ)_i² / (h_j a_i + δ)

The prior's precision δ is where the evidence is largest: δ = γ/‖W‖², γ = Σ h_j a_i / (h_j a_i + δ) (MacKay 1992).

A and H are accumulated while the last epoch is learned, not in a pass of their own behind it. By then the features
hardly change any more, and it spares a pass. A prediction takes one pass: only logits are drawn.

The package `laplace-torch` is not used, as it installs torchvision and ten more packages, one of them an alpha.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.experiments.baselines.backprop import Backprop
from torchtagi.model import PREDICTION_BATCH

MOST_ITERATIONS = 100


class LayerPosterior:
    """The Gaussian about `weight` (C, D), from A (D, D) and H (C, C)."""

    def __init__(
        self, weight: Tensor, outer: Tensor, hessian: Tensor, prior_precision: float | None = None
    ) -> None:
        """The evidence chooses the prior's precision unless it is given."""
        a, self.from_features = torch.linalg.eigh(outer.double())
        h, self.to_logits = torch.linalg.eigh(hessian.double())
        self.curvature = h.clamp_min(0)[:, None] * a.clamp_min(0)
        self.squared_norm = float(weight.double().square().sum())
        self.prior_precision = self.likeliest_precision() if prior_precision is None else prior_precision

    def likeliest_precision(self) -> float:
        found = 1.0
        for _ in range(MOST_ITERATIONS):
            before, determined = found, float((self.curvature / (self.curvature + found)).sum())
            found = max(determined, torch.finfo(torch.double).tiny) / self.squared_norm
            if abs(found - before) <= 1e-6 * before:
                break
        return found

    def logit_factor(self, features: Tensor) -> Tensor:
        """V diag(√s), (N, C, C): times standard normal numbers it is what a draw adds to the logits."""
        squares = (features.double() @ self.from_features).square()
        deviations = (squares @ (1 / (self.curvature + self.prior_precision)).T).sqrt()
        factor: Tensor = self.to_logits * deviations[:, None, :]
        return factor.to(features.dtype)


class LastLayerLaplace(Backprop):
    """Learns as Adam does, to the bit."""

    def __init__(self, config: Any, images: int) -> None:
        super().__init__(config, images)
        self.last = [part for part in self.net.modules() if isinstance(part, nn.Linear)][-1]
        self.last.register_forward_pre_hook(self.keep_features)
        self.features = torch.empty(0)
        width, classes = self.last.in_features + 1, self.last.out_features
        device = self.last.weight.device
        self.outer = torch.zeros(width, width, device=device)
        self.hessian = torch.zeros(classes, classes, device=device)
        self.seen = torch.zeros((), dtype=torch.int64)

    def keep_features(self, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        x = inputs[0].detach()
        self.features = torch.cat([x, torch.ones_like(x[:, :1])], 1)

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        if int(self.steps) % self.epoch_steps == 0:
            for total in (self.outer, self.hessian, self.seen):
                total.zero_()
        probs, loss = super().step(x, y)
        self.outer.addmm_(self.features.T, self.features)
        self.hessian.add_(probs.sum(0).diag() - probs.T @ probs)
        self.seen += len(x)
        return probs, loss

    def posterior(self) -> LayerPosterior:
        """In the middle of an epoch what was seen of it stands for the rest."""
        weight = torch.cat([self.last.weight, self.last.bias[:, None]], 1)
        share = float(self.seen) / self.images
        return LayerPosterior(weight, self.outer / share, self.hessian / float(self.seen))

    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        """Of logits, which cost next to nothing: always as many as a prediction takes."""
        if not int(self.seen):  # nothing learned: no Gaussian yet
            yield from super().draws(images, 1)
            return
        self.net.eval()
        posterior = self.posterior()
        means, factors = [], []
        for x in images.split(PREDICTION_BATCH):
            means.append(self.net(x))
            factors.append(posterior.logit_factor(self.features))
        mean, factor = torch.cat(means), torch.cat(factors)
        for _ in range(self.config.hyperparameters["draws"]):
            yield (mean + (factor @ torch.randn_like(mean)[:, :, None]).squeeze(2)).softmax(1)

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), "outer": self.outer, "hessian": self.hessian, "seen": self.seen}
