"""Conditioning in chunks equals conditioning on the chunks one after another, to the bit."""

import copy

import pytest
import torch

import torchtagi as tagi


def make(seed: int = 0):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 1))
    return net, tagi.Regression(0.2), tagi.Update(net)


def parameters(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_a_large_batch_in_chunks_is_many_small_batches():
    x, y = torch.randn(70, 3), torch.randn(70, 1)
    whole, likelihood, posterior = make()
    total = tagi.condition(whole, likelihood, posterior, x, y, chunk=16)
    steps, likelihood, posterior = make()
    losses = 0.0
    for start in range(0, 70, 16):
        loss = likelihood(steps(x[start : start + 16]), y[start : start + 16])
        loss.backward()
        posterior.step()
        posterior.zero_grad()
        losses += loss.item()
    assert torch.equal(parameters(whole), parameters(steps))
    assert total == pytest.approx(losses)


def test_one_observation_at_a_time_is_exact_in_a_linear_model():
    """Bayesian linear regression in closed form; chunks of one with the paper's rule are Kalman updates, exact in
    the first observation and, with orthogonal inputs, in all of them."""
    torch.manual_seed(0)
    net = tagi.nn.Linear(4, 1, bias=False, dtype=torch.float64)
    prior_mean, prior_var = net.weight.mean.detach().clone(), net.weight.var.detach().clone()
    x = torch.diag(torch.tensor([1.0, 2.0, -1.0, 0.5], dtype=torch.float64))
    y = torch.randn(4, 1, dtype=torch.float64)
    likelihood = tagi.Regression(0.5).double()
    tagi.condition(net, likelihood, tagi.Update(net, "paper"), x, y, chunk=1)
    precision = torch.diag(1 / prior_var[0]) + x.t() @ x / 0.25
    mean = torch.linalg.solve(precision, prior_mean[0] / prior_var[0] + x.t() @ y[:, 0] / 0.25)
    assert torch.allclose(net.weight.mean[0], mean, atol=1e-10)
    assert torch.allclose(net.weight.var[0], torch.linalg.inv(precision).diagonal(), atol=1e-10)


@pytest.mark.parametrize(
    ("x", "y", "chunk", "message"),
    [
        (torch.randn(4, 3), torch.randn(5, 1), 16, "y must have as many entries as x, 4, got 5"),
        (torch.tensor([[0.0, float("nan"), 0.0]]), torch.randn(1, 1), 16, "x must be finite, got nan"),
        (torch.randn(4, 3), torch.randn(4, 1), 0, "chunk must be at least 1, got 0"),
    ],
)
def test_bad_input_changes_nothing(x, y, chunk, message):
    net, likelihood, posterior = make()
    before = parameters(net)
    with pytest.raises(ValueError, match=message):
        tagi.condition(net, likelihood, posterior, x, y, chunk=chunk)
    assert torch.equal(parameters(net), before)


def test_an_update_of_another_network_is_refused():
    net, likelihood, posterior = make()
    with pytest.raises(RuntimeError, match="a copy of a network needs an Update of its own"):
        tagi.condition(copy.deepcopy(net), likelihood, posterior, torch.randn(4, 3), torch.randn(4, 1))


@pytest.mark.parametrize(
    ("samples", "expected"), [(1, [1]), (16, [16]), (17, [17]), (33, [16, 17]), (34, [16, 16, 2])]
)
def test_a_single_sample_left_over_joins_the_last_chunk(samples, expected):
    sizes = []
    net, likelihood, posterior = make()
    x, y = torch.randn(samples, 3), torch.randn(samples, 1)
    tagi.condition(net, likelihood, posterior, x, y, before=lambda inputs, z, targets: sizes.append(len(targets)))
    assert sizes == expected
