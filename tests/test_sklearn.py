"""Estimators: scikit-learn's own checks, and what they promise beyond."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from torchtagi.fitting import epoch_order
from torchtagi.sklearn import HELD_OUT_ORDER, TAGIClassifier, TAGIRegressor

IN_BATCHES = (
    "rows are learned batch after batch, so a row three times is learned in other batches than one of weight 3"
)


@parametrize_with_checks(
    [TAGIRegressor(8, epochs=3), TAGIClassifier(8, epochs=3)],
    expected_failed_checks=lambda estimator: {"check_sample_weight_equivalence_on_dense_data": IN_BATCHES},
)
def test_scikit_learns_own_checks(estimator: Any, check: Callable) -> None:
    check(estimator)


@pytest.fixture
def line() -> tuple[np.ndarray, np.ndarray]:
    return noisy_line(120, seed=0)


def noisy_line(rows: int, seed: int, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal([1, -20, 300], [1, 5, 40], (rows, 3))
    return X, 7 + 2 * X[:, 0] - 0.3 * X[:, 1] + noise * rng.normal(size=rows)


def iris(names: bool = False) -> tuple[np.ndarray, np.ndarray]:
    found = load_iris()
    X = StandardScaler().fit_transform(found.data)
    return X, found.target_names[found.target] if names else found.target


def linear(**options: Any) -> TAGIRegressor:
    return TAGIRegressor((), random_state=0, **options)


def small(kind: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """An estimator that has learned little, and its data."""
    if kind == "regressor":
        X, y = noisy_line(40, seed=1)
        return TAGIRegressor(4, epochs=2, random_state=0), X, y
    X, y = iris(names=True)
    return TAGIClassifier(4, epochs=2, random_state=0), X, y


def answers(estimator: Any, X: np.ndarray) -> np.ndarray:
    if isinstance(estimator, TAGIClassifier):
        return estimator.predict_proba(X)
    return np.stack(estimator.predict(X, return_std=True))


KINDS = pytest.mark.parametrize("kind", ["regressor", "classifier"])


# ---- scikit-learn's tools ---------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("copied", [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy], ids=["pickle", "copy"])
def test_a_copy_predicts_and_learns_on_like_the_original(kind: str, copied: Callable) -> None:
    estimator, X, y = small(kind)
    estimator.fit(X, y)
    again = copied(estimator)
    assert again.get_params() == estimator.get_params()
    assert (answers(again, X) == answers(estimator, X)).all()
    before = answers(estimator, X)
    again.partial_fit(X[:5], y[:5])
    assert (answers(estimator, X) == before).all(), "a copy shares nothing"
    estimator.partial_fit(X[:5], y[:5])
    assert (answers(again, X) == answers(estimator, X)).all()
    assert (answers(again, X) != before).any()


def test_a_clone_has_the_arguments_and_learned_nothing(line: tuple) -> None:
    fitted = TAGIRegressor((3, 2), noise=0.5, covariance="diagonal", horizon=50, epochs=1).fit(*line)
    again = clone(fitted)
    assert again.get_params() == fitted.get_params()
    with pytest.raises(NotFittedError):
        again.predict(line[0])


def test_a_search_over_arguments_finds_that_a_parabola_is_not_linear() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (90, 1))
    y = X[:, 0] ** 2 + 0.1 * rng.normal(size=90)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), TAGIRegressor(epochs=10, random_state=0)),
        {"tagiregressor__hidden_layer_sizes": [(), (8,)], "tagiregressor__noise": np.array([0.1, 1.0])},
        cv=3,
    ).fit(X, y)
    assert search.best_params_["tagiregressor__hidden_layer_sizes"] == (8,)
    assert search.best_score_ > 0.95
    assert pickle.loads(pickle.dumps(search)).predict(X).shape == (90,), "numpy's numbers are kept in files"


def test_classes_are_learned_across_folds() -> None:
    X, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), TAGIClassifier(20, epochs=5, random_state=0))
    assert cross_val_score(model, X, y, cv=3).mean() > 0.9
    assert cross_val_score(model, X, y, cv=3, scoring="neg_log_loss").mean() > -0.3


def test_names_of_a_data_frame_are_kept(line: tuple) -> None:
    pandas = pytest.importorskip("pandas")
    X, y = line
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    regressor = linear(epochs=2).fit(frame, pandas.Series(y))
    assert list(regressor.feature_names_in_) == ["a", "b", "c"]
    assert (regressor.predict(frame) == linear(epochs=2).fit(X, y).predict(X)).all()
    with pytest.raises(ValueError, match="feature names"):
        regressor.predict(frame[["c", "b", "a"]])
    regressor.partial_fit(frame[:1], y[:1])
    regressor.learn_one(frame.iloc[1].to_dict(), y[1])
    frame.loc[4, "b"] = np.nan
    with pytest.raises(ValueError, match="got nan in row 4, column 'b'"):
        regressor.predict(frame)


# ---- targets and predictions ------------------------------------------------------------------------------------


def test_labels_may_be_strings() -> None:
    X, y = iris()
    _, names = iris(names=True)
    by_name, by_number = (TAGIClassifier(8, epochs=3, random_state=0).fit(X, labels) for labels in (names, y))
    assert by_name.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert (by_name.predict_proba(X) == by_number.predict_proba(X)).all()
    assert (by_name.predict(X) == by_name.classes_[by_number.predict(X)]).all()
    assert by_name.score(X, names) > 0.9


def test_probabilities_sum_to_1_and_are_the_models() -> None:
    classifier, X, y = small("classifier")
    probs = classifier.fit(X, y).predict_proba(X)
    assert probs.dtype == np.float64
    assert np.abs(probs.sum(1) - 1).max() < 1e-12
    assert np.allclose(np.exp(classifier.predict_log_proba(X)), probs)
    assert (classifier.classes_[probs.argmax(1)] == classifier.predict(X)).all()
    assert np.allclose(probs, classifier.model_.predict(torch.tensor(X)).probs.numpy())
    assert log_loss(y, probs) < np.log(3), "and scikit-learn warns of no sum"


def test_several_targets_are_learned_each_with_its_noise() -> None:
    X, y = noisy_line(200, seed=2)
    both = np.stack([y, 100 * X[:, 0] + 30 * np.random.default_rng(3).normal(size=200)], 1)
    regressor = linear(epochs=5).fit(X, both)
    mean, std = regressor.predict(X, return_std=True)
    assert mean.shape == std.shape == (200, 2)
    assert std.mean(0) == pytest.approx([0.5, 30], rel=0.15)
    assert regressor.score(X, both) > 0.85
    assert regressor.sample_y(X[:4], 5).shape == (4, 2, 5)
    with pytest.raises(ValueError, match=r"shape \(1, 2\), as before, got \(1, 3\)"):
        regressor.partial_fit(X[:1], [[1.0, 2.0, 3.0]])
    with pytest.raises(ValueError, match=r"shape \(2, 2\), as before, got \(2,\)"):
        regressor.partial_fit(X[:2], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"inconsistent numbers of samples: \[1, 2\]"):
        regressor.partial_fit(X[:1], both[:2])


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)], ids=["flat", "column"])
def test_predictions_have_the_shape_of_the_first_targets(line: tuple, shape: tuple[int, ...]) -> None:
    X, y = line
    regressor = linear().partial_fit(X[:50], y[:50].reshape(shape))
    for others in ((-1,), (-1, 1)):
        regressor.partial_fit(X[50:60], y[50:60].reshape(others))
        assert regressor.predict(X).shape == y.reshape(shape).shape


def test_intervals_hold_their_share_of_new_observations() -> None:
    regressor = linear(epochs=10).fit(*noisy_line(300, seed=4))
    X, y = noisy_line(2000, seed=5)
    mean, std = regressor.predict(X, return_std=True)
    for level in (0.5, 0.95):
        low, high = regressor.predict_interval(X, level)
        assert np.mean((low < y) & (y < high)) == pytest.approx(level, abs=0.04)
        expected = stats.norm.interval(level, mean, std)
        assert np.allclose([low, high], expected, rtol=1e-9)
    with pytest.raises(ValueError, match="level must lie between 0 and 1, got 95"):
        regressor.predict_interval(X, 95)


def test_a_predicted_noise_varies_with_the_input() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (600, 1))
    y = np.where(X[:, 0] > 0, 1.0, 0.1) * rng.normal(size=600)
    std = TAGIRegressor(20, noise="predicted", epochs=5, random_state=0).fit(X, y).predict([[-0.6], [0.6]], True)[1]
    assert std[1] > 2.5 * std[0]


def test_samples_have_the_predictions_moments(line: tuple) -> None:
    X, y = line
    regressor = linear(epochs=2).fit(X, y)
    mean, std = regressor.predict(X[:3], return_std=True)
    draws = regressor.sample_y(X[:3], 20_000, random_state=1)
    assert draws.shape == (3, 20_000)
    assert (np.abs(draws.mean(1) - mean) < 5 * std / np.sqrt(20_000)).all()
    assert draws.std(1) == pytest.approx(std, rel=5 / np.sqrt(40_000))
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 5 / np.sqrt(20_000)
    assert (draws == regressor.sample_y(X[:3], 20_000, random_state=1)).all()
    assert (draws != regressor.sample_y(X[:3], 20_000, random_state=2)).all()


# ---- weights ----------------------------------------------------------------------------------------------------


@KINDS
def test_a_row_of_weight_0_is_absent(kind: str) -> None:
    estimator, X, y = small(kind)
    weights = np.random.default_rng(0).integers(0, 2, len(X)) * 1.5
    seen = weights > 0
    without = clone(estimator).fit(X[seen], y[seen], weights[seen])
    estimator.fit(X, y, weights)
    assert (answers(estimator, X) == answers(without, X)).all()
    estimator.partial_fit(X, y, sample_weight=weights)
    without.partial_fit(X[seen], y[seen], sample_weight=weights[seen])
    assert (answers(estimator, X) == answers(without, X)).all()
    before = answers(estimator, X)
    assert (answers(estimator.partial_fit(X, y, sample_weight=np.zeros(len(X))), X) == before).all()


def test_a_new_row_of_weight_2_is_the_row_twice(line: tuple) -> None:
    """Exact where the model is linear, its covariance full and the noise given."""
    X, y = line
    learned = linear(noise=0.5, covariance="full").partial_fit(X, y)
    weighted, repeated = copy.deepcopy(learned), copy.deepcopy(learned)
    row = np.add(X[:1], [1.0, 3.0, 5.0])
    target = learned.predict(row) + 0.1
    weighted.partial_fit(row, target, sample_weight=[2])
    repeated.partial_fit(row.repeat(2, 0), target.repeat(2))
    assert np.allclose(answers(weighted, X), answers(repeated, X), rtol=1e-9)
    assert np.abs(answers(weighted, X) - answers(learned, X)).max() > 1e-4


def test_a_fit_counts_weights_as_observations() -> None:
    """Up to the order in which rows are learned."""
    X, y = noisy_line(60, seed=6)
    weights = np.random.default_rng(1).choice([1, 6], 60)
    weighted = linear().fit(X, y, weights)
    repeated = linear().fit(X.repeat(weights, 0), y.repeat(weights))
    (mean, std), (expected, expected_std) = answers(weighted, X), answers(repeated, X)
    assert mean == pytest.approx(expected, abs=0.03)
    assert std == pytest.approx(expected_std, rel=0.01)
    unweighted_mean, unweighted_std = answers(linear().fit(X, y), X)
    assert np.abs(mean - unweighted_mean).max() > 0.05
    assert np.abs(std / unweighted_std - 1).max() > 0.05


def test_a_label_of_more_weight_is_likelier() -> None:
    X, y = np.zeros((40, 2)) + np.arange(40)[:, None] % 2, np.array([0, 0, 1, 1] * 10)
    weights = np.where(y == 1, 4.0, 1.0)
    even, weighted = (TAGIClassifier(4, epochs=20, random_state=0).fit(X, y, w) for w in (None, weights))
    assert even.predict_proba(X)[:, 1] == pytest.approx(0.5, abs=0.05)
    assert weighted.predict_proba(X)[:, 1] == pytest.approx(0.8, abs=0.15)


# ---- streams ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_a_stream_of_single_rows_is_learned(covariance: str) -> None:
    X, y = noisy_line(300, seed=7)
    regressor = linear(covariance=covariance)
    errors = []
    for row in range(300):
        if row:
            errors.append(float(y[row] - regressor.predict(X[row : row + 1])[0]))
        regressor.partial_fit(X[row : row + 1], y[row : row + 1])
    assert np.std(errors[150:]) < 0.6, "of targets that spread by 2.5, with a noise of 0.5"
    assert regressor.model_.observations == 300


def test_a_stream_is_no_surer_than_right() -> None:
    X, y = noisy_line(300, seed=7)
    regressor = TAGIRegressor(random_state=0).partial_fit(X[:1], y[:1])
    surprises = []
    for row in range(1, 300):
        mean, std = regressor.predict(X[row : row + 1], return_std=True)
        surprises.append(float((y[row] - mean[0]) / std[0]))
        regressor.partial_fit(X[row : row + 1], y[row : row + 1])
    assert np.std(surprises[150:]) < 1.2
    assert regressor.model_.joint is not None


@KINDS
def test_batches_of_any_kind_and_size_are_the_same(kind: str) -> None:
    """scikit-learn's checks are left out for plain arrays; results are the same."""
    estimator, X, y = small(kind)
    first = {} if kind == "regressor" else {"classes": sorted(set(y))}
    plain, listed = (clone(estimator).partial_fit(X[:3], y[:3], **first) for _ in range(2))
    rows = np.arange(3, 43) if kind == "regressor" else np.arange(3, 150, 3)
    X, y = X[rows[rows < len(X)]].astype(np.float32), y[rows[rows < len(y)]]
    for start, end in ((0, 1), (1, 2), (2, 19), (19, 37)):
        plain.partial_fit(X[start:end], y[start:end])
        listed.partial_fit(X[start:end].tolist(), y[start:end].tolist())
        assert (answers(plain, X) == answers(listed, X.tolist())).all()


