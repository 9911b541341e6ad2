"""VOGN at rest, against posteriors that are known in closed form or by quadrature."""

import numpy as np
import pytest
import torch
from torch import nn

from torchtagi.experiments.baselines.vogn import Vogn


class Averaged:
    """Means and variances of q over the last steps: a stochastic method rests in the mean only."""

    def __init__(self, optimizer):
        self.optimizer, self.count = optimizer, 0
        self.mean = self.var = 0.0

    def add(self):
        self.count += 1
        self.mean = self.mean + self.optimizer.means[0].detach().flatten().clone()
        self.var = self.var + 1 / self.optimizer.vars()[0].flatten()

    def result(self):
        return self.mean / self.count, self.count / self.var


def run(optimizer, losses, steps, falling=200.0):
    """Steps that shrink as 1/t, then averaged over the second half."""
    averaged, rate = Averaged(optimizer), optimizer.learning_rate
    optimizer.start(losses)
    for t in range(steps):
        optimizer.learning_rate = rate / (1 + t / falling)
        optimizer.step(losses)
        if t >= steps // 2:
            averaged.add()
    return averaged.result()


NOISE_VAR, PRIOR_PRECISION = 0.25, 3.0


@pytest.fixture
def regression():
    """Bayesian linear regression with orthogonal features, whose exact posterior factorises."""
    torch.manual_seed(0)
    n = 400
    x = torch.linalg.qr(torch.randn(n, 3, dtype=torch.float64))[0] * torch.tensor([2.0, 5.0, 10.0])
    true = torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64)
    y = x @ true + NOISE_VAR**0.5 * torch.randn(n, dtype=torch.float64)
    net = nn.Linear(3, 1, bias=False).double()

    def losses():
        return (net(x)[:, 0] - y).square() / (2 * NOISE_VAR)

    precision = x.t() @ x / NOISE_VAR + PRIOR_PRECISION * torch.eye(3, dtype=torch.float64)
    mean = torch.linalg.solve(precision, x.t() @ y / NOISE_VAR)
    return net, x, y, losses, mean, 1 / precision.diag()


def test_vogn_finds_the_exact_mean_and_the_gauss_newton_variance_of_a_linear_regression(regression):
    """At rest 1/σ² = Σ_n E_q[g_n²] + δ, with g_n = −x_n r_n/R and E_q[r_n²] = r̄_n² + Σ x_n² σ²: a fixed point that
    numpy can find. It is near the exact variance, as r̄² is R on average."""
    net, x, y, losses, mean, var = regression
    vogn = Vogn(net, len(x), 0.1 * len(x) / PRIOR_PRECISION, PRIOR_PRECISION, 0.0, 0.9, 0.02, mc_samples=4)
    found_mean, found_var = run(vogn, losses, 1000)
    torch.testing.assert_close(found_mean, mean, rtol=0, atol=float(0.1 * var.sqrt().min()))
    inputs, residual_square = x.numpy(), (y - x @ mean).square().numpy()
    fixed = var.numpy().copy()
    for _ in range(200):
        spread = inputs**2 @ fixed
        fixed = 1 / (((inputs / NOISE_VAR) ** 2 * (residual_square + spread)[:, None]).sum(0) + PRIOR_PRECISION)
    np.testing.assert_allclose(found_var.numpy(), fixed, rtol=0.05)
    np.testing.assert_allclose(fixed, var.numpy(), rtol=0.5)


def test_vogn_on_logistic_regression_rests_where_quadrature_says():
    """One weight: E_q[Σ g] + δμ = 0 and 1/σ² = E_q[Σ g²] + δ, with the expectations by Gauss–Hermite."""
    torch.manual_seed(1)
    n, prior_precision = 60, 2.0
    x = torch.randn(n, dtype=torch.float64)
    y = (torch.rand(n, dtype=torch.float64) < torch.sigmoid(1.5 * x)).double()
    net = nn.Linear(1, 1, bias=False).double()

    def losses():
        return nn.functional.binary_cross_entropy_with_logits(net(x[:, None])[:, 0], y, reduction="none")

    points, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    inputs, labels = x.numpy(), y.numpy()
    mean, precision = 0.0, 10.0
    for _ in range(2000):
        w = mean + points / np.sqrt(precision)
        g = (1 / (1 + np.exp(-w[:, None] * inputs)) - labels) * inputs
        precision = weights @ (g**2).sum(1) + prior_precision
        mean -= 0.1 * (weights @ g.sum(1) + prior_precision * mean) / precision

    vogn = Vogn(net, n, 0.1 * n / prior_precision, prior_precision, 0.0, 0.9, 0.02, mc_samples=4)
    found_mean, found_var = run(vogn, losses, 1200)
    assert found_mean.item() == pytest.approx(mean, abs=0.05 / np.sqrt(precision))
    assert 1 / found_var.item() == pytest.approx(precision, rel=0.03)


def test_draws_have_the_posteriors_moments_and_leave_the_means():
    torch.manual_seed(0)
    net = nn.Linear(400, 50, bias=False)
    before = net.weight.detach().clone()
    vogn = Vogn(net, 100, 0.1, prior_precision=20.0, damping=30.0)
    vogn.curvature[0].fill_(0.5)
    assert vogn.vars()[0][0, 0].item() == pytest.approx(1 / (100 * 0.5 + 20 + 30))
    with vogn.drawn():
        away = net.weight.detach() - before
        assert away.mean().item() == pytest.approx(0, abs=6 * 0.1 / 20000**0.5)
        assert away.var().item() == pytest.approx(0.01, rel=0.06)
    assert torch.equal(net.weight, before)


def test_one_step_by_hand():
    """Without noise (an enormous damping) a step is m = g + μδ/N, s = (1 − β)h + βh, μ −= α m/(1 + s N/(δ + Γ))."""
    net = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        net.weight.fill_(0.5)
    x, y = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([1.0, 0.0], dtype=torch.float64)
    damping = 1e16
    vogn = Vogn(net, 10, 0.3, prior_precision=4.0, damping=damping, momentum=0.5, curvature_rate=0.25)
    weight, velocity = 0.5, 0.0
    curvature = None
    vogn.start(lambda: (net(x[:, None])[:, 0] - y).square() / 2)
    for _ in range(3):
        vogn.step(lambda: (net(x[:, None])[:, 0] - y).square() / 2)
        g = (weight * x.numpy() - y.numpy()) * x.numpy()
        square = (g**2).mean()
        curvature = square if curvature is None else curvature
        velocity = 0.5 * velocity + g.mean() + 0.4 * weight
        curvature = 0.75 * curvature + 0.25 * square
        weight -= 0.3 * velocity / (1 + curvature * 10 / (4.0 + damping))
        assert net.weight.item() == pytest.approx(weight, rel=1e-6)
        assert vogn.curvature[0].item() == pytest.approx(curvature, rel=1e-6)


@pytest.mark.parametrize("images", [100, 1_000_000])
def test_a_rate_means_the_same_for_any_number_of_images(images):
    """Of a weight that is known well and without curvature the first step is SGD's: α times the gradient."""
    net = nn.Linear(3, 1, bias=False).double()
    before = net.weight.detach().clone()
    slope = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    Vogn(net, images, 0.2, prior_precision=1e-6, damping=1e14).step(lambda: net(slope)[:, 0].expand(4))
    torch.testing.assert_close(net.weight, before - 0.2 * slope, rtol=0, atol=1e-4)
