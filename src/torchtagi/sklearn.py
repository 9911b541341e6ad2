"""Estimators for scikit-learn: perceptrons with ReLUs, learned by `Regressor` and `Classifier`.

    regressor = TAGIRegressor().fit(X, y)
    mean, std = regressor.predict(X_new, return_std=True)
    regressor.partial_fit(X_more, y_more)

They add nothing to inference: `model_` is the `Regressor` or `Classifier`, with all that it can do. Here is
scikit-learn's side: checks of data, feature names, labels of any kind, sample weights, random states, pickles. A
`fit` that raises leaves an estimator as it was; `partial_fit` looks at all data before it learns any.

Networks are float64, as scikit-learn's numbers are. `random_state` alone decides a fit; torch's generator is
neither read nor moved. A NaN in `y` is refused, as scikit-learn does it; `Regressor` takes it for a missing target.

A sample of weight w counts for w observations, and one of weight 0 is not seen. So weights are not relative: if
they sum to 1, all samples together say as much as one.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from torchtagi import nn
from torchtagi.classifier import Classifier
from torchtagi.fitting import Row, epoch_order
from torchtagi.prediction import RegressionPrediction
from torchtagi.regressor import Regressor

HELD_OUT = 0.1  # share of the samples that early stopping judges by
HELD_OUT_ORDER = -3  # the order by which they are drawn, among those of the epochs
LARGEST = 1e150  # number that is taken: its square, which scales and variances have, is one
PATIENCE = 10  # epochs without a better one: the log-likelihood of a few held-out samples goes up and down


@dataclass(eq=False, repr=False)
class Estimator(BaseEstimator, ABC):  # type: ignore[misc]
    """What both share. A dataclass, because a constructor for scikit-learn does nothing but keep its arguments."""

    hidden_layer_sizes: int | Sequence[int] = (50,)
    _: KW_ONLY
    epochs: int = 40
    batch_size: int = 16
    early_stopping: bool = False
    horizon: float | str | None = None
    random_state: Any = None
    verbose: bool = False

    # ---- what each of them says -----------------------------------------------------------------------------

    checks_of_y: ClassVar[Mapping[str, bool]] = {}
    """Arguments of scikit-learn's `validate_data`."""

    @abstractmethod
    def _new_model(self, features: int, y: Tensor) -> Any:
        """A model that has learned nothing, for targets like y."""

    @abstractmethod
    def _require_targets(self, y: Any) -> None:
        """Refuse the first target that is none."""

    @abstractmethod
    def _encoded(self, y: Any) -> Tensor:
        """Targets as the model takes them."""

    @abstractmethod
    def _plain_targets(self, y: np.ndarray) -> Tensor | None:
        """The same of an array, if there is nothing in it that scikit-learn would have to look at."""

    @abstractmethod
    def _log_likelihood(self, model: Any, x: Tensor, y: Tensor) -> Tensor:
        """One number a sample."""

    # ---- learning -------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn the data `epochs` times. What was learned before is forgotten."""
        with all_or_nothing(self):
            self.__dict__.pop("model_", None)  # nothing of it says what the targets may be
            arrays = self._checked(X, y, sample_weight, reset=True)
            self._meet(arrays[1])
            columns = self._columns(*arrays)
            with seeded(self.random_state) as seed:
                model = self._new_model(columns[0].shape[1], columns[1])
                self.model_, self.history_ = self._fitted(model, columns, seed)
        return self

    def _meet(self, y: Any) -> None:
        """Look at the targets of a fit."""

    def _fitted(self, model: Any, columns: tuple[Tensor, ...], seed: int) -> tuple[Any, list[Row]]:
        """The model after its epochs, or after the best of them; a row for each."""
        options = {"epochs": as_python(self.epochs), "batch_size": as_python(self.batch_size), "seed": seed}
        options["progress"] = bool(self.verbose)
        if not self.early_stopping:
            return model, model.fit(columns, **options)
        order = epoch_order(len(columns[0]), seed, HELD_OUT_ORDER)
        held_out = math.ceil(HELD_OUT * len(order))
        if held_out == len(order):
            raise ValueError("early_stopping=True holds samples out, and needs 2 samples at least; got 1 sample")
        x, y, *weights = (column[order[:held_out]] for column in columns)
        best, kept, worse = -math.inf, model, 0

        def stop(row: Row) -> bool:
            nonlocal best, kept, worse
            scores = self._log_likelihood(model, x, y)
            counts = weights[0] if weights else torch.ones_like(scores)
            row["log_likelihood"] = score = float((scores * counts).sum() / counts.sum())
            worse += 1
            if score > best or kept is model:
                best, kept, worse = score, copy.deepcopy(model), 0
            return worse >= PATIENCE

        history = model.fit(tuple(column[order[held_out:]] for column in columns), stop=stop, **options)
        return kept, history

    def _learn(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """What every `partial_fit` does."""
        if "model_" in vars(self):
            columns = self._plain(X, y) if sample_weight is None else None
            if columns is None:
                columns = self._columns(*self._checked(X, y, sample_weight, reset=False))
            if len(columns[0]):
                self.model_.update(*columns)
            return self
        with all_or_nothing(self):
            columns = self._columns(*self._checked(X, y, sample_weight, reset=True))
            with seeded(self.random_state):
                model = self._new_model(columns[0].shape[1], columns[1])
                model.update(*columns)
            self.model_ = model
        return self

    def _network(self, features: int, outputs: int) -> nn.Sequential:
        sizes: Any = self.hidden_layer_sizes
        hidden: list[Any] = [sizes] if isinstance(sizes, Integral) else list(sizes)
        if not all(isinstance(size, Integral) and int(size) >= 1 for size in hidden):
            raise ValueError(f"hidden_layer_sizes must be whole numbers of at least 1, got {sizes!r}")
        pairs = pairwise([features, *map(int, hidden), outputs])
        layers = [layer for pair in pairs for layer in (nn.Linear(*pair), nn.ReLU())]
        return nn.Sequential(*layers[:-1]).double()

    # ---- data -----------------------------------------------------------------------------------------------

    def _validated(self, X: Any, *y: Any, reset: bool) -> Any:
        """Inputs, and targets if there are some, that scikit-learn finds nothing wrong with. An entry that is no
        number is refused with its place."""
        options = self.checks_of_y if y else {}
        try:
            validated = validate_data(self, X, *y, reset=reset, dtype=np.float64, **options)
        except ValueError:
            require_entries("X", X, is_number, "finite numbers")
            for targets in y:
                self._require_targets(targets)
            raise
        return (numbers("X", validated[0]), validated[1]) if y else numbers("X", validated)

    def _checked(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> tuple[Any, Any, Any]:
        """Inputs, targets and weights as arrays. With `reset` they say what the features are."""
        X, y = self._validated(X, y, reset=reset)
        if sample_weight is None:
            return X, y, None
        weights = numbers("sample_weight", sample_weight).numpy()
        if weights.shape != (len(X),):
            raise ValueError(f"sample_weight must have shape ({len(X)},), one a sample, got {weights.shape}")
        if weights.min() < 0:
            raise ValueError(f"sample_weight must not be negative, got {weights.min():g} in row {weights.argmin()}")
        if reset and not weights.any():
            raise ValueError("sample_weight is zero for all samples, so that there is nothing to learn from")
        return X, y, weights

    def _columns(self, X: Any, y: Any, weights: Any) -> tuple[Tensor, ...]:
        """What the model learns from."""
        columns = X, self._encoded(y)
        if weights is None:
            return columns
        seen = torch.tensor(weights > 0)
        return tuple(column[seen] for column in (*columns, torch.tensor(weights)))

    def _plain(self, X: Any, y: Any) -> tuple[Tensor, ...] | None:
        """The same of arrays with nothing that scikit-learn would have to look at: its checks take longer than to
        learn a row."""
        if type(y) is not np.ndarray or (x := self._plain_inputs(X)) is None or len(x) != len(y):
            return None
        targets = self._plain_targets(y)
        return None if targets is None else (x, targets)

    def _plain_inputs(self, X: Any) -> Tensor | None:
        if "feature_names_in_" in vars(self) or type(X) is not np.ndarray or X.ndim != 2:
            return None
        return plain(X) if X.shape[1] == self.n_features_in_ else None

    def _inputs(self, X: Any) -> Tensor:
        """What the model predicts at."""
        check_is_fitted(self, "model_")
        x = self._plain_inputs(X)
        return self._validated(X, reset=False) if x is None else x

    # ---- streams of dicts, as in river ----------------------------------------------------------------------

    def learn_one(self, x: Mapping[str, float], y: Any, **first: Any) -> None:
        """`partial_fit` of one sample, a dict of features. Those of the first one are those of all; a classifier
        needs `classes=` with it."""
        if "model_" in vars(self):
            self.model_.update(self._row(x, self._names()), self._encoded([y]))
            return
        with all_or_nothing(self):
            names = list(x)
            self.partial_fit(self._row(x, names).numpy(), [y], **first)
            self.feature_names_in_ = np.array(names, dtype=object)

    def _names(self) -> list[str]:
        if "feature_names_in_" not in vars(self):
            raise ValueError("the features have no names: this estimator has learned from arrays without any")
        names: list[str] = self.feature_names_in_.tolist()
        return names

    def _row(self, x: Mapping[str, float], names: Sequence[str]) -> Tensor:
        if x.keys() != set(names):
            missing, unknown = set(names) - x.keys(), x.keys() - set(names)
            raise ValueError(f"x must have the features {names}; missing {[*missing]}, unknown {[*unknown]}")
        values = [x[name] for name in names]
        for name, value in zip(names, values, strict=True):
            if not is_number(value):
                raise ValueError(f"the feature {name!r} must be a finite number, got {value!r}")
        return torch.tensor([values], dtype=torch.float64)

    # ---- copies ---------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False, kw_only=True)
class TAGIRegressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """A perceptron for real numbers, one or several, that says how far off it may be.

    `hidden_layer_sizes`    units of each hidden layer; () is a linear model
    `epochs`                how often `fit` goes through the data. Repeats are counted as such, so that more do
                            no harm but take time
    `batch_size`            samples shown at a time
    `early_stopping`        hold out a tenth of the samples, end when ten epochs were no better for their
                            likelihood, and keep the best
    `horizon`               the number of observations after which what was learned has faded: for `partial_fit`
                            in a world that drifts; `auto` finds it from the errors, with a full covariance
    `random_state`          of the prior's means, and of the samples' order
    `verbose`               show progress
    `noise`                 of the observations: `learned`, one for each target; `predicted` for each input; or its
                            standard deviation
    `covariance`            of the weights: `full`, `diagonal`, or `auto`, what the network's size allows

    Inputs and targets are standardised inside. `model_` is the `Regressor`, `history_` has a row an epoch.
    """

    noise: str | float = "learned"
    covariance: str = "auto"

    checks_of_y: ClassVar[Mapping[str, bool]] = {"multi_output": True, "y_numeric": True}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _new_model(self, features: int, y: Tensor) -> Regressor:
        net = self._network(features, 1 if y.ndim == 1 else y.shape[1])
        noise, horizon = as_python(self.noise), as_python(self.horizon)
        return Regressor(net, noise=noise, covariance=self.covariance, horizon=horizon)

    def _require_targets(self, y: Any) -> None:
        require_entries("y", y, is_number, "finite numbers")

    def _encoded(self, y: Any) -> Tensor:
        targets = numbers("y", y)
        if "model_" not in vars(self):
            return targets
        shape = (len(targets), *self._shape_of_targets())
        if targets.numel() != math.prod(shape):
            raise ValueError(f"y must have the shape {shape}, as before, got {tuple(targets.shape)}")
        return targets.reshape(shape)

    def _plain_targets(self, y: np.ndarray) -> Tensor | None:
        return plain(y) if y.shape[1:] == self._shape_of_targets() else None

    def _shape_of_targets(self) -> tuple[int, ...]:
        return () if self.model_.flat else (self.model_.targets,)

    def _log_likelihood(self, model: Regressor, x: Tensor, y: Tensor) -> Tensor:
        return model.predict(x).log_prob(y).reshape(len(x), -1).sum(1)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn new samples, one or many, once. None of them may be one that was learned before."""
        return self._learn(X, y, sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of what will be observed; with `return_std` its standard deviation, too."""
        prediction = self._prediction(X)
        mean = prediction.mean.numpy()
        return (mean, prediction.std.numpy()) if return_std else mean

    def predict_interval(self, X: Any, level: float = 0.95) -> tuple[Any, Any]:
        """The lower and the upper end of intervals that hold such a share of what will be observed."""
        low, high = self._prediction(X).interval(level)
        return low.numpy(), high.numpy()

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Any:
        """What might be observed, (rows, n_samples) or (rows, targets, n_samples): drawn independently for each
        row, as if nothing that one teaches said anything of another."""
        mean, std = (part[..., None] for part in self.predict(X, return_std=True))
        return mean + std * check_random_state(random_state).standard_normal((*mean.shape[:-1], n_samples))

    def predict_one(self, x: Mapping[str, float]) -> Any:
        """The mean at a dict of features; None if nothing was learned yet."""
        if "model_" not in vars(self):
            return None
        return self.model_.predict(self._row(x, self._names())).mean[0].tolist()

    def _prediction(self, X: Any) -> RegressionPrediction:
        inputs = self._inputs(X)
        prediction: RegressionPrediction = self.model_.predict(inputs)
        return prediction


@dataclass(eq=False, repr=False, kw_only=True)
class TAGIClassifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """A perceptron for classes, whose probabilities say what it does not know.

    Its arguments are those of `TAGIRegressor`, but for `noise` and `covariance`. Here every epoch counts as new
    evidence, so many of them make it overconfident.

    Inputs are taken as they are, so standardise them, as for scikit-learn's own perceptrons. Labels may be numbers
    or strings. `classes_` are the labels in order, `model_` is the `Classifier`, `history_` has a row an epoch.
    """

    epochs: int = 10  # results/ablation/classifier-epochs.jsonl

    def _meet(self, y: Any) -> None:
        try:
            self.classes_ = unique_labels(y)
        except TypeError:  # they have no order
            self._require_targets(y)
            raise
        self._places = {label: place for place, label in enumerate(self.classes_.tolist())}

    def _new_model(self, features: int, y: Tensor) -> Classifier:
        count = len(self.classes_)
        if count < 2:
            raise ValueError(f"there must be two classes at least, got one class: {self.classes_.tolist()}")
        return Classifier(self._network(features, count), count, horizon=as_python(self.horizon))

    def _require_targets(self, y: Any) -> None:
        require_entries("y", y, lambda label: isinstance(label, str) or is_number(label), "labels")

    def _encoded(self, y: Any) -> Tensor:
        labels = np.asarray(y).tolist()
        for row, label in enumerate(labels):
            if label not in self._places:
                raise ValueError(f"the label {label!r} in row {row} is not among the classes {list(self._places)}")
        return torch.tensor([self._places[label] for label in labels])

    def _plain_targets(self, y: np.ndarray) -> Tensor | None:
        places = [self._places.get(label) for label in y.tolist()] if y.ndim == 1 else [None]
        return None if None in places else torch.tensor(places)

    def _log_likelihood(self, model: Classifier, x: Tensor, y: Tensor) -> Tensor:
        return log_probs(model, x).gather(1, y[:, None])[:, 0]

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn new samples, one or many, once. None of them may be one that was learned before. The first call
        needs `classes`, all labels that will ever come."""
        if "model_" in vars(self):
            if classes is not None and not np.array_equal(unique_labels(classes), self.classes_):
                raise ValueError(f"classes must be those of the first call, {list(self._places)}, got {classes}")
            return self._learn(X, y, sample_weight)
        if classes is None:
            raise ValueError("classes must be given to the first partial_fit: all labels that will ever come")
        with all_or_nothing(self):
            self._meet(classes)
            return self._learn(X, y, sample_weight)

    def predict(self, X: Any) -> Any:
        """The likeliest class."""
        places = self.predict_log_proba(X).argmax(1)
        return self.classes_[places]

    def predict_proba(self, X: Any) -> Any:
        """(rows, classes), in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Any:
        """The logarithm of `predict_proba`, exact where that is close to 0."""
        inputs = self._inputs(X)
        return log_probs(self.model_, inputs).numpy()

    def predict_one(self, x: Mapping[str, float]) -> Any:
        """The likeliest class at a dict of features; None if nothing was learned yet."""
        probs = self.predict_proba_one(x)
        return max(probs, key=probs.__getitem__) if probs else None

    def predict_proba_one(self, x: Mapping[str, float]) -> dict[Any, float]:
        """The classes' probabilities; none if nothing was learned yet."""
        if "model_" not in vars(self):
            return {}
        probs = log_probs(self.model_, self._row(x, self._names()))[0].exp().tolist()
        return dict(zip(self._places, probs, strict=True))


def log_probs(model: Classifier, x: Tensor) -> Tensor:
    return torch.cat([model.link.log_probs(z) for z in model.outputs(x)])


def plain(values: np.ndarray) -> Tensor | None:
    """Real numbers as a tensor; None if there are others, or some that are not finite or very large."""
    if values.dtype.kind not in "fiu" or not values.size:
        return None
    own = np.array(values, dtype=np.float64, order="C")
    return torch.from_numpy(own) if np.vdot(own, own) < math.inf else None


def numbers(name: str, values: Any) -> Tensor:
    """As a tensor; the first that is none is refused with its place."""
    tensor = plain(np.asarray(values))
    if tensor is None:
        require_entries(name, values, is_number, "finite numbers")
        tensor = torch.tensor(np.asarray(values, dtype=np.float64))
    return tensor


def is_number(value: Any) -> bool:
    try:
        return abs(float(value)) <= LARGEST
    except (TypeError, ValueError):
        return False


def require_entries(name: str, values: Any, is_right: Callable[[Any], bool], what: str) -> None:
    """Refuse the first entry of an array or a data frame that is not right, with its row and column."""
    array = np.asarray(values, dtype=object)
    if array.ndim not in (1, 2) or np.iscomplexobj(values):
        return  # scikit-learn has its own words for these
    for place, value in np.ndenumerate(array):
        if not is_right(value):
            names = getattr(values, "columns", None)
            columns = [repr(column if names is None else names[column]) for column in place[1:]]
            where = ", column ".join([f"row {place[0]}", *columns])
            raise ValueError(f"{name} must hold {what}, no NaN, no inf, got {value!r} in {where}")


def as_python(value: Any) -> Any:
    """numpy's numbers, as a search over arguments gives them, as Python's, which files can hold."""
    return value.item() if isinstance(value, np.generic) else value


@contextmanager
def seeded(random_state: Any) -> Iterator[int]:
    """Torch's generator, for a while, as a random state has it; yields the seed."""
    seed = int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield seed


@contextmanager
def all_or_nothing(estimator: Any) -> Iterator[None]:
    """The attributes of an estimator are what they were if this is left by an error."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