def test_classes_are_those_of_the_first_call() -> None:
    classifier, X, y = small("classifier")
    with pytest.raises(ValueError, match="classes must be given to the first partial_fit"):
        classifier.partial_fit(X, y)
    with pytest.raises(ValueError, match=r"label 'virginica' in row 100 is not among the classes \['setosa'"):
        classifier.partial_fit(X, y, classes=["versicolor", "setosa"])
    assert not hasattr(classifier, "classes_")
    classifier.partial_fit(X[:1], y[:1], classes=["virginica", "versicolor", "setosa"])
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        classifier.partial_fit(X[:1], y[:1], classes=["setosa", "versicolor"])
    with pytest.raises(ValueError, match="label 'rose' in row 1 is not among the classes"):
        classifier.partial_fit(X[:2], ["setosa", "rose"])
    classifier.partial_fit(X, y, classes=["setosa", "versicolor", "virginica"])
    assert classifier.score(X, y) > 0.7


def test_dicts_are_rows() -> None:
    X, y = noisy_line(30, seed=8)
    names = ["c", "a", "b"]
    by_dict, by_array = linear(), linear()
    assert by_dict.predict_one({"a": 1.0}) is None
    for row, target in zip(X, y, strict=True):
        x = dict(zip(names, row.tolist(), strict=True))
        assert by_dict.learn_one(dict(sorted(x.items())) if by_dict.predict_one(x) else x, float(target)) is None
        by_array.partial_fit(row[None], [target])
    assert by_dict.feature_names_in_.tolist() == names
    assert by_dict.predict_one({"a": 1.0, "b": 2.0, "c": 3.0}) == by_array.predict([[3.0, 1.0, 2.0]])[0]
    with pytest.raises(ValueError, match=r"missing \['b'\], unknown \['d'\]"):
        by_dict.learn_one({"a": 1.0, "c": 2.0, "d": 3.0}, 1.0)
    for bad in (float("nan"), None, "much"):
        with pytest.raises(ValueError, match=rf"the feature 'b' must be a finite number, got {bad!r}"):
            by_dict.predict_one({"a": 1.0, "b": bad, "c": 3.0})
    with pytest.raises(ValueError, match="y must hold finite numbers, no NaN, no inf, got nan in row 0"):
        by_dict.learn_one({"a": 1.0, "b": 2.0, "c": 3.0}, float("nan"))
    with pytest.raises(ValueError, match="the features have no names"):
        by_array.predict_one({"a": 1.0})
    several = linear()
    several.learn_one({"a": 1.0}, [1.0, 2.0])
    assert len(several.predict_one({"a": 0.0})) == 2


