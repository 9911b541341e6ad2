"""Brute force to test against: nothing here knows how a layer computes what it computes.

Every oracle works on plain functions, tensors and arrays, in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchtagi import Gaussian

Array = NDArray[np.float64]
Message = tuple[Tensor, Tensor]

STANDARD_ERRORS = 6.0


def assert_moments_of_draws(out: Gaussian, draws: Tensor) -> None:
    """Oracle 1: `out` has the mean and variance of `draws` (S, …) within six standard errors of each.

    The standard error of a sample variance is √((μ₄ − σ⁴)/S), μ₄ the fourth central moment.
    """
    samples = len(draws)
    mean = draws.mean(0)
    squares = (draws - mean).square()
    var = squares.mean(0)
    fourth = squares.square().mean(0)
    mean_error = (var / samples).sqrt()
    var_error = ((fourth - var.square()).clamp_min(0) / samples).sqrt()
    rounding = 1e-9
    worst_mean = ((out.mean - mean).abs() / (STANDARD_ERRORS * mean_error + rounding)).max().item()
    worst_var = ((out.variance - var).abs() / (STANDARD_ERRORS * var_error + rounding)).max().item()
    assert worst_mean < 1, f"mean is {STANDARD_ERRORS * worst_mean:.1f} standard errors from the draws'"
    assert worst_var < 1, f"variance is {STANDARD_ERRORS * worst_var:.1f} standard errors from the draws'"


def jacobian_messages(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], dmean: Tensor, dvar: Tensor
) -> list[Message]:
    """Oracle 2: Jᵀ dm and (J∘J)ᵀ dv for each of the function's inputs, J its dense Jacobian from autograd."""
    jacobians = torch.autograd.functional.jacobian(function, tuple(inputs))
    messages = []
    for jacobian in jacobians:
        dims = dmean.ndim
        messages.append(
            (torch.tensordot(dmean, jacobian, dims), torch.tensordot(dvar, jacobian.square(), dims)),
        )
    return messages


def bilinear_moments(function: Callable[[Tensor, Tensor], Tensor], x: Gaussian, w: Gaussian) -> Gaussian:
    """Exact moments of a vector function that is affine in each of two independent vectors.

    var f = Σ (∂f/∂x)² v + Σ (∂f/∂w)² V + ΣΣ (∂²f/∂x∂w)² v V at the means; the derivatives of such a function
    are its differences over steps of one, so only the function itself is called.
    """
    steps_x, steps_w = torch.eye(len(x), dtype=x.dtype), torch.eye(len(w), dtype=w.dtype)
    value = function(x.mean, w.mean)
    by_x = torch.func.vmap(lambda i: function(x.mean + i, w.mean))(steps_x) - value
    by_w = torch.func.vmap(lambda k: function(x.mean, w.mean + k))(steps_w) - value
    both = torch.func.vmap(lambda k: torch.func.vmap(lambda i: function(x.mean + i, w.mean + k))(steps_x))(steps_w)
    cross = both - by_x - by_w[:, None] - value
    var = x.variance @ by_x.square() + w.variance @ by_w.square()
    return Gaussian(value, var + torch.einsum("wxo,x,w->o", cross.square(), x.variance, w.variance))


def condition(
    mean: Array, var: Array, gain: Array, predicted: Array, covariance: Array, target: Array
) -> tuple[Array, Array]:
    """Oracle 3: the posterior of unknowns N(mean, diag(var)) by dense conditioning of their joint Gaussian.

    The observation has mean `predicted` and covariance `covariance` (noise included); its covariance with the
    unknowns is diag(var)·gainᵀ. Builds the whole joint, then takes the Schur complement.
    """
    unknowns, seen = len(mean), len(target)
    joint = np.zeros((unknowns + seen, unknowns + seen))
    joint[:unknowns, :unknowns] = np.diag(var)
    joint[:unknowns, unknowns:] = np.diag(var) @ gain.T
    joint[unknowns:, :unknowns] = joint[:unknowns, unknowns:].T
    joint[unknowns:, unknowns:] = covariance
    assert np.linalg.eigvalsh(joint).min() > -1e-9, "not a covariance"
    kalman = joint[:unknowns, unknowns:] @ np.linalg.inv(joint[unknowns:, unknowns:])
    posterior = joint[:unknowns, :unknowns] - kalman @ joint[unknowns:, :unknowns]
    return mean + kalman @ (target - predicted), np.diag(posterior)


def chance_of_largest(mean: Tensor, std: Tensor, points: int = 40_001) -> Tensor:
    """P(entry i is the largest) for independent Gaussians in the last dimension, by the trapezium rule.

    Integrates in the probability of t itself, so that each entry's own grid is as fine as its density.
    """
    u = torch.linspace(-9, 9, points, dtype=torch.float64)
    density = torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)
    chances = []
    for i in range(mean.shape[-1]):
        t = mean[..., i, None] + std[..., i, None] * u
        below = torch.special.ndtr((t[..., None, :] - mean[..., :, None]) / std[..., :, None])
        below[..., i, :] = 1.0
        chances.append(torch.trapezoid(below.prod(-2) * density, u))
    return torch.stack(chances, -1)


def piecewise_moments(
    function: Callable[[Array], Array], corners: Sequence[float], mean: float, std: float
) -> tuple[float, float]:
    """E[f(z)] and var[f(z)] of a function that is smooth between its corners: Gauss–Legendre on each piece."""
    edges = [mean - 40 * std, *(c for c in corners if abs(c - mean) < 40 * std), mean + 40 * std]
    points, weights = np.polynomial.legendre.leggauss(60)
    first = second = mass = 0.0
    for low, high in itertools.pairwise(edges):
        cuts = np.linspace(low, high, 161)
        half = np.diff(cuts)[:, None] / 2
        z = cuts[:-1, None] + half * (points + 1)
        share = half * weights * np.exp(-0.5 * ((z - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
        value = function(z)
        mass += share.sum()
        first += (share * value).sum()
        second += (share * value**2).sum()
    assert abs(mass - 1) < 1e-12
    return first, second - first**2


def numerical_gradient(function: Callable[[], float], x: Tensor, step: float = 1e-3) -> Tensor:
    """Oracle 7: the derivative of `function`, which reads x, in each entry of x: five-point central differences.

    Their error is of order step⁴; x is as it was afterwards.
    """
    gradient = torch.zeros_like(x)
    entries, slots = x.detach().view(-1), gradient.view(-1)
    with torch.no_grad():
        for i in range(len(entries)):
            kept = entries[i].item()
            values = []
            for shift in (-2, -1, 1, 2):
                entries[i] = kept + shift * step
                values.append(float(function()))
            entries[i] = kept
            slots[i] = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    return gradient


def numerical_curvature(function: Callable[[], float], x: Tensor, step: float = 1e-2) -> Tensor:
    """Oracle 7: the second derivative of `function` in each entry of x, likewise; the error is of order step⁴."""
    curvature = torch.zeros_like(x)
    entries, slots = x.detach().view(-1), curvature.view(-1)
    weights = {-2: -1.0, -1: 16.0, 0: -30.0, 1: 16.0, 2: -1.0}
    with torch.no_grad():
        for i in range(len(entries)):
            kept, total = entries[i].item(), 0.0
            for shift, weight in weights.items():
                entries[i] = kept + shift * step
                total += weight * float(function())
            entries[i] = kept
            slots[i] = total / (12 * step**2)
    return curvature
