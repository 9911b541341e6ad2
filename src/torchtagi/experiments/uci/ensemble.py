"""A deep ensemble for regression (Lakshminarayanan, Pritzel and Blundell 2017).

Each member is a network that says a mean m and a variance s² for each input, and minimises the Gaussian
−log N(y; m, s²) by Adam, from weights and in an order of its own. They predict by the moments of their mixture:

    mean = ⟨m⟩,  var = ⟨s² + m²⟩ − ⟨m⟩²

All members are trained at once: their weights are stacked, and a layer is one batched matrix product.
"""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from torchtagi.experiments.uci.problem import Moments, Problem

LEAST_VAR = 1e-6  # of standardised targets, as in the paper


@dataclass(frozen=True)
class EnsembleSetting:
    members: int = 5
    epochs: int = 400
    batch_size: int = 32
    learning_rate: float = 0.01


def by_ensemble(setting: EnsembleSetting, problem: Problem) -> Moments:
    x, y, members = problem.x, problem.y, setting.members
    widths = (x.shape[1], problem.hidden, 2)
    layers = [first_weights(members, *ends) for ends in itertools.pairwise(widths)]
    optimizer = torch.optim.Adam([part for layer in layers for part in layer], lr=setting.learning_rate)
    for _ in range(setting.epochs):
        orders = torch.stack([torch.randperm(len(x)) for _ in range(members)])
        for rows in orders.split(setting.batch_size, dim=1):
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
