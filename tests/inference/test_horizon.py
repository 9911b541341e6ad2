"""`Update(horizon=M)`: what was learned fades, back towards the prior."""

import copy
import math

import pytest
import torch
from small_nets import NETS, RULES, fully_connected, linear, normal, snapshot

import torchtagi as tagi


def learn(net, posterior, x, y, noise=1.0):
    tagi.Regression(noise)(net(x), y).backward()
    posterior.step()
    posterior.zero_grad()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("net_name", NETS)
def test_precision_fades_towards_the_prior_by_the_share_of_the_batch(net_name, rule):
    build, features = NETS[net_name]
    net, same = build(), build()
    same.load_state_dict(net.state_dict())
    prior = snapshot(net)
    x, y = normal(5, features), normal(5, 2, seed=1)
    learn(same, tagi.Update(same, rule), x, y, 3.0)
    learn(net, tagi.Update(net, rule, horizon=20), x, y, 3.0)
    remembered = snapshot(same)
    for name, value in snapshot(net).items():
        if name.endswith("mean"):
            assert torch.equal(value, remembered[name])
        else:
            expected = 1 / (0.75 / remembered[name] + 0.25 / prior[name])
            torch.testing.assert_close(value, expected)


def test_a_weight_seen_for_ever_is_as_certain_as_after_horizon_samples():
    net = linear(1)
    prior = 1 / net.weight.var.item()
    posterior = tagi.Update(net, horizon=50)
    one = torch.ones(1, 1).double()
    for _ in range(1000):
        learn(net, posterior, one, one, 2.0)
    assert 1 / net.weight.var.item() == pytest.approx(prior + (50 - 1) / 4.0, rel=1e-3)


def test_it_follows_a_slope_that_drifts():
    """The slope turns by 1° a batch of 4; who never forgets lags behind."""
    errors = {}
    for horizon in (None, 20):
        torch.manual_seed(0)
        net = tagi.nn.Linear(1, 1)
        posterior = tagi.Update(net, horizon=horizon)
        total = 0.0
        for step in range(480):
            x = torch.randn(4, 1)
            y = math.sin(math.radians(step)) * x + 0.1 * torch.randn(4, 1)
            total += (net(x).mean - y).square().mean().item() if step >= 120 else 0.0
            learn(net, posterior, x, y, 0.1)
        errors[horizon] = total / 360
    assert errors[20] < 0.25 * errors[None]


def test_the_prior_is_that_of_construction_and_survives_a_state():
    net = fully_connected()
    posterior = tagi.Update(net, horizon=30)
    x, y = normal(6, 3), normal(6, 2, seed=1)
    learn(net, posterior, x, y)
    other = copy.deepcopy(net)  # its variances are learned already: they are not the prior
    resumed = tagi.Update(other, horizon=30)
    resumed.load_state_dict(posterior.state_dict())
    for _ in range(3):
        learn(net, posterior, x, y)
        learn(other, resumed, x, y)
    for name, value in snapshot(net).items():
        assert torch.equal(snapshot(other)[name], value)


def test_a_state_without_a_prior_leaves_the_one_at_construction():
    net = fully_connected()
    posterior = tagi.Update(net, horizon=30)
    variances = [parameter for name, parameter in net.named_parameters() if name.endswith("var")]
    before = [var.detach().clone() for var in variances]
    posterior.load_state_dict(tagi.Update(fully_connected()).state_dict())
    learn(net, posterior, normal(6, 3), normal(6, 2, seed=1))
    for var, prior in zip(variances, before, strict=True):
        assert torch.equal(posterior.state[var]["prior"], prior)


def test_a_horizon_shorter_than_the_batch_forgets_everything_but_the_means():
    net = fully_connected()
    before = snapshot(net)
    learn(net, tagi.Update(net, horizon=2), normal(6, 3), normal(6, 2, seed=1))
    for name, value in snapshot(net).items():
        if name.endswith("var"):
            torch.testing.assert_close(value, before[name])
        else:
            assert not torch.equal(value, before[name])


@pytest.mark.parametrize("horizon", [0, 0.5, -3, math.nan, math.inf, "20"])
def test_a_bad_horizon_is_named(horizon):
    with pytest.raises(ValueError, match=f"horizon must be a number of samples, at least 1, got {horizon}"):
        tagi.Update(fully_connected(), horizon=horizon)


def test_nothing_fades_without_observations():
    net = fully_connected()
    posterior = tagi.Update(net, horizon=30)
    learn(net, posterior, normal(6, 3), normal(6, 2, seed=1))
    before = snapshot(net)
    learn(net, posterior, normal(6, 3), torch.full((6, 2), math.nan).double())
    posterior.param_groups[0]["lr"] = 0.0
    learn(net, posterior, normal(6, 3), normal(6, 2, seed=1))
    for name, value in snapshot(net).items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("scale", [1e20, 1e-20])
def test_extreme_variances_fade_without_overflow(scale):
    net = tagi.nn.Linear(1, 1, bias=False)
    net.weight.set_(0.0, scale)
    posterior = tagi.Update(net, horizon=10)
    net.weight.var.data.mul_(1e-6)
    learn(net, posterior, torch.zeros(5, 1), torch.zeros(5, 1))
    assert net.weight.var.item() == pytest.approx(1 / (0.5 / (scale * 1e-6) + 0.5 / scale), rel=1e-5)


def test_the_prior_follows_a_network_that_changes_its_kind():
    net = fully_connected().float()
    posterior = tagi.Update(net, horizon=30)
    net.double()
    learn(net, posterior, normal(6, 3), normal(6, 2, seed=1))
    net.load_state_dict(net.state_dict(), assign=True)
    net.requires_grad_()
    tagi.Regression(1.0)(net(normal(6, 3)), normal(6, 2, seed=1)).backward()
    with pytest.raises(RuntimeError, match=r"other tensors than its Update: load_state_dict\(assign=True\)"):
        posterior.step()


def test_an_update_cannot_be_copied_and_says_what_to_do():
    with pytest.raises(TypeError, match="copy the network, make an Update"):
        copy.deepcopy(tagi.Update(fully_connected()))
