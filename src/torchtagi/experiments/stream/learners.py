"""What is compared: each predicts a row's target, and is then told it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.experiments.uci.methods import perceptron
from torchtagi.regressor import Regressor
from torchtagi.standardising import Standardiser

HIDDEN = 50
TUNED_ON = 500  # rows
NOISE_ROWS = 300  # a running noise variance is that of about the last so many errors


class Learner(ABC):
    """Of one row x (1, features) and its target y (1,) after the other."""

    @abstractmethod
    def predict(self, x: Tensor) -> tuple[float, float]:
        """Mean and variance of the target."""

    @abstractmethod
    def learn(self, x: Tensor, y: Tensor) -> None: ...


class Tagi(Learner):
    """`Regressor` as it is, but for its horizon."""

    def __init__(self, features: int, horizon: float | str | None) -> None:
        self.model = Regressor(perceptron(features, HIDDEN), horizon=horizon)

    def predict(self, x: Tensor) -> tuple[float, float]:
        prediction = self.model.predict(x)
        return float(prediction.mean), float(prediction.variance)

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.model.update(x, y)


class PointLearner(Learner):
    """What predicts a number alone, on data standardised as `Regressor` does it; its variance is that of its last
    errors."""

    def __init__(self) -> None:
        self.scale_of_x, self.scale_of_y = Standardiser(), Standardiser()
        self.rows, self.noise_var = 0, 1.0

    def predict(self, x: Tensor) -> tuple[float, float]:
        mean = torch.tensor([[self.value(self.scale_of_x(x))]], dtype=torch.float64)
        return float(self.scale_of_y.undo(mean)), self.noise_var * float(self.scale_of_y.std) ** 2

    def learn(self, x: Tensor, y: Tensor) -> None:
        if not self.scale_of_y.settled:
            self.scale_of_x.observe(x)
            self.scale_of_y.observe(y[:, None])
        x, y = self.scale_of_x(x), self.scale_of_y(y[:, None])[:, 0]
        self.rows += 1
        error = float(y) - self.value(x)
        self.noise_var += (error**2 - self.noise_var) / min(self.rows + 1, NOISE_ROWS)
        self.step(x, y)

    @abstractmethod
    def value(self, x: Tensor) -> float: ...

    @abstractmethod
    def step(self, x: Tensor, y: Tensor) -> None: ...


class ByGradient(PointLearner):
    """The same perceptron, a step of a torch optimizer a row."""

    def __init__(self, features: int, optimizer: Callable[..., torch.optim.Optimizer], rate: float) -> None:
        super().__init__()
        self.net: nn.Module = perceptron(features, HIDDEN)
        self.optimizer = optimizer(self.net.parameters(), lr=rate)

    @torch.no_grad()
    def value(self, x: Tensor) -> float:
        return float(self.net(x))

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        (self.net(x)[:, 0] - y).square().mean().backward()
        self.optimizer.step()


class Linear(PointLearner):
    """scikit-learn's SGDRegressor, its rate constant, so that it can follow."""

    def __init__(self, features: int, rate: float) -> None:
        from sklearn.linear_model import SGDRegressor

        super().__init__()
        self.model = SGDRegressor(learning_rate="constant", eta0=rate)
        self.known = False

    def value(self, x: Tensor) -> float:
        return float(self.model.predict(x.numpy())[0]) if self.known else 0.0

    def step(self, x: Tensor, y: Tensor) -> None:
        self.model.partial_fit(x.numpy(), y.numpy())
        self.known = True


class Tuned(Learner):
    """Of several learners that all learn the first rows, from then on the one that has erred least."""

    def __init__(self, learners: Sequence[Learner]) -> None:
        self.left, self.errors, self.rows = list(learners), [0.0] * len(learners), 0

    def best(self) -> int:
        return min(range(len(self.left)), key=lambda number: self.errors[number])

    def predict(self, x: Tensor) -> tuple[float, float]:
        return self.left[self.best()].predict(x)

    def learn(self, x: Tensor, y: Tensor) -> None:
        for number, learner in enumerate(self.left):
            if len(self.left) > 1:
                error = (learner.predict(x)[0] - float(y)) ** 2
                self.errors[number] += error if math.isfinite(error) else math.inf
            learner.learn(x, y)
        self.rows += 1
        if self.rows == TUNED_ON:
            best = self.best()
            self.left, self.errors = [self.left[best]], [0.0]


LEARNERS: Mapping[str, Any] = {
    "tagi": None,
    "tagi-300": 300,
    "tagi-auto": "auto",
    "sgd": (0.003, 0.01, 0.03, 0.1),
    "adam": (0.001, 0.003, 0.01, 0.03),
    "linear": (0.001, 0.003, 0.01, 0.03),
}
"""TAGI by its horizon, others by the rates that they choose between."""
OPTIMIZERS: Mapping[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def new_learner(name: str, features: int, setting: Any) -> Learner:
    if name in OPTIMIZERS:
        return Tuned([ByGradient(features, OPTIMIZERS[name], rate) for rate in setting])
    return Tuned([Linear(features, rate) for rate in setting]) if name == "linear" else Tagi(features, setting)
