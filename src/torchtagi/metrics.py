"""How good predictions are, and how well they know it.

Classification functions take `probs`, (N, C) with rows that sum to one, and `labels`, (N,) integers.
Regression functions take Gaussian predictions `mean`, `var` and `target` of equal shapes. Scalars come
back as Python floats, computed in double precision where the device has it.

A quantity that the data do not define is NaN, never a made-up number: an AUROC when only one of the two
kinds is present. Averages over classes leave such classes out.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

PROBABILITY_FLOOR = torch.finfo(torch.float32).tiny
"""Below this a probability counts as this in `nll`: a certain mistake costs 87.3 nats, not infinity."""

_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class ReliabilityBins:
    """Equal-width confidence bins (edges[b], edges[b+1]]; means of an empty bin are NaN."""

    edges: Tensor
    counts: Tensor
    confidence: Tensor
    accuracy: Tensor


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """The error rate `risk[k]` if only the `coverage[k]` most confident share is answered.

    `area` is the mean risk over all coverages 1/N, 2/N, …, 1; the better the ranking, the smaller.
    """

    coverage: Tensor
    risk: Tensor
    area: float


def error_rate(probs: Tensor, labels: Tensor) -> float:
    """The fraction of examples whose likeliest class is wrong; of equally likely ones the first counts."""
    _check_classification(probs, labels)
    return float(_wide(probs.argmax(1) != labels).mean())


def nll(probs: Tensor, labels: Tensor) -> float:
    """Mean negative natural logarithm of the true class's probability, floored at `PROBABILITY_FLOOR`."""
    _check_classification(probs, labels)
    true_class = _wide(probs).gather(1, labels.long()[:, None])
    return float(-true_class.clamp_min(PROBABILITY_FLOOR).log().mean())


def brier(probs: Tensor, labels: Tensor) -> float:
    """Squared distance of the probabilities from the one-hot truth, summed over classes: 0 to 2."""
    _check_classification(probs, labels)
    distance = _wide(probs).clone()
    distance[torch.arange(len(labels), device=labels.device), labels.long()] -= 1.0
    return float(distance.square().sum(1).mean())


def reliability_bins(probs: Tensor, labels: Tensor, bins: int = 15) -> ReliabilityBins:
    """Mean confidence and accuracy of the examples in each confidence bin, for reliability diagrams."""
    _check_classification(probs, labels)
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    confidence, predicted = probs.max(1)
    confidence = _wide(confidence)
    edges = torch.linspace(0.0, 1.0, bins + 1, dtype=confidence.dtype, device=confidence.device)
    # Interior edges alone, so that a confidence of 1 + rounding still has a bin.
    bin_of = torch.bucketize(confidence, edges[1:-1])
    counts = torch.bincount(bin_of, minlength=bins)
    total_confidence = torch.zeros_like(edges[1:]).index_add_(0, bin_of, confidence)
    total_correct = torch.zeros_like(edges[1:]).index_add_(0, bin_of, _wide(predicted == labels))
    return ReliabilityBins(edges, counts, total_confidence / counts, total_correct / counts)