def test_dicts_are_rows_of_a_class() -> None:
    classifier, X, y = small("classifier")
    rows = [dict(zip("abcd", row, strict=True)) for row in X.tolist()]
    assert classifier.predict_one(rows[0]) is None
    assert classifier.predict_proba_one(rows[0]) == {}
    with pytest.raises(ValueError, match="classes must be given"):
        classifier.learn_one(rows[0], y[0])
    assert not hasattr(classifier, "feature_names_in_")
    for row in range(0, 150, 5):
        classifier.learn_one(rows[row], y[row], **({"classes": sorted(set(y))} if row == 0 else {}))
    probs = classifier.predict_proba_one(rows[149])
    assert list(probs) == ["setosa", "versicolor", "virginica"]
    assert sum(probs.values()) == pytest.approx(1)
    assert max(probs, key=probs.__getitem__) == classifier.predict_one(rows[149])


# ---- how a fit goes ---------------------------------------------------------------------------------------------


@KINDS
def test_random_state_decides_alone(kind: str) -> None:
    estimator, X, y = small(kind)
    found = []
    for seed, state in ((1, 0), (2, 0), (2, 5), (3, np.random.RandomState(0))):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the generator that a random_state of None would draw from
        torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]  # noqa: NPY002
        found.append(answers(clone(estimator).set_params(random_state=state).fit(X, y), X))
        assert (torch.get_rng_state() == torch_state).all()
        assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002
    first, same, other, by_instance = found
    assert (first == same).all()
    assert (first == by_instance).all()
    assert (first != other).any()


