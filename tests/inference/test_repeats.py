"""`Update(repeats=N)`: observations that come again replace what they said before."""

import math

import pytest
import torch
from torch import Tensor

import torchtagi as tagi


def linear(features: int) -> tagi.nn.Linear:
    torch.manual_seed(0)
    net = tagi.nn.Linear(features, 1, bias=False).double()
    net.weight.set_(torch.randn(1, features).double(), torch.full((1, features), 0.5).double())
    return net


def learn_epochs(
    net: tagi.nn.Linear, x: Tensor, y: Tensor, noise: float, epochs: int, batch: int, rule: str = "coherent"
) -> tagi.Update:
    update = tagi.Update(net, rule, repeats=math.inf)
    likelihood = tagi.Regression(noise)
    for epoch in range(epochs):
        update.repeats = len(x) if epoch else math.inf
        for rows in (torch.randperm(len(x)) if rule == "coherent" else torch.arange(len(x))).split(batch):
            likelihood(net(x[rows]), y[rows]).backward()
            update.step()
            update.zero_grad()
    return update


def exact(net: tagi.nn.Linear, x: Tensor, y: Tensor, noise: float) -> tuple[Tensor, Tensor]:
    """Mean and covariance of dense conditioning."""
    prior_mean, prior_var = net.weight.mean.detach()[0], net.weight.var.detach()[0]
    precision = torch.diag(1 / prior_var) + x.t() @ x / noise**2
    covariance = torch.linalg.inv(precision)
    return covariance @ (prior_mean / prior_var + x.t() @ y[:, 0] / noise**2), covariance


@pytest.mark.parametrize("epochs", [10, 100])
def test_a_linear_model_has_the_posterior_of_one_pass_after_many_epochs(epochs: int) -> None:
    """Each observation is of one weight, so the exact posterior is diagonal; the paper's rule is exact for it, and
    batches are alike. A share f = n/N goes after each batch of n has sent its message. So what was learned is
    (1 − f)/f batches' worth: a part 1 − n/N of all N observations."""
    n, features, noise = 60, 3, 0.7
    net = linear(features)
    x = torch.eye(features).double().repeat(n // features, 1)
    y = x.sum(1, keepdim=True) + noise * torch.randn(n, 1).double()
    mean, covariance = exact(net, x, y, noise)
    prior = 1 / net.weight.var.detach()[0]
    learn_epochs(net, x, y, noise, epochs, features, "paper")
    gained = 1 / net.weight.var.detach()[0] - prior
    left = 1 - features / n
    # the distance that the first epoch leaves falls by e with each further one
    torch.testing.assert_close(
        gained, left * (1 / covariance.diagonal() - prior), rtol=1e-6 + math.exp(-epochs), atol=0.0
    )
    off = (net.weight.mean.detach()[0] - mean).abs() / covariance.diagonal().sqrt()
    assert off.max() < 0.5, "the last messages move the means, but within their own uncertainty"


def test_means_rest_at_the_posterior_mean_where_weights_are_correlated() -> None:
    """Counted as new, repeats end at least squares, which the prior has no part in."""
    n, noise = 12, 1.5
    torch.manual_seed(3)
    x = torch.randn(n, 4).double() @ torch.randn(4, 4).double()
    y = x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]).double() + noise * torch.randn(n, 1).double()
    net = linear(4)
    mean, covariance = exact(net, x, y, noise)
    least_squares = torch.linalg.lstsq(x, y).solution[:, 0]
    trace = []
    update = learn_epochs(net, x, y, noise, 300, 4)
    likelihood = tagi.Regression(noise)
    for rows in (rows for _ in range(300) for rows in torch.randperm(n).split(4)):
        likelihood(net(x[rows]), y[rows]).backward()
        update.step()
        update.zero_grad()
        trace.append(net.weight.mean.detach()[0].clone())
    rest = torch.stack(trace).mean(0)

    def distance(a: Tensor, b: Tensor) -> float:
        return float(((a - b) @ torch.linalg.inv(covariance) @ (a - b)).sqrt())

    assert distance(rest, mean) < 0.25 * distance(least_squares, mean)


def test_nothing_is_replaced_while_observations_are_new() -> None:
    x, y = torch.randn(20, 3).double(), torch.randn(20, 1).double()
    kept, plain = linear(3), linear(3)
    for net, update in ((kept, tagi.Update(kept, repeats=math.inf)), (plain, tagi.Update(plain))):
        for rows in torch.arange(20).split(4):
            tagi.Regression(1.0)(net(x[rows]), y[rows]).backward()
            update.step()
            update.zero_grad()
    assert torch.equal(kept.weight.mean, plain.weight.mean)
    assert torch.equal(kept.weight.var, plain.weight.var)


def test_variances_shrink_and_means_are_still_pulled_while_it_settles() -> None:
    x, y = torch.randn(20, 3).double(), torch.randn(20, 1).double()
    net = linear(3)
    update = learn_epochs(net, x, y, 1.0, 20, 4)
    settled = net.weight.var.detach().clone()
    update.settling = True
    for _ in range(3):
        tagi.Regression(1.0)(net(x), y).backward()
        update.step()
        update.zero_grad()
    assert (net.weight.var < 0.7 * settled).all()


@pytest.mark.parametrize("repeats", [0, -1, 0.5, math.nan])
def test_a_bad_number_of_observations_is_named(repeats: float) -> None:
    with pytest.raises(ValueError, match=f"repeats must be a number of observations, at least 1, got {repeats}"):
        tagi.Update(linear(2), repeats=repeats)


def test_the_prior_is_part_of_the_state() -> None:
    x, y = torch.randn(20, 3).double(), torch.randn(20, 1).double()
    one, other = linear(3), linear(3)
    update = learn_epochs(one, x, y, 1.0, 2, 4)
    other.load_state_dict(one.state_dict())
    resumed = tagi.Update(other, repeats=20)
    resumed.load_state_dict(update.state_dict())
    for net, own in ((one, update), (other, resumed)):
        tagi.Regression(1.0)(net(x), y).backward()
        own.step()
        own.zero_grad()
    assert torch.equal(one.weight.mean, other.weight.mean)
    assert torch.equal(one.weight.var, other.weight.var)
