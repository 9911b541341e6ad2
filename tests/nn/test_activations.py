"""Exact activations and class probabilities, against quadrature and limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from oracles import piecewise_moments
from random_gaussians import random_gaussian
from torchtagi import Gaussian
from torchtagi import nn as tnn


@pytest.mark.parametrize(
    ("layer", "function", "corners"),
    [
        (tnn.MixtureReLU(), lambda z: np.maximum(z, 0), [0.0]),
        (tnn.MixtureTanh(), lambda z: np.clip(z, -1, 1), [-1.0, 1.0]),
        (tnn.MixtureSigmoid(), lambda z: (np.clip(z, -1, 1) + 1) / 2, [-1.0, 1.0]),
        (tnn.LeakyReLU(1.0), lambda z: z, []),
        (tnn.Exp(), np.exp, []),
    ],
    ids=["MixtureReLU", "MixtureTanh", "MixtureSigmoid", "identity", "Exp"],
)
def test_exact_activations_match_quadrature(layer: nn.Module, function: object, corners: list[float]) -> None:
    """Means and standard deviations from a thousandth to three, on both sides of every corner."""
    for std in (1e-3, 0.3, 1.0, 3.0):
        for mean in (-6.0, -3.0, -1.0, -0.5, 0.0, 0.4, 1.0, 2.0, 5.0):
            if isinstance(layer, tnn.Exp) and std > 1:
                continue
            expected_mean, expected_var = piecewise_moments(function, corners, mean, std)
            x = Gaussian(torch.tensor([mean], dtype=torch.float64), torch.tensor([std**2], dtype=torch.float64))
            out = layer(x)
            assert out.mean.item() == pytest.approx(expected_mean, rel=1e-9, abs=1e-8 * std)
            assert out.var.item() == pytest.approx(expected_var, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(
    ("dtype", "rel_mean", "rel_var"), [(torch.float64, 1e-6, 1e-5), (torch.float32, 1e-3, 1e-2)]
)
def test_mixture_relu_keeps_relative_accuracy_far_below_zero(
    dtype: torch.dtype, rel_mean: float, rel_var: float
) -> None:
    """A nearly dead unit's moments are tiny, not wrong: Remax takes their logarithms."""
    for ratio in (-1.0, -2.0, -3.0, -4.0, -4.9, -5.1, -6.0, -7.0):
        expected_mean, expected_var = piecewise_moments(lambda z: np.maximum(z, 0), [0.0], ratio, 1.0)
        out = tnn.MixtureReLU()(Gaussian(torch.tensor([ratio], dtype=dtype), torch.ones(1, dtype=dtype)))
        assert out.mean.item() == pytest.approx(expected_mean, rel=rel_mean), f"mean at m/σ = {ratio}"
        assert out.var.item() == pytest.approx(expected_var, rel=rel_var), f"variance at m/σ = {ratio}"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_mixture_relu_is_the_identity_far_above_zero(dtype: torch.dtype) -> None:
    """Also where m²/v leaves the range of numbers, or their precision; and nothing far below zero."""
    mean = torch.tensor([10.0, 1000.0, 1e30, 10.0], dtype=dtype)
    var = torch.tensor([0.0, 1e-4, 1e-30, 1e-20], dtype=dtype)
    above, below = tnn.MixtureReLU()(Gaussian(mean, var)), tnn.MixtureReLU()(Gaussian(-mean, var))
    torch.testing.assert_close(above.mean, mean, rtol=0, atol=0)
    torch.testing.assert_close(above.var, var, rtol=0, atol=0)
    assert not below.mean.any()
    assert not below.var.any()


def test_mixture_relu_mean_grows_with_the_input() -> None:
    """E[max(0, z)] is increasing in m."""
    mean = torch.linspace(-9, 3, 2401, dtype=torch.float64)
    out = tnn.MixtureReLU()(Gaussian(mean, torch.ones_like(mean)))
    assert (out.mean.diff() > 0).all()


def test_mixture_tanh_is_odd_and_sigmoid_its_half() -> None:
    x = random_gaussian(4, 5)
    tanh, mirrored = tnn.MixtureTanh()(x), tnn.MixtureTanh()(x * -1.0)
    torch.testing.assert_close(mirrored.mean, -tanh.mean)
    torch.testing.assert_close(mirrored.var, tanh.var)
    sigmoid = tnn.MixtureSigmoid()(x)
    torch.testing.assert_close(sigmoid.mean, (1 + tanh.mean) / 2)
    torch.testing.assert_close(sigmoid.var, tanh.var / 4)