def test_early_stopping_keeps_the_best_epoch() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.integers(0, 2, 60)  # nothing to learn: more epochs, more overconfident
    classifier = TAGIClassifier(8, epochs=60, early_stopping=True, random_state=0).fit(X, y)
    scores = [row["log_likelihood"] for row in classifier.history_]
    best = int(np.argmax(scores))
    assert classifier.model_.epochs == best + 1
    assert len(scores) == best + 1 + 10 < 60
    plain = TAGIClassifier(8, epochs=60, random_state=0).fit(X, y)
    new, labels = rng.normal(size=(300, 3)), rng.integers(0, 2, 300)
    assert log_loss(labels, classifier.predict_proba(new)) < log_loss(labels, plain.predict_proba(new)) - 0.1


def test_early_stopping_counts_the_weights_of_what_it_holds_out() -> None:
    X, y = noisy_line(80, seed=9)
    options = {"epochs": 3, "early_stopping": True}
    seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
    held_out = epoch_order(80, seed, HELD_OUT_ORDER)[:8].numpy()
    for weights in (None, np.linspace(0.1, 2, 80)):
        regressor = linear(**options).fit(X, y, weights)
        scores = stats.norm.logpdf(y[held_out], *regressor.predict(X[held_out], return_std=True))
        best = max(row["log_likelihood"] for row in regressor.history_)
        own = None if weights is None else weights[held_out]
        assert best == pytest.approx(np.average(scores, weights=own), rel=1e-6)
    with pytest.raises(ValueError, match="needs 2 samples at least; got 1 sample"):
        linear(**options).fit(X[:1], y[:1])


