"""Oracle 7: a likelihood's message is the first and second derivative of its own loss, found numerically.

And the gradient that ordinary tensors get is the loss's in means and variances alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import torchtagi as tagi
from oracles import numerical_curvature, numerical_gradient

N = 5


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def learned(likelihood: tagi.Regression | tagi.Binary | tagi.HierarchicalClassification, y: Tensor, width: int):
    """A likelihood in evaluation mode that has learned its noise from a few batches."""
    likelihood = likelihood.double()
    before = likelihood.learned_noise_var.clone()
    for seed in range(3):
        likelihood(tagi.Gaussian(draw(N, width, seed=seed), torch.full((N, width), 0.1).double()), y)
    assert not torch.equal(likelihood.learned_noise_var, before)
    return likelihood.eval()


class Observed(NamedTuple):
    """A loss of outputs, how many there are, and which of them get the derivatives as their message."""

    loss: Callable[[tagi.Gaussian], Tensor]
    width: int
    exact: slice = slice(None)
    positive: bool = False  # every second output is a noise variance


def fixed(likelihood: torch.nn.Module, y: Tensor, width: int) -> Observed:
    likelihood = likelihood.double()
    return Observed(lambda z: likelihood(z, y), width)


Y = draw(N, 3, seed=1)
HOLES = torch.where(Y > 0.5, math.nan, Y)
SIGNS = Y.sign()
LABELS = torch.arange(N) % 3
PAIRS = draw(N, 2, seed=1)

LIKELIHOODS: dict[str, Callable[[], Observed]] = {
    "regression": lambda: fixed(tagi.Regression(0.6), Y, 3),
    "one noise each": lambda: fixed(tagi.Regression([0.2, 0.7, 3.0]), Y, 3),
    "missing targets": lambda: fixed(tagi.Regression(0.6), HOLES, 3),
    "learned noise": lambda: fixed(learned(tagi.Regression(0.01, learn_noise=True), Y, 3), Y, 3),
    "learned noise each": lambda: fixed(learned(tagi.Regression([0.01] * 3, learn_noise=True), Y, 3), Y, 3),
    "binary": lambda: fixed(tagi.Binary(0.6), SIGNS, 3),
    "binary, learned": lambda: fixed(learned(tagi.Binary(0.01, learn_noise=True), SIGNS, 3), SIGNS, 3),
    "two classes": lambda: fixed(tagi.HierarchicalClassification(2, 0.6), LABELS % 2, 1),
    "classes": lambda: fixed(tagi.HierarchicalClassification(10, 0.6), 4 * LABELS, 11),
    "classes, learned": lambda: fixed(
        learned(tagi.HierarchicalClassification(3, 0.01, learn_noise=True), LABELS, 3), LABELS, 3
    ),
    "one against the rest": lambda: fixed(tagi.OneVsRest(3, 0.6), LABELS, 3),
    "one against the rest, learned": lambda: fixed(
        learned(tagi.OneVsRest(3, 0.01, learn_noise=True), LABELS, 3), LABELS, 3
    ),
    # the noise outputs' message is AGVI's, no derivative
    "predicted noise": lambda: Observed(
        lambda z: tagi.HeteroscedasticRegression()(z, PAIRS), 4, slice(0, None, 2), True
    ),
    "predicted noise, missing targets": lambda: Observed(
        lambda z: tagi.HeteroscedasticRegression()(z, HOLES[:, :2]), 4, slice(0, None, 2), True
    ),
}


def outputs(observed: Observed) -> tuple[Tensor, Tensor]:
    mean, var = draw(N, observed.width, seed=3), 0.2 + draw(N, observed.width, seed=4).square()
    if observed.positive:
        mean[:, 1::2] = mean[:, 1::2].abs() + 0.3
    return mean, var


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("certain", [False, True], ids=["uncertain", "certain"])
def test_the_message_is_the_first_and_second_derivative_of_the_loss(name: str, certain: bool) -> None:
    observed = LIKELIHOODS[name]()
    mean, var = outputs(observed)
    z = tagi.Gaussian(mean.clone(), None if certain else var.clone()).requires_grad_()
    observed.loss(z).backward()
    moved = tagi.Gaussian(mean, None if certain else var)
    gradient = numerical_gradient(lambda: observed.loss(moved).item(), mean)
    curvature = numerical_curvature(lambda: observed.loss(moved).item(), mean)
    assert gradient.any()
    columns = (slice(None), observed.exact)
    torch.testing.assert_close(z.mean.grad[columns], gradient[columns], rtol=1e-7, atol=1e-8)
    if z.var is not None:
        torch.testing.assert_close(z.var.grad[columns], curvature[columns], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_ordinary_outputs_get_the_gradient_in_means_and_variances(name: str) -> None:
    """AGVI's noise outputs among them: theirs is the loss's derivative, not the message."""
    observed = LIKELIHOODS[name]()
    mean, var = outputs(observed)
    mean.requires_grad_()
    var.requires_grad_()
    observed.loss(tagi.Gaussian(mean, var)).backward()
    for leaf in (mean, var):
        expected = numerical_gradient(lambda: observed.loss(tagi.Gaussian(mean, var)).item(), leaf)
        torch.testing.assert_close(leaf.grad, expected, rtol=1e-7, atol=1e-8)
        assert expected.any()


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_losses_of_two_likelihoods_add_up_for_ordinary_outputs(name: str) -> None:
    observed = LIKELIHOODS[name]()
    mean, var = outputs(observed)
    mean.requires_grad_()
    var.requires_grad_()
    observed.loss(tagi.Gaussian(mean, var)).backward()
    once = mean.grad.clone(), var.grad.clone()
    mean.grad = var.grad = None
    z = tagi.Gaussian(mean, var)
    (observed.loss(z) + observed.loss(z)).backward()
    torch.testing.assert_close(mean.grad, 2 * once[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(var.grad, 2 * once[1], rtol=1e-12, atol=0)
