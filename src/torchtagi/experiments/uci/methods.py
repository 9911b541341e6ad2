"""What is compared: TAGI, and on standardised data a Gaussian process, a perceptron and a deep ensemble."""

import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.experiments.runs.folder import Row
from torchtagi.fitting import epoch_order
from torchtagi.regressor import Regressor
from torchtagi.standardising import Standardiser

HELD_OUT = 10  # of the perceptron's rows every tenth says its noise
LEAST_VAR = 1e-6  # of the ensemble, on standardised targets, as in its paper

Moments = tuple[Tensor, Tensor]
"""The mean and the variance (N,) of each new target."""


@dataclass(frozen=True, eq=False)
class Problem:
    """All that a method may see: x (N, features) and y (N,) to learn from, new inputs, and no targets of theirs."""

    x: Tensor
    y: Tensor
    x_new: Tensor
    hidden: int
    """Units of a hidden layer."""
    seed: int


@dataclass(frozen=True)
class Method:
    """`setting` is one for all sets, as keywords of `predict`; `most_rows` is how many it can learn from: of a
    larger set it is left out."""

    predict: Callable[..., Moments]
    setting: Row
    most_rows: int | None = None
    package: str | None = None


# ---- TAGI ----------------------------------------------------------------------------------------------------


def by_tagi(problem: Problem, epochs: int, batch_size: int, depth: int, noise: str, covariance: str) -> Moments:
    net = perceptron(problem.x.shape[1], problem.hidden, depth)
    options: dict[str, Any] = {} if covariance == "auto" else {"covariance": covariance}
    model = Regressor(net, noise=noise, **options)
    data = (problem.x, problem.y)
    model.fit(data, epochs=epochs, batch_size=batch_size, progress=False, seed=problem.seed)
    prediction = model.predict(problem.x_new)
    return prediction.mean, prediction.variance


def perceptron(features: int, hidden: int, depth: int = 1) -> nn.Sequential:
    """`depth` hidden layers."""
    layers: list[nn.Module] = []
    for inputs in (features, *(hidden,) * (depth - 1)):
        layers += [nn.Linear(inputs, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, 1))


# ---- others, on standardised data -----------------------------------------------------------------------------


def standardised(predict: Callable[..., Moments]) -> Callable[..., Moments]:
    """A method for standardised inputs and targets as one for any units."""

    def in_units(problem: Problem, **setting: Any) -> Moments:
        scale_of_x, scale_of_y = Standardiser(), Standardiser()
        targets = problem.y[:, None].double()
        scale_of_x.observe(problem.x)
        scale_of_y.observe(targets)
        x, x_new = (scale_of_x(part.double()).float() for part in (problem.x, problem.x_new))
        scaled = replace(problem, x=x, x_new=x_new, y=scale_of_y(targets)[:, 0].float())
        mean, var = (part.double()[:, None] for part in predict(scaled, **setting))
        return scale_of_y.undo(mean)[:, 0], (var * scale_of_y.factor(var).square())[:, 0]

    return in_units


def by_process(problem: Problem, ard: bool, restarts: int) -> Moments:
    """A Gaussian process whose kernel, squared exponential and white noise, maximises the evidence; `ard`: with a
    length scale for each input."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    lengths = [1.0] * (problem.x.shape[1] if ard else 1)
    kernel = ConstantKernel() * RBF(lengths, (1e-2, 1e3)) + WhiteKernel(0.1, (1e-4, 10.0))
    model = GaussianProcessRegressor(kernel, n_restarts_optimizer=restarts, random_state=problem.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an input of no use has its length scale at the bound
        model.fit(problem.x.double().numpy(), problem.y.double().numpy())
    mean, std = model.predict(problem.x_new.double().numpy(), return_std=True)
    return torch.from_numpy(mean), torch.from_numpy(std).square()


def by_perceptron(problem: Problem, epochs: int) -> Moments:
    """scikit-learn's perceptron, which ends when the training loss does, after `epochs` at most. It has no variance
    of its own: that of its errors on rows held out is taken."""
    from sklearn.neural_network import MLPRegressor

    order = epoch_order(len(problem.x), problem.seed, 0)
    held_out, learned = order[::HELD_OUT], order[torch.arange(len(order)) % HELD_OUT != 0]
    model = MLPRegressor(hidden_layer_sizes=(problem.hidden,), max_iter=epochs, random_state=problem.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the epochs were too few
        model.fit(problem.x[learned].numpy(), problem.y[learned].numpy())

    def predicted(x: Tensor) -> Tensor:
        return torch.from_numpy(model.predict(x.numpy()))

    var = (problem.y[held_out] - predicted(problem.x[held_out])).square().mean()
    mean = predicted(problem.x_new)
    return mean, var.expand_as(mean)


# ---- a deep ensemble -----------------------------------------------------------------------------------------


def by_ensemble(problem: Problem, members: int, epochs: int, batch_size: int, learning_rate: float) -> Moments:
    """A deep ensemble for regression (Lakshminarayanan, Pritzel and Blundell 2017).

    Each member is a network that says a mean m and a variance s² for each input, and minimises the Gaussian
    −log N(y; m, s²) by Adam, from weights and in an order of its own. They predict by the moments of their mixture:

        mean = ⟨m⟩,  var = ⟨s² + m²⟩ − ⟨m⟩²

    All members are trained at once: their weights are stacked, and a layer is one batched matrix product.
    """
    x, y = problem.x, problem.y
    layers = [first_weights(members, *ends) for ends in itertools.pairwise((x.shape[1], problem.hidden, 2))]
    optimizer = torch.optim.Adam([part for layer in layers for part in layer], lr=learning_rate)
    for _ in range(epochs):
        orders = torch.stack([torch.randperm(len(x)) for _ in range(members)])
        for rows in orders.split(batch_size, dim=1):
            mean, var = outputs(layers, x[rows])
            loss = functional.gaussian_nll_loss(mean, y[rows], var, reduction="none").mean(1).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return mixture(*outputs(layers, problem.x_new.expand(members, -1, -1)))


def first_weights(members: int, inputs: int, outputs: int) -> tuple[Tensor, Tensor]:
    """As torch draws those of a linear layer."""
    bound = 1 / math.sqrt(inputs)
    weight, bias = (torch.empty(members, size, outputs).uniform_(-bound, bound) for size in (inputs, 1))
    return weight.requires_grad_(), bias.requires_grad_()


def outputs(layers: list[tuple[Tensor, Tensor]], x: Tensor) -> tuple[Tensor, Tensor]:
    """Each member's mean and variance (members, N) of its own inputs x (members, N, features)."""
    (weight, bias), (last_weight, last_bias) = layers
    z = torch.baddbmm(last_bias, torch.baddbmm(bias, x, weight).relu(), last_weight)
    return z[..., 0], functional.softplus(z[..., 1]) + LEAST_VAR


def mixture(means: Tensor, variances: Tensor) -> Moments:
    means, variances = means.double(), variances.double()
    return means.mean(0), variances.mean(0) + means.var(0, correction=0)


TAGI = {"epochs": 40, "batch_size": 64, "depth": 1, "noise": "predicted", "covariance": "auto"}
ENSEMBLE = {"members": 5, "epochs": 400, "batch_size": 32, "learning_rate": 0.01}
METHODS = {
    "tagi": Method(by_tagi, TAGI),
    "gp": Method(standardised(by_process), {"ard": False, "restarts": 1}, most_rows=2000, package="sklearn"),
    "mlp": Method(standardised(by_perceptron), {"epochs": 1000}, package="sklearn"),
    "ensemble": Method(standardised(by_ensemble), ENSEMBLE),
}
