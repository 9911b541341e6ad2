"""Estimators for scikit-learn: perceptrons with ReLUs, learned by `Regressor` and `Classifier`.

    regressor = TAGIRegressor().fit(X, y)
    mean, std = regressor.predict(X_new, return_std=True)
    regressor.partial_fit(X_more, y_more)

They add nothing to inference: `model_` is the `Regressor` or `Classifier`, with all that it can do. Here is
scikit-learn's side: checks of data, feature names, labels of any kind, sample weights, random states, pickles. A
`fit` that raises leaves an estimator as it was.

Numbers are float32, as everywhere in torchtagi. `random_state` alone decides a fit; torch's generator is neither
read nor moved. A NaN in `y` is refused, as scikit-learn does it; `Regressor` takes it for a missing target.

A sample of weight w counts for w observations, and one of weight 0 is not seen. So weights are not relative: if
they sum to 1, all samples together say as much as one.
"""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_random_state
from sklearn.utils.multiclass import unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from torchtagi import nn
from torchtagi.classifier import Classifier
from torchtagi.fitting import Row, epoch_order
from torchtagi.loading import load
from torchtagi.prediction import RegressionPrediction
from torchtagi.regressor import Regressor

HELD_OUT = 0.1  # share of the samples that early stopping judges by
HELD_OUT_ORDER = -3  # the order by which they are drawn, among those of the epochs
PATIENCE = 10  # epochs without a better one: the log-likelihood of a few held-out samples goes up and down
LARGEST = 1e18  # entry of an array that is taken without scikit-learn's checks; its square is a float32


