"""A model of real numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi import metrics
from torchtagi.checks import require_positive
from torchtagi.fitting import Batches, Row
from torchtagi.gaussian import Gaussian
from torchtagi.heads import last_layer, outputs_of, with_outputs
from torchtagi.likelihoods import HeteroscedasticRegression, Regression
from torchtagi.model import NOISE_FLOOR, Model, gaussian
from torchtagi.nn import EvenExp, Sequential
from torchtagi.prediction import RegressionPrediction
from torchtagi.standardising import Standardiser

SCALE_ROWS = 10_000  # of the training data say what the scales of inputs and targets are


class Regressor(Model):
    """Real numbers from anything a network takes.

    `net` is an ordinary torch network, which is converted (`convert`), or a Gaussian one, with one output a target.
    `noise` is `learned`, one for each target; or `predicted` for each input by the network itself; or a number, its
    standard deviation in the targets' units. Inputs and targets are standardised inside, by the training data of
    `fit` or by the first rows of a stream. A NaN target is missing; an input may be uncertain, a `Gaussian`.
    `horizon` is the number of observations after which what was learned has faded, as in `Classifier`.
    """

    def __init__(self, net: nn.Module, *, noise: str | float = "learned", horizon: float | None = None) -> None:
        if isinstance(noise, str) and noise not in ("learned", "predicted"):
            raise ValueError(f'noise must be "learned", "predicted" or a number, got {noise!r}')
        if not isinstance(noise, str):
            require_positive("noise", noise)
        self.noise = noise
        self.scale_of_x, self.scale_of_y = Standardiser(), Standardiser()
        self.flat = True
        """Whether targets came without a dimension of their own."""
        net = gaussian(net)
        self.targets = outputs_of(last_layer(net)[1])
        if noise != "predicted":
            likelihood = Regression([NOISE_FLOOR] * self.targets, learn_noise=noise == "learned")
            super().__init__(net, likelihood, horizon)
            return
        if isinstance(net, nn.Sequential) and isinstance(net[-1], EvenExp):
            self.targets //= 2
        else:
            net = Sequential(with_outputs(net, self.targets, 2 * self.targets), EvenExp())
        super().__init__(net, HeteroscedasticRegression(), horizon)

    def start_inference(self) -> None:
        super().start_inference()
        self.posterior.repeats = math.inf

    def replaces_repeats(self) -> bool:
        """Once a noise is seen in the errors. Before that the predicted variance alone is larger than they are:
        what the data say has not been learned yet, and goes on being learned from."""
        residual_var = getattr(self.likelihood, "residual_var", None)
        return not self.new and (residual_var is None or bool((residual_var > self.likelihood.noise_var).any()))

    def get_ready(self, batches: Batches, epochs: int) -> None:
        """Find the scales of inputs and targets first."""
        if not self.calibrated:
            self.observe(*batches.first(SCALE_ROWS))
            self.scale_of_x.settled = self.scale_of_y.settled = True
        super().get_ready(batches, epochs)

    def update(self, x: Any, y: Any) -> Row:
        if not self.scale_of_y.settled:
            self.observe(x, y)
        return super().update(x, y)

    def observe(self, x: Any, y: Any) -> None:
        y = torch.as_tensor(y)
        self.flat = y.ndim == 1
        self.scale_of_x.observe(x.mean if isinstance(x, Gaussian) else torch.as_tensor(x))
        self.scale_of_y.observe(y[:, None] if self.flat else y)
        if isinstance(self.likelihood, Regression) and not isinstance(self.noise, str):
            self.likelihood.noise_std = self.noise / self.scale_of_y.std.to(self.like)

    def prepared(self, x: Any) -> Any:
        return self.scale_of_x(super().prepared(x))

    def encoded(self, y: Any) -> Tensor:
        y = torch.as_tensor(y).to(self.like)
        y = y[:, None] if y.ndim == 1 else y
        if y.ndim != 2 or y.shape[1] != self.targets:
            raise ValueError(
                f"y must have shape (N, {self.targets}), as the network has outputs, got {tuple(y.shape)}"
            )
        standardised: Tensor = self.scale_of_y(y)
        return standardised

    def split(self, z: Gaussian) -> tuple[Gaussian, Tensor]:
        """The targets without their noise, and its variance, both standardised."""
        if isinstance(self.likelihood, Regression):
            epistemic = Gaussian.trusted(z.mean, self.likelihood.predictive_scale * z.variance)
            return epistemic, self.likelihood.predictive_noise_var.expand_as(z.mean)
        return z[:, ::2], z.mean[:, 1::2]

    def error(self, z: Gaussian, y: Tensor) -> float:
        missed = (self.split(z)[0].mean - y) * self.scale_of_y.factor(y)
        return float(missed.square().nanmean(1).nansum())

    def training_error(self, total: float, samples: int) -> float:
        """The root of the mean squared error, in the targets' units."""
        return math.sqrt(total / max(samples, 1))

    def measures(self) -> Row:
        if not isinstance(self.likelihood, Regression):
            return {}
        noise = self.likelihood.predictive_noise_var.sqrt()[None]
        return {"noise_std": (noise * self.scale_of_y.factor(noise))[0].tolist()}

    def predict(self, x: Any) -> RegressionPrediction:
        """In the targets' units."""
        rows = []
        for z in self.outputs(x):
            z, noise = self.split(z)
            square = self.scale_of_y.factor(noise).square()
            rows.append((self.scale_of_y.undo(z.mean), z.variance * square, noise * square))
        columns = [torch.cat(column) for column in zip(*rows, strict=True)]
        return RegressionPrediction(*(part[:, 0] if self.flat and self.targets == 1 else part for part in columns))

    def scores(self, prediction: RegressionPrediction, y: Any) -> Row:
        """In the targets' units; a missing target counts nothing."""
        y = torch.as_tensor(y).to(prediction.mean).reshape(prediction.mean.shape)
        return metrics.regression_scores(prediction.mean, prediction.epistemic + prediction.aleatoric, y)

    def description(self) -> Row:
        scales = {"x": self.scale_of_x.as_json(), "y": self.scale_of_y.as_json()}
        own = {"noise": self.noise, "horizon": self.horizon, "flat": self.flat}
        return {"kind": "Regressor", **own, **scales}

    def read_description(self, described: Row) -> None:
        self.flat = bool(described["flat"])
        self.scale_of_x.read_json(described["x"])
        self.scale_of_y.read_json(described["y"])