def test_even_exp_needs_pairs_and_acts_on_the_second_of_each() -> None:
    x = random_gaussian(3, 6)
    out = tnn.EvenExp()(x)
    assert torch.equal(out.mean[:, 0::2], x.mean[:, 0::2])
    assert torch.equal(out.var[:, 0::2], x.var[:, 0::2])
    log_normal = torch.distributions.LogNormal(x.mean[:, 1::2], x.var[:, 1::2].sqrt())
    torch.testing.assert_close(out.mean[:, 1::2], log_normal.mean)
    torch.testing.assert_close(out.var[:, 1::2], log_normal.variance)


@pytest.mark.parametrize(
    ("layer", "function", "shift"),
    [
        (tnn.ClosedFormSoftmax(), lambda z: z.softmax(-1), 0.0),
        (tnn.Remax(), lambda z: z / z.sum(-1, keepdim=True), 4.0),
    ],
    ids=["softmax", "remax"],
)
def test_class_probabilities_tend_to_the_delta_method(layer: nn.Module, function: object, shift: float) -> None:
    """For small variances: f(m), Σ (∂f/∂z)² v, and the gain ∂a_i/∂z_i, with f's Jacobian from autograd."""
    x = random_gaussian(1, 4, shift=shift)
    x = Gaussian(x.mean, x.var * 1e-6).requires_grad_()
    out = layer(x)
    jacobian = torch.autograd.functional.jacobian(function, x.mean.detach())[0, :, 0]
    torch.testing.assert_close(out.mean, function(x.mean), rtol=1e-5, atol=0)
    torch.testing.assert_close(out.var[0], jacobian.square() @ x.var[0], rtol=1e-5, atol=0)
    torch.autograd.backward([out.mean, out.var], [torch.ones_like(out.mean), torch.ones_like(out.var)])
    torch.testing.assert_close(x.mean.grad[0], jacobian.diag(), rtol=1e-5, atol=0)
    torch.testing.assert_close(x.var.grad[0], jacobian.diag().square(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_class_probabilities_of_a_certain_input_are_the_functions_own(dtype: torch.dtype) -> None:
    """Also where their exponentials lie far outside the range of numbers."""
    z = torch.tensor([[1.0, -2.0, 3.0, 0.5], [100.0, 3.0, 2.0, -1.0], [1e4, 1.0, 0.0, -1e4]], dtype=dtype)
    for x in (z, Gaussian(z, torch.zeros_like(z))):
        torch.testing.assert_close(tnn.ClosedFormSoftmax()(x).mean, z.softmax(-1))
        rectified = z.clamp_min(0)
        torch.testing.assert_close(tnn.Remax()(x).mean, rectified / rectified.sum(-1, keepdim=True))


def test_softmax_of_logits_far_apart_is_finite() -> None:
    out = tnn.ClosedFormSoftmax()(Gaussian(torch.tensor([[0.0, -60.0, -300.0]]), torch.full((1, 3), 0.5)))
    torch.testing.assert_close(out.mean, torch.tensor([[1.0, 0.0, 0.0]]))
    assert out.var.isfinite().all()


def test_remax_probabilities_sum_to_one_and_the_largest_logit_wins() -> None:
    x = random_gaussian(5, 6)
    out = tnn.Remax()(x)
    torch.testing.assert_close(out.mean.sum(1), torch.ones(5, dtype=torch.float64))
    equal_var = tnn.Remax()(Gaussian(x.mean, torch.ones_like(x.mean)))
    assert torch.equal(equal_var.mean.argmax(1), x.mean.argmax(1))


def test_softmax_does_not_change_under_a_common_shift() -> None:
    """Also far outside the range of exp."""
    x = random_gaussian(3, 4)
    out = tnn.ClosedFormSoftmax()(x)
    for shift in (1.0, 300.0, 1e4, -1e4):
        moved = tnn.ClosedFormSoftmax()(x + shift)
        torch.testing.assert_close(moved.mean, out.mean, rtol=1e-9, atol=0)
        torch.testing.assert_close(moved.var, out.var, rtol=1e-9, atol=0)