@KINDS
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(kind: str) -> None:
    estimator, X, y = small(kind)
    bad = X.copy()
    bad[7, 1] = np.nan

    def fails(estimator: Any, match: str, X: Any = X, y: Any = y, weights: Any = None) -> None:
        with pytest.raises((ValueError, FloatingPointError), match=match):
            estimator.fit(X, y, weights)

    untouched = dict(vars(estimator))
    fails(estimator, "column 1", bad)
    fails(clone(estimator).set_params(epochs=0), "epochs must be a whole number of at least 1, got 0")
    assert vars(estimator) == untouched
    before = answers(estimator.fit(X, y), X)
    fitted = dict(vars(estimator))
    fails(estimator, "column 1", bad)
    fails(estimator, "must not be negative, got -2 in row 3", weights=[1, 1, 1, -2] + [1] * (len(X) - 4))
    fails(estimator, "zero for all samples", weights=np.zeros(len(X)))
    fails(estimator.set_params(batch_size=0), "batch_size must be a whole number of at least 1, got 0", X[:, :2])
    fails(estimator.set_params(batch_size=16, hidden_layer_sizes=(3, 0)), r"hidden_layer_sizes .* got \(3, 0\)")
    estimator.set_params(hidden_layer_sizes=4)
    assert vars(estimator) == fitted
    assert (answers(estimator, X) == before).all()
    with pytest.raises(ValueError, match="column 1"):
        estimator.partial_fit(bad, y)
    assert (answers(estimator, X) == before).all(), "data are looked at before they are learned"


