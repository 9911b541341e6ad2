"""The probit link between an output and its label, learned by the labels' own likelihood.

A label is learned from as a ±1 seen through Gaussian noise, and predicted as P(+1) = Φ(m/√(c v + R)). What serves
the messages does not serve the prediction. Messages want the second moment of the errors; the prediction wants to
be right about the rare outputs that lie far on the wrong side, whose tails are heavier than that moment's Gaussian.
And v is a sum over weights as if they were independent. Where data are few, or the network is deep, what they know
together is more, and v is larger than the errors. So R and c ≤ 1 of the prediction are chosen as forecasters do: of
a grid of candidates, those that have given the labels, each before it was learned from, the highest probability.

    score_k ← (1 − ρ) score_k − ρ mean log P(label | c_k, R_k)

The score averages over the later half of all labels, and over about `memory` of them at most.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtagi import distributed
from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods.observation import Likelihood, Message

STEP = 2**0.25  # with twice that, CIFAR-10's best noise was missed by 3 %, which is 0.02 of confidence
CANDIDATES = tuple(0.025 * STEP**k for k in range(27))  # √R: 0.025 … 2.3, far below and above the labels' ±1
SCALES = (1.0, 0.25, 0.0625)  # c
KNOWN = 0.23  # √(c v + R) for labels that were known; of those that were not the best is 0.25 to 0.4
MEMORY = 20_000.0  # labels: at an error of 1 %, what 200 mistakes have to say


class LabelLikelihood(Likelihood):
    """A likelihood of labels: with `learn_noise`, its predictions have a link of their own."""

    follows_messages = True
    """Whether the link is scored by the outputs that messages are sent to; not so where others predict."""
    memory = MEMORY
    candidates = len(SCALES) * len(CANDIDATES)
    link_scores: Tensor | None
    """Of each candidate: of all noises with the first scale, with the second, and so on."""
    labels_seen: Tensor | None

    def __init__(self, noise_std: Any = 1.0, learn_noise: bool = False) -> None:
        super().__init__(noise_std, learn_noise)
        self.register_buffer("link_scores", torch.zeros(self.candidates) if learn_noise else None)
        self.register_buffer("labels_seen", torch.zeros(()) if learn_noise else None)

    def message(self, z: Gaussian, y: Tensor) -> Message:
        message = super().message(z, y)
        if self.training and self.follows_messages:
            self.score_link(z, y, new=False)
        return message

    def log_prob_at(self, margin: Tensor, labels: Tensor) -> Tensor:
        """log P(label), one for each sample, from the margins m/√(c v + R) of the outputs; dimensions in front of
        those of a batch stay."""
        raise AssertionError("each likelihood of labels says how they follow from its outputs")

    def log_prob(self, z: Gaussian, labels: Tensor) -> Tensor:
        known = self.check(z, labels)
        return self.log_prob_at(self.margin(z), known)

    def check(self, z: Gaussian, labels: Tensor) -> Tensor:
        """The labels as `log_prob_at` takes them."""
        raise AssertionError("each likelihood of labels has labels of its own")

    def margin(self, z: Gaussian) -> Tensor:
        scale, noise_var = self.predictive_link()
        return z.mean / (scale * z.variance + noise_var).sqrt()

    @torch.no_grad()
    def score_link(self, z: Gaussian, labels: Tensor, new: bool = True) -> None:
        """Note how well each candidate foretold these labels; call it before learning from them. Labels that are
        not new were known, and would have v and R as small as can be: they count against what
        is surer than `KNOWN`."""
        if self.link_scores is None or self.labels_seen is None:
            return
        log_probs, too_sure = self.foretold(z, labels)
        count = float(len(labels))
        if self.weights is not None:
            log_probs, count = log_probs * self.weights.to(log_probs), self.weights.sum().item()
        total = log_probs.sum(-1)
        if distributed.state.group is not None:
            total, counts = distributed.everyones(total, total.new_tensor(count))
            count = counts.item()
        scores = -(total / count).to(self.link_scores.dtype)
        if not bool(torch.isfinite(scores).all()):  # an output far out of range says nothing of the link
            return
        if not new:
            scores += too_sure
        self.labels_seen += count
        window = min(max(self.labels_seen.item() / 2, count), self.memory)
        self.link_scores.lerp_(scores, min(1.0, count / window))

    def foretold(self, z: Gaussian, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probabilities (candidates, N) of the labels, and which candidates are too sure for those that
        were known."""
        ones = [1] * z.ndim
        noise_var = torch.tensor(CANDIDATES, dtype=z.dtype, device=z.device).square().view(-1, *ones)
        scales = torch.tensor(SCALES, dtype=z.dtype, device=z.device).view(-1, 1, *ones)
        margins = z.mean / (scales * z.variance + noise_var).sqrt()
        too_sure = scales * distributed.mean_sample(z.variance).mean() + noise_var < KNOWN**2
        return self.log_prob_at(margins, labels).flatten(0, 1), too_sure.flatten()

    @property
    def predictive_noise_var(self) -> Tensor:
        """The noise to predict with: the link's, if it is learned; never below `noise_std`."""
        return self.predictive_link()[1]

    @property
    def predictive_scale(self) -> float:
        """c, by which predictions multiply the outputs' variance."""
        return self.predictive_link()[0]

    def predictive_link(self) -> tuple[float, Tensor]:
        """Both."""
        best = self.best_link()
        if best is None:
            return 1.0, super().predictive_noise_var
        return best[0], self.noise_var.clamp_min(best[1] ** 2)

    def best_link(self) -> tuple[float, float] | None:
        """c and √R of the lowest score, if labels have been scored."""
        if self.link_scores is None or self.labels_seen is None or not self.labels_seen.item():
            return None
        size = len(CANDIDATES)
        rows: list[list[float]] = self.link_scores[: len(SCALES) * size].view(-1, size).tolist()
        best = min(range(len(rows)), key=lambda row: min(rows[row]))
        return SCALES[best], lowest(rows[best], CANDIDATES)


def lowest(scores: list[float], candidates: tuple[float, ...]) -> float:
    """The candidate with the lowest score, of some in geometric progression: the vertex of the parabola through the
    best of them and its neighbours."""
    best = min(range(len(scores)), key=scores.__getitem__)
    offset = 0.0
    if 0 < best < len(scores) - 1:
        below, here, above = scores[best - 1 : best + 2]
        bend = below - 2 * here + above
        offset = 0.5 * (below - above) / bend if bend > 0 else 0.0
    return float(candidates[best] * (candidates[1] / candidates[0]) ** offset)