class Estimator(BaseEstimator, ABC):  # type: ignore[misc]
    """What both share."""

    model_: Any
    history_: list[Row]
    n_features_in_: int
    feature_names_in_: Any
    _checks_of_y: Mapping[str, bool] = {}

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        *,
        covariance: str = "auto",
        epochs: int = 40,
        batch_size: int = 16,
        early_stopping: bool = False,
        horizon: float | str | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.covariance = covariance
        self.epochs = epochs
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.horizon = horizon
        self.random_state = random_state
        self.verbose = verbose

    # ---- what each of them says -----------------------------------------------------------------------------

    @abstractmethod
    def _new_model(self, features: int, y: Tensor) -> Any:
        """A model that has learned nothing, for targets like y."""

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
        best, kept, worse = -math.inf, b"", 0

        def stop(row: Row) -> bool:
            nonlocal best, kept, worse
            scores = self._log_likelihood(model, x, y)
            counts = weights[0] if weights else torch.ones_like(scores)
            row["log_likelihood"] = score = float((scores * counts).sum() / counts.sum())
            worse += 1
            if score > best or not kept:
                best, kept, worse = score, to_bytes(model), 0
            return worse >= PATIENCE

        history = model.fit(tuple(column[order[held_out:]] for column in columns), stop=stop, **options)
        return from_bytes(kept), history

    def _learn(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """What every `partial_fit` does."""
        if "model_" in self.__dict__:
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
        return nn.Sequential(*layers[:-1])

    def _options(self) -> Row:
        """For the model's constructor."""
        options = {"horizon": as_python(self.horizon)}
        return options if self.covariance == "auto" else options | {"covariance": self.covariance}

    # ---- data -----------------------------------------------------------------------------------------------

    def _checked(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> tuple[Any, Any, Any]:
        """Arrays that scikit-learn finds nothing wrong with. With `reset` they say what the features are."""
        X, y = validate_data(self, X, y, reset=reset, dtype=np.float32, **self._checks_of_y)
        if sample_weight is None:
            return X, y, None
        weights = check_array(sample_weight, dtype=np.float32, ensure_2d=False, input_name="sample_weight")
        if weights.shape != (len(X),):
            raise ValueError(f"sample_weight must have shape ({len(X)},), one a sample, got {weights.shape}")
        if weights.min() < 0:
            raise ValueError(f"sample_weight must not be negative, got {weights.min():g} in row {weights.argmin()}")
        if reset and not weights.any():
            raise ValueError("sample_weight is zero for all samples, so that there is nothing to learn from")
        return X, y, weights

    def _columns(self, X: Any, y: Any, weights: Any) -> tuple[Tensor, ...]:
        """What the model learns from."""
        columns = torch.tensor(X), self._encoded(y)
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
        if "feature_names_in_" in self.__dict__ or type(X) is not np.ndarray or X.ndim != 2:
            return None
        return plain(X) if X.shape[1] == self.n_features_in_ else None

    def _inputs(self, X: Any) -> Tensor:
        """What the model predicts at."""
        check_is_fitted(self)
        x = self._plain_inputs(X)
        return torch.tensor(validate_data(self, X, reset=False, dtype=np.float32)) if x is None else x

    # ---- streams of dicts, as in river ----------------------------------------------------------------------

    def learn_one(self, x: Mapping[str, float], y: Any, **first: Any) -> None:
        """`partial_fit` of one sample, a dict of features. The first one's, in alphabetical order, are those of
        all; a classifier needs `classes=` with it."""
        if "model_" in self.__dict__:
            self.model_.update(self._row(x, self._names()), self._encoded(np.asarray([y])))
            return
        with all_or_nothing(self):
            names = sorted(x)
            self.partial_fit(self._row(x, names).numpy(), [y], **first)
            self.feature_names_in_ = np.array(names, dtype=object)

    def _names(self) -> list[str]:
        if "feature_names_in_" not in self.__dict__:
            raise ValueError("the features have no names: this estimator has learned from arrays without any")
        return list(self.feature_names_in_)

    def _row(self, x: Mapping[str, float], names: Sequence[str]) -> Tensor:
        missing, unknown = [name for name in names if name not in x], [name for name in x if name not in names]
        if missing or unknown:
            raise ValueError(f"x must have the features {list(names)}; missing {missing}, unknown {unknown}")
        row = torch.tensor([[x[name] for name in names]], dtype=torch.float32)
        if not bool(row.isfinite().all()):
            name = next(name for name in names if not abs(x[name]) <= torch.finfo(row.dtype).max)
            raise ValueError(f"the feature {name!r} must be a finite number, got {x[name]}")
        return row

    # ---- copies ---------------------------------------------------------------------------------------------

    def __getstate__(self) -> Row:
        state = dict(super().__getstate__())
        return state | {"model_": to_bytes(self.model_)} if "model_" in state else state

    def __setstate__(self, state: Row) -> None:
        super().__setstate__(state | {"model_": from_bytes(state["model_"])} if "model_" in state else state)


class TAGIRegressor(RegressorMixin, Estimator):  # type: ignore[misc]
    """A perceptron for real numbers, one or several, that says how far off it may be.

    `hidden_layer_sizes`    units of each hidden layer; () is a linear model
    `noise`                 of the observations: `learned`, one for each target; `predicted` for each input; or its
                            standard deviation
    `covariance`            of the weights: `full`, `diagonal`, or `auto`, what the network's size allows
    `epochs`                how often `fit` goes through the data. Repeats are counted as such, so that more do
                            no harm but take time
    `batch_size`            samples shown at a time; they are learned 16 at a time at most
    `early_stopping`        hold out a tenth of the samples, end when ten epochs were no better for their
                            likelihood, and keep the best
    `horizon`               the number of observations after which what was learned has faded: for `partial_fit`
                            in a world that drifts; `auto` finds it out
    `random_state`          of the prior's means, and of the samples' order
    `verbose`               show progress

    Inputs and targets are standardised inside. `model_` is the `Regressor`, `history_` has a row an epoch.
    """

    _checks_of_y = {"multi_output": True, "y_numeric": True}  # noqa: RUF012

    def __init__(
        self,
        hidden_layer_sizes: int | Sequence[int] = (50,),
        *,
        noise: str | float = "learned",
        covariance: str = "auto",
        epochs: int = 40,
        batch_size: int = 16,
        early_stopping: bool = False,
        horizon: float | str | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            hidden_layer_sizes,
            covariance=covariance,
            epochs=epochs,
            batch_size=batch_size,
            early_stopping=early_stopping,
            horizon=horizon,
            random_state=random_state,
            verbose=verbose,
        )
        self.noise = noise

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _new_model(self, features: int, y: Tensor) -> Regressor:
        net = self._network(features, 1 if y.ndim == 1 else y.shape[1])
        return Regressor(net, noise=as_python(self.noise), **self._options())

    def _encoded(self, y: Any) -> Tensor:
        return torch.tensor(check_array(y, dtype=np.float32, ensure_2d=False, input_name="y"))

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

    def predict_interval(self, X: Any, coverage: float = 0.95) -> tuple[Any, Any]:
        """The lower and the upper end of intervals that hold such a share of what will be observed."""
        low, high = self._prediction(X).interval(coverage)
        return low.numpy(), high.numpy()

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Any:
        """What might be observed, (rows, n_samples) or (rows, targets, n_samples): drawn independently for each
        row, as if nothing that one teaches said anything of another."""
        prediction = self._prediction(X)
        mean, std = prediction.mean.numpy()[..., None], prediction.std.numpy()[..., None]
        return mean + std * check_random_state(random_state).standard_normal((*mean.shape[:-1], n_samples))

    def predict_one(self, x: Mapping[str, float]) -> Any:
        """The mean at a dict of features; None if nothing was learned yet."""
        if "model_" not in self.__dict__:
            return None
        return self.model_.predict(self._row(x, self._names())).mean[0].tolist()

    def _prediction(self, X: Any) -> RegressionPrediction:
        prediction: RegressionPrediction = self.model_.predict(self._inputs(X))
        return prediction


class TAGIClassifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """A perceptron for classes, whose probabilities say what it does not know.

    Its arguments are those of `TAGIRegressor`, but for `noise`. TODO epochs

    Inputs are taken as they are, so standardise them, as for scikit-learn's own perceptrons. Labels may be numbers
    or strings. `classes_` are the labels in order, `model_` is the `Classifier`, `history_` has a row an epoch.
    """

    classes_: Any
    _places: dict[Any, int]

    def _meet(self, y: Any) -> None:
        self.classes_ = unique_labels(y)
        self._places = {label: place for place, label in enumerate(self.classes_.tolist())}

    def _new_model(self, features: int, y: Tensor) -> Classifier:
        count = len(self.classes_)
        if count < 2:
            raise ValueError(f"there must be two classes at least, got one class: {self.classes_.tolist()}")
        return Classifier(self._network(features, count), count, **self._options())

    def _encoded(self, y: Any) -> Tensor:
        labels = y.tolist()
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
        if "model_" in self.__dict__:
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
        return self.classes_[self.predict_log_proba(X).argmax(1)]

    def predict_proba(self, X: Any) -> Any:
        """(rows, classes), in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Any:
        return log_probs(self.model_, self._inputs(X)).numpy()

    def predict_one(self, x: Mapping[str, float]) -> Any:
        """The likeliest class at a dict of features; None if nothing was learned yet."""
        probs = self.predict_proba_one(x)
        return max(probs, key=probs.__getitem__) if probs else None

    def predict_proba_one(self, x: Mapping[str, float]) -> dict[Any, float]:
        """The classes' probabilities; none if nothing was learned yet."""
        if "model_" not in self.__dict__:
            return {}
        probs = log_probs(self.model_, self._row(x, self._names()))[0].exp().tolist()
        return dict(zip(self._places, probs, strict=True))


def log_probs(model: Classifier, x: Tensor) -> Tensor:
    return torch.cat([model.link.log_probs(z) for z in model.outputs(x)])


def plain(values: np.ndarray) -> Tensor | None:
    """Real numbers as a tensor; None if there are others, or some that are not finite or very large."""
    if values.dtype.kind != "f" or not values.size or not np.vdot(values, values) < LARGEST**2:
        return None
    return torch.from_numpy(values.astype(np.float32))


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


def to_bytes(model: Classifier | Regressor) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder, "model"))
        return Path(folder, "model").read_bytes()


def from_bytes(content: bytes) -> Classifier | Regressor:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").write_bytes(content)
        return load(Path(folder, "model"))