# ---- what is refused --------------------------------------------------------------------------------------------


class Frame:
    """As much of a data frame as names columns."""

    columns = ("age", "weight")

    def __init__(self, values: Any) -> None:
        self.values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values.astype(dtype or self.values.dtype)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        ([[1.0, 2.0], [3.0, np.nan]], "X must hold finite numbers, no NaN, no inf, got nan in row 1, column 1"),
        ([[1.0, 2.0], [-np.inf, 4.0]], "got -inf in row 1, column 0"),
        ([[1.0, 2.0], [1e200, 4.0]], r"got 1e\+200 in row 1, column 0"),
        ([[1.0, "many"], [3.0, 4.0]], "got 'many' in row 0, column 1"),
        ([[1.0, 2.0], [3.0, None]], "got None in row 1, column 1"),
        (Frame([[1.0, 2.0], [3.0, np.nan]]), "got nan in row 1, column 'weight'"),
        ([[1.0, 2.0, 3.0]] * 2, "3 features, but .* is expecting 2 features"),
        ([1.0, 2.0], "Expected 2D array, got 1D array instead"),
    ],
)
def test_bad_inputs_are_named(X: Any, words: str) -> None:
    regressor = linear().partial_fit([[1.0, 2.0], [2.0, 1.0]], [1.0, 2.0])
    for refused in (lambda: regressor.predict(X), lambda: regressor.partial_fit(X, [1.0, 2.0])):
        with pytest.raises(ValueError, match=words):
            refused()


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([1.0, np.nan], "y must hold finite numbers, no NaN, no inf, got nan in row 1"),
        ([[1.0, 2.0], [np.inf, 3.0]], "got inf in row 1, column 0"),
        ([1e200, 1.0], r"got 1e\+200 in row 0"),
        ([1.0, "one"], "got 'one' in row 1"),
        ([1.0, 2.0, 3.0], "inconsistent numbers of samples"),
    ],
)
def test_bad_targets_are_named(y: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        linear().fit([[1.0, 2.0], [2.0, 1.0]], y)


@pytest.mark.parametrize("labels", [[0.0, np.nan], np.array(["a", np.nan], object), np.array(["a", None], object)])
def test_bad_labels_are_named(labels: Any) -> None:
    with pytest.raises(ValueError, match=r"y must hold labels, no NaN, no inf, got (nan|None) in row 1"):
        TAGIClassifier().fit([[1.0, 2.0], [2.0, 1.0]], labels)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, np.nan], "sample_weight must hold finite numbers, no NaN, no inf, got nan in row 1"),
        ([1.0], r"sample_weight must have shape \(2,\), one a sample, got \(1,\)"),
    ],
)
def test_bad_weights_are_named(weights: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        linear().fit([[1.0, 2.0], [2.0, 1.0]], [1.0, 2.0], weights)


@pytest.mark.parametrize("option", [{"noise": "loud"}, {"noise": -1.0}, {"covariance": "half"}, {"horizon": 0}])
def test_bad_arguments_are_named_by_the_fit(option: dict[str, Any]) -> None:
    ((name, value),) = option.items()
    with pytest.raises(ValueError, match=f"{name} must .* got {value!r}"):
        linear(**option).fit([[1.0], [2.0]], [1.0, 2.0])
    with pytest.raises(TypeError, match="positional"):
        TAGIRegressor((), 3)  # type: ignore[misc]


def test_one_class_is_none() -> None:
    with pytest.raises(ValueError, match=r"two classes at least, got one class: \['a'\]"):
        TAGIClassifier().fit([[1.0], [2.0]], ["a", "a"])
