"""Metrics against scikit-learn, torchmetrics and brute force."""

import itertools
import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from torchtagi import metrics

APPROX = {"rel": 1e-6, "abs": 1e-9}


def random_predictions(
    n: int = 400, classes: int = 5, seed: int = 0, coarse: bool = False
) -> tuple[Tensor, Tensor]:
    """Predictions that are right more often than not; `coarse` rounds them so that many tie."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=generator)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1.0
    if coarse:
        logits = logits.round()
    return logits.softmax(1), labels


@pytest.fixture(params=[False, True], ids=["distinct", "tied"])
def predictions(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    return random_predictions(coarse=request.param)


def test_error_rate_nll_brier_match_sklearn(predictions: tuple[Tensor, Tensor]) -> None:
    probs, labels = predictions
    accuracy = sklearn.metrics.accuracy_score(labels.numpy(), probs.numpy().argmax(1))
    assert metrics.error_rate(probs, labels) == pytest.approx(1 - accuracy, **APPROX)
    assert metrics.nll(probs, labels) == pytest.approx(
        sklearn.metrics.log_loss(labels.numpy(), probs.numpy(), labels=range(5)), **APPROX
    )
    one_hot = np.eye(5)[labels.numpy()]
    assert metrics.brier(probs, labels) == pytest.approx(((probs.numpy() - one_hot) ** 2).sum(1).mean(), **APPROX)


def test_binary_brier_is_twice_sklearns_single_class_score() -> None:
    probs, labels = random_predictions(classes=2, seed=3)
    single = sklearn.metrics.brier_score_loss(labels.numpy(), probs[:, 1].numpy())
    assert metrics.brier(probs, labels) == pytest.approx(2 * single, **APPROX)


def test_nll_of_a_certain_mistake_is_the_floor_and_finite() -> None:
    probs = torch.tensor([[1.0, 0.0]])
    assert metrics.nll(probs, torch.tensor([1])) == pytest.approx(-math.log(1.17549435e-38), rel=1e-6)
    assert metrics.nll(probs, torch.tensor([0])) == 0.0


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_matches_torchmetrics(predictions: tuple[Tensor, Tensor], bins: int) -> None:
    probs, labels = predictions
    expected = multiclass_calibration_error(probs, labels, num_classes=5, n_bins=bins, norm="l1")
    # torchmetrics sums in single precision.
    assert metrics.ece(probs, labels, bins) == pytest.approx(float(expected), abs=2e-6)


def test_ece_by_hand_with_bins_closed_above() -> None:
    """A confidence of exactly 1/2 belongs to the bin (0, 1/2], not to (1/2, 1]."""
    probs = torch.tensor([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0], [0.25, 0.75]])
    labels = torch.tensor([1, 0, 0, 0])
    table = metrics.reliability_bins(probs, labels, bins=2)
    assert table.counts.tolist() == [1, 3]
    assert table.confidence.tolist() == pytest.approx([0.5, 2.5 / 3])
    assert table.accuracy.tolist() == pytest.approx([0.0, 2 / 3])
    assert metrics.ece(probs, labels, bins=2) == pytest.approx(0.25 * 0.5 + 0.75 * (2.5 / 3 - 2 / 3))


def test_empty_reliability_bins_are_nan_and_cost_nothing() -> None:
    probs, labels = torch.tensor([[0.95, 0.05], [0.95, 0.05]]), torch.tensor([0, 1])
    table = metrics.reliability_bins(probs, labels, bins=10)
    assert table.confidence[:9].isnan().all()
    assert table.accuracy[9] == 0.5
    assert metrics.ece(probs, labels, bins=10) == pytest.approx(0.45, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30))
def test_auroc_is_the_share_of_won_pairs(pairs: list[tuple[int, bool]]) -> None:
    scores = torch.tensor([float(score) for score, _ in pairs])
    positives = torch.tensor([positive for _, positive in pairs])
    duels = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for (high, right), (low, other) in itertools.product(pairs, pairs)
        if right and not other
    ]
    value = metrics.auroc(scores, positives)
    if duels:
        assert value == pytest.approx(sum(duels) / len(duels), **APPROX)
    else:
        assert math.isnan(value)


def test_auroc_matches_sklearn_and_accepts_infinities() -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(300, generator=generator).mul(3).round()
    scores[0], scores[1] = math.inf, -math.inf
    positives = torch.rand(300, generator=generator) < 0.3
    expected = sklearn.metrics.roc_auc_score(positives.numpy(), scores.clamp(-99, 99).numpy())
    assert metrics.auroc(scores, positives) == pytest.approx(expected, **APPROX)
    assert metrics.auroc(scores, positives.int()) == pytest.approx(expected, **APPROX)


def test_auroc_one_vs_rest_matches_sklearn(predictions: tuple[Tensor, Tensor]) -> None:
    probs, labels = predictions
    expected = sklearn.metrics.roc_auc_score(labels.numpy(), probs.numpy(), multi_class="ovr", average="macro")
    assert metrics.auroc_one_vs_rest(probs, labels) == pytest.approx(expected, **APPROX)


def test_auroc_one_vs_rest_leaves_absent_classes_out() -> None:
    probs, labels = random_predictions(seed=2)
    present = labels != 3
    probs, labels = probs[present], labels[present]
    per_class = [sklearn.metrics.roc_auc_score((labels == c).numpy(), probs[:, c].numpy()) for c in (0, 1, 2, 4)]
    assert metrics.auroc_one_vs_rest(probs, labels) == pytest.approx(np.mean(per_class), **APPROX)
    assert math.isnan(metrics.auroc_one_vs_rest(probs, torch.zeros_like(labels)))


def test_auroc_misclassification_matches_sklearn(predictions: tuple[Tensor, Tensor]) -> None:
    probs, labels = predictions
    correct = (probs.argmax(1) == labels).numpy()
    expected = sklearn.metrics.roc_auc_score(correct, probs.max(1).values.numpy())
    assert metrics.auroc_misclassification(probs, labels) == pytest.approx(expected, **APPROX)


def test_auroc_misclassification_without_mistakes_is_undefined() -> None:
    probs, _ = random_predictions()
    assert math.isnan(metrics.auroc_misclassification(probs, probs.argmax(1)))


def test_regression_metrics_match_scipy_and_sklearn() -> None:
    generator = torch.Generator().manual_seed(5)
    mean = torch.randn(500, 1, generator=generator)
    var = torch.rand(500, 1, generator=generator) + 0.1
    target = mean + 1.3 * var.sqrt() * torch.randn(500, 1, generator=generator)
    scores = metrics.regression_scores(mean, var, target)
    assert scores["rmse"] == pytest.approx(
        sklearn.metrics.root_mean_squared_error(target.numpy(), mean.numpy()), rel=1e-5
    )
    wide_mean, wide_std = mean.double().numpy(), var.double().sqrt().numpy()
    density = stats.norm.logpdf(target.double().numpy(), wide_mean, wide_std)
    assert scores["nll"] == pytest.approx(-density.mean(), **APPROX)
    low, high = stats.norm.interval(0.95, wide_mean, wide_std)
    inside = (low <= target.double().numpy()) & (target.double().numpy() <= high)
    assert scores["coverage_95"] == pytest.approx(inside.mean(), **APPROX)


def test_half_precision_is_computed_wide() -> None:
    """Summing a thousand half-precision terms in half precision would be off by percents."""
    probs, labels = random_predictions(n=3000, classes=2)
    half = probs.half()
    half = torch.stack([half[:, 0], 1 - half[:, 0]], 1)
    assert metrics.brier(half, labels) == pytest.approx(metrics.brier(half.double(), labels), rel=1e-12)
    assert metrics.nll(half, labels) == pytest.approx(metrics.nll(half.double(), labels), rel=1e-12)


GOOD_PROBS, GOOD_LABELS = torch.tensor([[0.5, 0.5], [0.2, 0.8]]), torch.tensor([0, 1])
CLASSIFICATION = [
    metrics.error_rate,
    metrics.nll,
    metrics.brier,
    metrics.ece,
    metrics.reliability_bins,
    metrics.auroc_one_vs_rest,
    metrics.auroc_misclassification,
]


@pytest.mark.parametrize("metric", CLASSIFICATION, ids=lambda metric: metric.__name__)
@pytest.mark.parametrize(
    ("probs", "labels", "error", "message"),
    [
        (torch.tensor([0.5, 0.5]), GOOD_LABELS, ValueError, r"probs must have shape .*\(2,\)"),
        (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), ValueError, r"probs .*\(0, 2\)"),
        (torch.tensor([[1, 0], [0, 1]]), GOOD_LABELS, TypeError, "probs must have a floating dtype.*int64"),
        (torch.tensor([[0.5, 0.5], [math.nan, 1.0]]), GOOD_LABELS, ValueError, "probs must be finite"),
        (torch.tensor([[0.5, 0.5], [0.2, 0.7]]), GOOD_LABELS, ValueError, r"row 1 sums to 0\.9$"),
        (
            torch.tensor([[1.5, -0.5], [0.2, 0.8]]),
            GOOD_LABELS,
            ValueError,
            "probs must not be negative.*-0.5",
        ),
        (GOOD_PROBS, torch.tensor([0]), ValueError, r"labels must have shape \(2,\).*\(1,\)"),
        (GOOD_PROBS, torch.tensor([0.0, 1.0]), TypeError, "labels must have an integer dtype.*float32"),
        (GOOD_PROBS, torch.tensor([0, 2]), ValueError, r"labels must lie in 0\.\.1, got 2"),
        (GOOD_PROBS, torch.tensor([-1, 1]), ValueError, r"labels must lie in 0\.\.1, got -1"),
    ],
)
def test_classification_metrics_refuse_bad_input(metric, probs, labels, error, message) -> None:
    metric(GOOD_PROBS, GOOD_LABELS)
    with pytest.raises(error, match=message):
        metric(probs, labels)


def test_sums_within_the_tolerance_pass() -> None:
    assert metrics.error_rate(torch.tensor([[0.5004, 0.5]]), torch.tensor([0])) == 0.0


def test_auroc_refuses_bad_input() -> None:
    with pytest.raises(ValueError, match="scores must not be NaN"):
        metrics.auroc(torch.tensor([0.0, math.nan]), torch.tensor([True, False]))
    with pytest.raises(ValueError, match=r"one shape \(N,\), N ≥ 1, got \(2,\) and \(3,\)"):
        metrics.auroc(torch.tensor([0.0, 1.0]), torch.tensor([True, False, True]))
    with pytest.raises(ValueError, match=r"got \(0,\) and \(0,\)"):
        metrics.auroc(torch.zeros(0), torch.zeros(0, dtype=torch.bool))


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="bins must be positive and finite, got 0"):
        metrics.ece(GOOD_PROBS, GOOD_LABELS, bins=0)


def test_regression_metrics_refuse_bad_input() -> None:
    mean = torch.tensor([0.0, 1.0])
    with pytest.raises(ValueError, match=r"value must have .* \(2,\), got \(2, 1\)"):
        metrics.regression_scores(mean, mean + 1, mean[:, None])
    with pytest.raises(ValueError, match=r"var must be positive and finite, got 0\.0"):
        metrics.regression_scores(mean, mean, mean)
    with pytest.raises(ValueError, match="target must be finite, got inf"):
        metrics.regression_scores(mean, mean + 1, torch.tensor([0.0, math.inf]))
