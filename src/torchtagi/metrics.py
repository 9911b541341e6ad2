"""How good predictions are, and how well they know it.

Classification functions take `probs`, (N, C) with rows that sum to one, and `labels`, (N,) integers.
Regression functions take Gaussian predictions `mean`, `var` and `target` of equal shapes. Scalars come
back as Python floats, computed in double precision where the device has it.

A quantity that the data do not define is NaN, never a made-up number: an AUROC when only one of the two
kinds is present. Averages over classes leave such classes out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchtagi.checks import require_labels, require_positive, require_values
from torchtagi.gaussian import Gaussian

PROBABILITY_FLOOR = torch.finfo(torch.float32).tiny
"""Below this a probability counts as this in `nll`: a certain mistake costs 87.3 nats, not infinity."""

SUM_TOLERANCE = 1e-3


class ReliabilityBins(NamedTuple):
    """Confidence bins of equal width, closed above; means of an empty bin are NaN."""

    counts: Tensor
    confidence: Tensor
    accuracy: Tensor


# ---- classes -------------------------------------------------------------------------------------------------


def classification_scores(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """The usual ones at once; the error in %."""
    return {
        "error": round(100 * error_rate(probs, labels), 4),
        "nll": nll(probs, labels),
        "ece": ece(probs, labels),
        "brier": brier(probs, labels),
        "auroc_ovr": auroc_one_vs_rest(probs, labels),
        "auroc_misclassification": auroc_misclassification(probs, labels),
    }


def error_rate(probs: Tensor, labels: Tensor) -> float:
    """The fraction of examples whose likeliest class is wrong; of equally likely ones the first counts."""
    require_classification(probs, labels)
    return float(wide(probs.argmax(1) != labels).mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean negative natural logarithm of the true class's probability, floored at `PROBABILITY_FLOOR`."""
    require_classification(probs, labels)
    true_class = wide(probs).gather(1, labels.long()[:, None])
    return float(-true_class.clamp_min(PROBABILITY_FLOOR).log().mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Squared distance of the probabilities from the one-hot truth, summed over classes: 0 to 2."""
    require_classification(probs, labels)
    truth = torch.nn.functional.one_hot(labels.long(), probs.shape[1])
    return float((wide(probs) - truth).square().sum(1).mean())


def reliability_bins(probs: Tensor, labels: Tensor, bins: int = 15) -> ReliabilityBins:
    """Mean confidence and accuracy of the examples in each confidence bin, for reliability diagrams."""
    require_classification(probs, labels)
    require_positive("bins", bins)
    confidence, predicted = probs.max(1)
    confidence = wide(confidence)
    edges = torch.linspace(0.0, 1.0, bins + 1, dtype=confidence.dtype, device=confidence.device)
    # Interior edges alone, so that a confidence of 1 + rounding still has a bin.
    bin_of = torch.bucketize(confidence, edges[1:-1])
    counts = torch.bincount(bin_of, minlength=bins)
    total_confidence = torch.zeros_like(edges[1:]).index_add_(0, bin_of, confidence)
    total_correct = torch.zeros_like(edges[1:]).index_add_(0, bin_of, wide(predicted == labels))
    return ReliabilityBins(counts, total_confidence / counts, total_correct / counts)


def ece(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error (Guo et al. 2017): mean |accuracy − confidence| over the examples' bins."""
    table = reliability_bins(probs, labels, bins)
    gap = (table.accuracy - table.confidence).abs().nan_to_num(0.0)
    return float((gap * table.counts).sum() / len(labels))


def auroc_one_vs_rest(probs: Tensor, labels: Tensor) -> float:
    """AUROC of each class's probability for telling it from the others, averaged over the classes present."""
    require_classification(probs, labels)
    per_class = [auroc(probs[:, c], labels == c) for c in range(probs.shape[1])]
    return float(torch.tensor(per_class, dtype=torch.float64).nanmean())


def auroc_misclassification(probs: Tensor, labels: Tensor) -> float:
    """The probability that a right answer has more confidence than a wrong one."""
    require_classification(probs, labels)
    confidence, predicted = probs.max(1)
    return auroc(confidence, predicted == labels)


# ---- two kinds told apart by a score -------------------------------------------------------------------------


def auroc(scores: Tensor, positives: Tensor) -> float:
    """The probability that a positive scores above a negative, ties counting half (Mann–Whitney).

    NaN if there are no positives or no negatives.
    """
    if bool(scores.isnan().any()):
        raise ValueError("scores must not be NaN")
    if scores.ndim != 1 or not len(scores) or positives.shape != scores.shape:
        shapes = f"{tuple(scores.shape)} and {tuple(positives.shape)}"
        raise ValueError(f"scores and positives must have one shape (N,), N ≥ 1, got {shapes}")
    positive = positives.bool()
    count, others = int(positive.sum()), int((~positive).sum())
    if not count or not others:
        return math.nan
    _, group, size = torch.unique(scores, return_inverse=True, return_counts=True)
    midrank = wide(size.cumsum(0)) - (wide(size) - 1.0) / 2.0
    return (float(midrank[group][positive].sum()) - count * (count + 1) / 2.0) / (count * others)


# ---- real numbers --------------------------------------------------------------------------------------------


def regression_scores(mean: Tensor, var: Tensor, target: Tensor) -> dict[str, float]:
    """Root mean squared error, mean negative log-density of a target under N(mean, var) in nats, and the share of
    targets inside the central 95 % interval; over the targets that are not NaN."""
    predicted, target, observed = Gaussian(wide(mean), wide(var)), wide(target), ~torch.isnan(target)
    require_positive("var", predicted.variance)
    density = predicted.log_prob(target)  # which refuses targets of another shape
    require_values("target", target[observed])
    low, high = predicted.interval(0.95)
    return {
        "rmse": float((predicted.mean - target).square().nanmean().sqrt()),
        "nll": float(-density.nanmean()),
        "coverage_95": float(wide((low <= target) & (target <= high))[observed].mean()),
    }


# ---- checks --------------------------------------------------------------------------------------------------


def wide(values: Tensor) -> Tensor:
    """Double precision, or single on devices that have no double."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def require_classification(probs: Tensor, labels: Tensor) -> None:
    require_values("probs", probs)
    if probs.ndim != 2:
        raise ValueError(f"probs must have shape (N, C), got {tuple(probs.shape)}")
    if bool((probs < 0).any()):
        raise ValueError(f"probs must not be negative, got {float(probs.min())}")
    sums = wide(probs).sum(1)
    worst = int((sums - 1.0).abs().argmax())
    if abs(float(sums[worst]) - 1.0) > SUM_TOLERANCE:
        raise ValueError(f"probs must sum to 1 in each row, row {worst} sums to {float(sums[worst]):.6g}")
    require_labels("labels", labels, len(probs), probs.shape[1])
