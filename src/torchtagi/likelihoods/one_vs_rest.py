"""Classes, each against the rest.

Each of the C outputs says of one class whether it is the label's: it is observed as +1 where it is and as −1 where
it is not. Outputs m = E[code] = 2p − 1 come from codes of variance 1 − m², which is small where m is near ±1 and
large between. So log-odds are flat in the middle and steep at both ends,

    P(c) ∝ exp l(h_c),        h = m/√(c v + R),        l(h) = ¼ (log Φ(2h) − log Φ(−2h))

That is one form of the link. The other takes an output for the class's share (1 + m)/2, kept above zero,

    P(c) ∝ (s(m_c) exp(m_c/2))^τ,        s(m) = w log(1 + exp((1 + m)/w)),        w² = v + 0.1²

It is as steep at −1 as the first, and nearly straight from there on, which is right where classes are often
confused with each other and outputs are seldom near +1: on CIFAR-10 it has 2 % less NLL. The first is right about
digits, where outputs of +0.9 are hardly ever wrong. The labels decide on the form, and on its R and c or its τ.

A label says one thing, and its C − 1 outputs of −1 say it once more each. Together they count for `REST` outputs at
most: where there are more, their noise is so many times as large (docs/maths.md has what that does for a hundred
classes).

Probit odds log Φ(h) − log Φ(−h) have the same tails, ±h²/2, and would be those of exactly one of C independent
outputs above zero. They are steeper in the middle, and have up to 6 % more NLL (results/ablation/link_shape.jsonl).

The two kinds of uncertainty follow from the law of total variance of the indicator 1[label = c], p the class
probability if the network's weights were known:

    P(1 − P)  =  var[p]  +  E[p(1 − p)]         epistemic + aleatoric

For small v, var[p_c] is Σ_k J_ck² v_k with

    J_ck = P(c) (1[k = c] − P(k)) l′(h_k)/√R,        l′(h) = φ(2h)/(2 Φ(2h) Φ(−2h))

What is uncertain cannot be more so than P(1 − P). A probit output Φ(x), x ~ N(h √(1 + r), r), keeps to that by
itself: E[Φ] = Φ(h), and var[Φ] = Φ(h) − 2 T(h, 1/√(1 + 2r)) − Φ(h)² with Owen's function T (Owen 1980), which is
φ(h)² r for small r. So var[p_c] is taken from it at Φ(h) = P(c) and r = Σ_k J_ck² v_k/φ(h)²: right for small v.
By the second form J has its slope τ (s′/s + ½) at the means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.special import log_ndtr

from torchtagi.checks import require_labels
from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods.classification import owens_t
from torchtagi.likelihoods.link import LabelLikelihood, lowest
from torchtagi.likelihoods.observation import require_output
from torchtagi.prediction import ClassPrediction

REST = 3.0
POWERS = tuple(0.5 * 2 ** (k / 4) for k in range(15))  # τ: 0.5 … 5.7, where networks had 1.4 to 2.9
WIDTH = 0.1  # of w: between 0.05 and 0.14 it does not matter


class OneVsRest(LabelLikelihood):
    """Labels 0..classes−1, observed as +1 at the label's output and −1 at the others; a network has an output for
    each class."""

    candidates = LabelLikelihood.candidates + len(POWERS)

    def __init__(
        self, classes: int, noise_std: float | Sequence[float] | Tensor = 1.0, learn_noise: bool = False
    ) -> None:
        super().__init__(noise_std, learn_noise)
        if not isinstance(classes, int) or classes < 2:
            raise ValueError(f"classes must be a whole number of at least 2, got {classes!r}")
        self.classes = self.outputs = classes

    def check(self, z: Gaussian, labels: Tensor) -> Tensor:
        require_output("z", z, self.outputs)
        require_labels("labels", labels, len(z), self.classes)
        return labels

    def targets(self, z: Gaussian, y: Tensor) -> tuple[Tensor, None]:
        return torch.full_like(z.mean, -1.0).scatter_(1, self.check(z, y).long()[:, None], 1.0), None

    def training_noise_var(self, z: Gaussian, target: Tensor, observed: Tensor | None) -> Tensor:
        noise_var = super().training_noise_var(z, target, observed)
        return torch.where(target > 0, noise_var, noise_var * max((self.classes - 1) / REST, 1.0))

    def log_probs(self, z: Gaussian) -> Tensor:
        """(N, C), normalised: what `predict` gives without the two uncertainties, at a fraction of the cost."""
        power = self.power
        if power is not None:
            return (power * log_share(require_output("z", z, self.outputs))).log_softmax(-1)
        return log_odds(self.margin(require_output("z", z, self.outputs))).log_softmax(-1)

    def log_prob(self, z: Gaussian, labels: Tensor) -> Tensor:
        known = self.check(z, labels)
        return chosen(self.log_probs(z), known)

    @property
    def power(self) -> float | None:
        """τ, if labels are predicted by their outputs' shares."""
        if self.best_link() is None or self.link_scores is None:
            return None
        scores: list[float] = self.link_scores.tolist()
        margins, shares = scores[: -len(POWERS)], scores[-len(POWERS) :]
        return lowest(shares, POWERS) if min(shares) < min(margins) else None

    def foretold(self, z: Gaussian, labels: Tensor) -> tuple[Tensor, Tensor]:
        """What was known is taken for surer the larger τ is: of such labels the first form alone is judged."""
        log_probs, too_sure = super().foretold(z, labels)
        powers = torch.tensor(POWERS, dtype=z.dtype, device=z.device).view(-1, 1, 1)
        shares = chosen((powers * log_share(z)).log_softmax(-1), labels)
        all_of_them = torch.ones(len(POWERS), dtype=torch.bool, device=too_sure.device)
        return torch.cat([log_probs, shares]), torch.cat([too_sure, all_of_them])

    def log_prob_at(self, margin: Tensor, labels: Tensor) -> Tensor:
        return chosen(log_odds(margin).log_softmax(-1), labels)

    def predict(self, z: Gaussian) -> ClassPrediction:
        with torch.no_grad():
            log_probs = self.log_probs(z)
            probs = log_probs.exp()
            total = probs * (1 - probs)
            epistemic = torch.minimum(self.epistemic_variance(z, log_probs.double().exp()).to(probs), total)
        return ClassPrediction(probs, epistemic, total - epistemic)

    def epistemic_variance(self, z: Gaussian, probs: Tensor) -> Tensor:
        """var[p] of each class; in float64, because it is a difference of what is nearly alike."""
        power = self.power
        if power is not None:
            width = share_width(z).double()
            k = (1 + z.mean.double()) / width
            slope = power * (0.5 + (functional.logsigmoid(k) - log_softplus(k)).exp() / width)
            of_output = slope.square() * z.variance.double()
        else:
            margin = self.margin(z).double()
            ratio = self.predictive_scale * z.variance.double() / self.predictive_noise_var
            twice = 2 * margin
            slope = (-0.5 * twice.square() - log_ndtr(twice) - log_ndtr(-twice)).exp() / math.sqrt(8 * math.pi)
            of_output = slope.square() * ratio
        of_others = probs.square() * of_output
        of_others = (of_others.sum(-1, keepdim=True) - of_others).clamp_min(0)
        h = torch.special.ndtri(probs.clamp(1e-15, 1 - 1e-15))
        density = (-0.5 * h.square()).exp() / math.sqrt(2 * math.pi)
        r = probs.square() * ((1 - probs).square() * of_output + of_others) / density.square()
        single = torch.special.ndtr(h)
        variance: Tensor = single - 2 * owens_t(h, torch.rsqrt(1 + 2 * r)) - single.square()
        return variance.clamp_min(0)

    def config(self) -> dict[str, Any]:
        return {"classes": self.classes, **super().config()}

    def extra_repr(self) -> str:
        return f"classes={self.classes}, {super().extra_repr()}"


def log_odds(margin: Tensor) -> Tensor:
    twice = 2 * margin
    odds: Tensor = 0.25 * (log_ndtr(twice) - log_ndtr(-twice))
    return odds


def log_share(z: Gaussian) -> Tensor:
    """log s(m) + m/2 of each output."""
    width = share_width(z)
    share: Tensor = log_softplus((1 + z.mean) / width) + width.log() + z.mean / 2
    return share


def share_width(z: Gaussian) -> Tensor:
    return (z.variance + WIDTH**2).sqrt()


def log_softplus(k: Tensor) -> Tensor:
    """log log(1 + eᵏ), which far below zero is k."""
    return torch.where(k < -15, k, functional.softplus(k.clamp_min(-15)).log())


def chosen(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Those of the labels, (…, N) of (…, N, C)."""
    indices = labels.long()[:, None].expand(*log_probs.shape[:-1], 1)
    return log_probs.gather(-1, indices)[..., 0]
