"""What is compared: TAGI, and on standardised data a Gaussian process, a perceptron and a deep ensemble."""

import importlib.util
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.experiments.uci.ensemble import EnsembleSetting, by_ensemble
from torchtagi.experiments.uci.problem import Moments, Predict, Problem, standardised
from torchtagi.fitting import epoch_order
from torchtagi.regressor import Regressor

HELD_OUT = 10  # of the perceptron's rows every tenth says its noise


@dataclass(frozen=True)
class Method:
    """`most_rows` is how many it can learn from; of a larger set it is left out."""

    predict: Predict
    setting: Any
    most_rows: int | None = None
    package: str | None = None

    def check_installed(self, name: str) -> None:
        if self.package and importlib.util.find_spec(self.package) is None:
            raise ValueError(f"{name} needs scikit-learn: pip install 'torchtagi[sklearn]', or leave it out")


# ---- TAGI ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TagiSetting:
    """One for all sets."""

    epochs: int = 40
    batch_size: int = 64
    depth: int = 1
    """Hidden layers."""
    noise: str = "predicted"
    covariance: str = "auto"


def by_tagi(setting: TagiSetting, problem: Problem) -> Moments:
    net = perceptron(problem.x.shape[1], problem.hidden, setting.depth)
    options: dict[str, Any] = {} if setting.covariance == "auto" else {"covariance": setting.covariance}
    model = Regressor(net, noise=setting.noise, **options)
    model.fit(
        (problem.x, problem.y),
        epochs=setting.epochs,
        batch_size=setting.batch_size,
        progress=False,
        seed=problem.seed,
    )
    prediction = model.predict(problem.x_new)
    return prediction.mean, prediction.variance


def perceptron(features: int, hidden: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs in (features, *(hidden,) * (depth - 1)):
        layers += [nn.Linear(inputs, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, 1))


# ---- others, on standardised data -----------------------------------------------------------------------------


@dataclass(frozen=True)
class ProcessSetting:
    """`ard`: a length scale for each input."""

    ard: bool = False
    restarts: int = 1


def by_process(setting: ProcessSetting, problem: Problem) -> Moments:
    """A Gaussian process whose kernel, squared exponential and white noise, maximises the evidence."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    lengths = [1.0] * (problem.x.shape[1] if setting.ard else 1)
    kernel = ConstantKernel() * RBF(lengths, (1e-2, 1e3)) + WhiteKernel(0.1, (1e-4, 10.0))
    model = GaussianProcessRegressor(kernel, n_restarts_optimizer=setting.restarts, random_state=problem.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an input of no use has its length scale at the bound
        model.fit(problem.x.double().numpy(), problem.y.double().numpy())
    mean, std = model.predict(problem.x_new.double().numpy(), return_std=True)
    return torch.from_numpy(mean), torch.from_numpy(std).square()


@dataclass(frozen=True)
class PerceptronSetting:
    epochs: int = 1000
    """At most: it ends when the training loss does."""


def by_perceptron(setting: PerceptronSetting, problem: Problem) -> Moments:
    """scikit-learn's perceptron. It has no variance of its own: that of its errors on rows held out is taken."""
    from sklearn.neural_network import MLPRegressor

    order = epoch_order(len(problem.x), problem.seed, 0)
    held_out, learned = order[::HELD_OUT], order[torch.arange(len(order)) % HELD_OUT != 0]
    model = MLPRegressor(hidden_layer_sizes=(problem.hidden,), max_iter=setting.epochs, random_state=problem.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the epochs were too few
        model.fit(problem.x[learned].numpy(), problem.y[learned].numpy())

    def predicted(x: Tensor) -> Tensor:
        return torch.from_numpy(model.predict(x.numpy()))

    var = (problem.y[held_out] - predicted(problem.x[held_out])).square().mean()
    mean = predicted(problem.x_new)
    return mean, var.expand_as(mean)


METHODS: Mapping[str, Method] = {
    "tagi": Method(by_tagi, TagiSetting()),
    "gp": Method(standardised(by_process), ProcessSetting(), most_rows=2000, package="sklearn"),
    "mlp": Method(standardised(by_perceptron), PerceptronSetting(), package="sklearn"),
    "ensemble": Method(standardised(by_ensemble), EnsembleSetting()),
}