def ece(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Expected calibration error (Guo et al. 2017): mean |accuracy − confidence| over the examples' bins."""
    table = reliability_bins(probs, labels, bins)
    gap = (table.accuracy - table.confidence).abs().nan_to_num(0.0)
    return float((gap * table.counts).sum() / len(labels))


def auroc(scores: Tensor, positives: Tensor) -> float:
    """The probability that a positive scores above a negative, ties counting half (Mann–Whitney).

    NaN if there are no positives or no negatives.
    """
    _check_scores(scores, positives)
    return _auroc(scores, positives.bool())


def auroc_one_vs_rest(probs: Tensor, labels: Tensor) -> float:
    """AUROC of each class's probability for telling it from the others, averaged over the classes present.

    A class without examples has no AUROC and is left out; NaN if only one class is present.
    """
    _check_classification(probs, labels)
    per_class = [_auroc(probs[:, c], labels == c) for c in range(probs.shape[1])]
    defined = [value for value in per_class if not math.isnan(value)]
    return sum(defined) / len(defined) if defined else math.nan


def auroc_misclassification(probs: Tensor, labels: Tensor) -> float:
    """The probability that a right answer has more confidence than a wrong one.

    NaN if all answers are right or all are wrong.
    """
    _check_classification(probs, labels)
    confidence, predicted = probs.max(1)
    return _auroc(confidence, predicted == labels)


def fpr_at_tpr(scores: Tensor, positives: Tensor, tpr: float = 0.95) -> float:
    """The share of negatives that pass the highest threshold (score ≥ it) which lets `tpr` of positives pass.

    NaN if there are no positives or no negatives.
    """
    _check_scores(scores, positives)
    if not 0.0 < tpr <= 1.0:
        raise ValueError(f"tpr must be in (0, 1], got {tpr}")
    positive = positives.bool()
    n_positive = int(positive.sum())
    if n_positive in (0, len(scores)):
        return math.nan
    # The tolerance undoes products like 0.07 · 100 = 7.000000000000001.
    needed = max(1, math.ceil(tpr * n_positive - 1e-9))
    threshold = scores[positive].sort(descending=True).values[needed - 1]
    return float(_wide(scores[~positive] >= threshold).mean())


def confusion_matrix(probs: Tensor, labels: Tensor) -> Tensor:
    """Counts, int64 (C, C): row = true class, column = likeliest class."""
    _check_classification(probs, labels)
    n_classes = probs.shape[1]
    cell = labels.long() * n_classes + probs.argmax(1)
    return torch.bincount(cell, minlength=n_classes**2).view(n_classes, n_classes)


def risk_coverage(probs: Tensor, labels: Tensor) -> RiskCoverage:
    """Selective prediction by top-1 confidence.

    Among equally confident examples each is given the group's error rate, the expectation over a random
    order: the curve must not depend on how the data happen to be sorted.
    """
    _check_classification(probs, labels)
    confidence, predicted = probs.max(1)
    wrong = _wide(predicted != labels)
    _, group, size = torch.unique(-confidence, return_inverse=True, return_counts=True)
    group_wrong = torch.zeros(len(size), dtype=wrong.dtype, device=wrong.device).index_add_(0, group, wrong)
    expected_wrong = (group_wrong / size).repeat_interleave(size)
    answered = torch.arange(1, len(labels) + 1, dtype=wrong.dtype, device=wrong.device)
    risk = expected_wrong.cumsum(0) / answered
    return RiskCoverage(coverage=answered / len(labels), risk=risk, area=float(risk.mean()))


def entropy(probs: Tensor) -> Tensor:
    """Entropy of each row in nats, (N,)."""
    _check_probs(probs)
    per_class: Tensor = torch.special.entr(probs)
    return per_class.sum(1)


def rmse(mean: Tensor, target: Tensor) -> float:
    """Root mean squared error."""
    _check_regression(mean=mean, target=target)
    return float((_wide(mean) - _wide(target)).square().mean().sqrt())


def gaussian_nll(mean: Tensor, var: Tensor, target: Tensor) -> float:
    """Mean negative log-density of `target` under N(mean, var), per element, in nats."""
    _check_regression(mean=mean, var=var, target=target)
    variance = _wide(var)
    squared = (_wide(target) - _wide(mean)).square()
    return float((0.5 * ((2.0 * math.pi * variance).log() + squared / variance)).mean())


def interval_coverage(mean: Tensor, var: Tensor, target: Tensor, level: float = 0.95) -> float:
    """The fraction of targets inside the central interval that should hold the share `level` of them."""
    _check_regression(mean=mean, var=var, target=target)
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be strictly between 0 and 1, got {level}")
    z = math.sqrt(2.0) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
    inside = (_wide(target) - _wide(mean)).abs() <= z * _wide(var).sqrt()
    return float(_wide(inside).mean())


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


def regression_scores(mean: Tensor, var: Tensor, target: Tensor) -> dict[str, float]:
    """The usual ones at once, over the targets that are not NaN."""
    observed = ~torch.isnan(target)
    mean, var, target = mean[observed], var[observed], target[observed]
    return {
        "rmse": rmse(mean, target),
        "nll": gaussian_nll(mean, var, target),
        "coverage_95": interval_coverage(mean, var, target),
    }


def _auroc(scores: Tensor, positive: Tensor) -> float:
    n_positive = int(positive.sum())
    n_negative = len(scores) - n_positive
    if n_positive == 0 or n_negative == 0:
        return math.nan
    _, group, size = torch.unique(scores, return_inverse=True, return_counts=True)
    midrank = _wide(size.cumsum(0)) - (_wide(size) - 1.0) / 2.0
    rank_sum = float(midrank[group][positive].sum())
    return (rank_sum - n_positive * (n_positive + 1) / 2.0) / (n_positive * n_negative)


def _wide(values: Tensor) -> Tensor:
    """Double precision, or single on devices that have no double."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def _check_probs(probs: Tensor) -> None:
    if probs.ndim != 2 or probs.numel() == 0:
        raise ValueError(f"probs must have shape (N, C) with N, C ≥ 1, got {tuple(probs.shape)}")
    if not probs.is_floating_point():
        raise TypeError(f"probs must be floating point, got {probs.dtype}")
    if not bool(probs.isfinite().all()):
        row = int((~probs.isfinite()).any(1).nonzero()[0])
        raise ValueError(f"probs must be finite, row {row} is {probs[row].tolist()}")
    if bool((probs < 0).any()):
        raise ValueError(f"probs must not be negative, got {float(probs.min())}")
    sums = _wide(probs).sum(1)
    worst = int((sums - 1.0).abs().argmax())
    if abs(float(sums[worst]) - 1.0) > _SUM_TOLERANCE:
        raise ValueError(
            f"probs must sum to 1 within {_SUM_TOLERANCE} in each row, row {worst} sums to {float(sums[worst]):.6g}"
        )


def _check_classification(probs: Tensor, labels: Tensor) -> None:
    _check_probs(probs)
    if labels.shape != probs.shape[:1]:
        raise ValueError(f"labels must have shape ({len(probs)},) like probs, got {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"labels must be integers, got {labels.dtype}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= probs.shape[1]:
        raise ValueError(f"labels must be in 0…{probs.shape[1] - 1}, got {low if low < 0 else high}")


def _check_scores(scores: Tensor, positives: Tensor) -> None:
    if scores.ndim != 1 or len(scores) == 0:
        raise ValueError(f"scores must have shape (N,) with N ≥ 1, got {tuple(scores.shape)}")
    if positives.shape != scores.shape:
        raise ValueError(f"positives must have shape {tuple(scores.shape)}, got {tuple(positives.shape)}")
    if bool(scores.isnan().any()):
        raise ValueError(f"scores must not be NaN, number {int(scores.isnan().nonzero()[0])} is")
    outside = (positives != 0) & (positives != 1)
    if bool(outside.any()):
        raise ValueError(f"positives must be true or false (1 or 0), got {positives[outside][0].item()}")


def _check_regression(**values: Tensor) -> None:
    shape = values["mean"].shape
    for name, value in values.items():
        if value.shape != shape or value.numel() == 0:
            raise ValueError(
                f"{name} must have the non-empty shape of mean, {tuple(shape)}, got {tuple(value.shape)}"
            )
        if not bool(value.isfinite().all()):
            raise ValueError(f"{name} must be finite, got {value[~value.isfinite()][0].item()}")
        if name == "var" and not bool((value > 0).all()):
            raise ValueError(f"var must be positive, got {float(value.min())}")
