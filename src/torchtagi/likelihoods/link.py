"""The noise of the probit link between an output and its label, learned by the labels' own likelihood.

A label is learned from as a ±1 seen through Gaussian noise, and predicted as P(+1) = Φ(m/√(v + R)). One noise does
not serve both well. The messages want the second moment of the innovations; the prediction wants to be right about
the rare outputs that lie far on the wrong side, whose tails are heavier than that moment's Gaussian. So R of the
prediction is chosen as forecasters do: of a ladder of candidates, the one that has given the labels, each before it
was learned from, the highest probability.

    score_k ← (1 − ρ) score_k − ρ mean log P(label | R_k)

The score averages over the later half of all labels, and over about MEMORY of them at most.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods.observation import Likelihood

STEP = math.sqrt(2)
CANDIDATES = tuple(0.025 * STEP**k for k in range(14))  # 0.025 … 2.3: far below and above the labels' ±1
MEMORY = 20_000.0  # labels: at an error of 1 %, what 200 mistakes have to say


class LabelLikelihood(Likelihood):
    """A likelihood of labels: with `learn_noise`, its predictions have a noise of their own."""

    link_scores: Tensor | None
    labels_seen: Tensor | None

    def __init__(self, noise_std: Any = 1.0, learn_noise: bool = False) -> None:
        super().__init__(noise_std, learn_noise)
        self.register_buffer("link_scores", torch.zeros(len(CANDIDATES)) if learn_noise else None)
        self.register_buffer("labels_seen", torch.zeros(()) if learn_noise else None)

    def log_prob_given(self, z: Gaussian, labels: Tensor, noise_var: Tensor) -> Tensor:
        """log P(label), one for each sample, with this noise; of noises (K, 1, 1) one row for each."""
        raise AssertionError("each likelihood of labels says how they follow from its outputs")

    @torch.no_grad()
    def score_link(self, z: Gaussian, labels: Tensor) -> None:
        """Note how well each candidate foretold these labels; call it before learning from them."""
        if self.link_scores is None or self.labels_seen is None:
            return
        noise_var = torch.tensor(CANDIDATES, dtype=z.dtype, device=z.device).square().view(-1, *[1] * z.ndim)
        scores = -self.log_prob_given(z, labels, noise_var).mean(1).to(self.link_scores.dtype)
        if not bool(torch.isfinite(scores).all()):  # an output far out of range says nothing of the noise
            return
        self.labels_seen += len(labels)
        window = min(max(self.labels_seen.item() / 2, len(labels)), MEMORY)
        self.link_scores.lerp_(scores, min(1.0, len(labels) / window))

    @property
    def predictive_noise_var(self) -> Tensor:
        """The noise to predict with: the link's, if it is learned; never below `noise_std`."""
        if self.link_scores is None or self.labels_seen is None or not self.labels_seen.item():
            return super().predictive_noise_var
        return self.noise_var.clamp_min(lowest(self.link_scores.tolist()) ** 2)


def lowest(scores: list[float]) -> float:
    """The noise with the lowest score: the vertex of the parabola through the best candidate and its neighbours."""
    best = min(range(len(scores)), key=scores.__getitem__)
    offset = 0.0
    if 0 < best < len(scores) - 1:
        below, here, above = scores[best - 1 : best + 2]
        bend = below - 2 * here + above
        offset = 0.5 * (below - above) / bend if bend > 0 else 0.0
    return float(CANDIDATES[best] * STEP**offset)
