"""What must make no difference to any rule: units, order, micro-batches."""

import math
from collections.abc import Sequence

import pytest
import torch
from small_nets import (
    NETS,
    RULES,
    assert_moved,
    assert_states_close,
    condition,
    fully_connected,
    normal,
    seeded,
    snapshot,
)
from torch import nn

import torchtagi as tagi

# ---- invariances of every rule -------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_the_order_of_a_batch_does_not_matter(rule: str) -> None:
    x, y, order = normal(9, 3), normal(9, 2, seed=1), torch.randperm(9, generator=seeded())
    one, other = fully_connected(), fully_connected()
    condition(one, rule, x, y, 0.5)
    condition(other, rule, x[order], y[order], 0.5)
    assert_states_close(snapshot(one), snapshot(other))


@pytest.mark.parametrize("rule", ["paper", "coherent"])
@pytest.mark.parametrize("unit", [1e-3, 40.0])
def test_the_unit_of_the_targets_does_not_matter(rule: str, unit: float) -> None:
    x, y = normal(9, 3), normal(9, 2, seed=1)
    one, other = fully_connected(), fully_connected()
    for parameter in (other[2].weight, other[2].bias):
        parameter.set_(parameter.mean * unit, parameter.var * unit**2)
    first = condition(one, rule, x, y, torch.tensor(0.5).double())
    second = condition(other, rule, x, unit * y, torch.tensor(0.5 * unit).double())
    assert first.report["alpha"] == pytest.approx(second.report["alpha"], rel=1e-6)
    for parameter in (other[2].weight, other[2].bias):
        parameter.set_(parameter.mean / unit, parameter.var / unit**2)
    assert_states_close(snapshot(one), snapshot(other), 1e-6)


@pytest.mark.parametrize("rule", ["paper", "coherent"])
@pytest.mark.parametrize("innovation", [0.5, 2.5, 4.0])
def test_the_unit_of_the_targets_does_not_matter_with_predicted_noise(rule: str, innovation: float) -> None:
    """A surprising target sends the noise a message that widens it; no unit may leak into the step."""
    unit, x = 10.0, normal(5, 3)
    y = innovation * normal(5, 1, seed=1).sign()
    nets = [nn.Sequential(tagi.nn.Linear(3, 2), tagi.nn.EvenExp()).double() for _ in range(2)]
    for net, scale in zip(nets, (1.0, unit), strict=True):
        factor = torch.tensor([scale, 1.0]).double()
        net[0].weight.set_(0.2 * normal(2, 3) * factor[:, None], 0.05 * factor[:, None].square().expand(2, 3))
        net[0].bias.set_(torch.tensor([0.0, 2 * math.log(scale)]).double(), 0.05 * factor.square())
        posterior = tagi.Update(net, rule)
        tagi.HeteroscedasticRegression()(net(x), scale * y).backward()
        posterior.step()
        net[0].weight.set_(net[0].weight.mean / factor[:, None], net[0].weight.var / factor[:, None].square())
        shift = torch.tensor([0.0, 2 * math.log(scale)]).double()
        net[0].bias.set_((net[0].bias.mean - shift) / factor, net[0].bias.var / factor.square())
        assert posterior.report["alpha"] > 0.01, "an ordinary surprise must not stop the learning"
    assert_states_close(snapshot(nets[0]), snapshot(nets[1]), 1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_missing_targets_do_not_matter(rule: str) -> None:
    x, y = normal(9, 3), normal(9, 2, seed=1)
    one, other = fully_connected(), fully_connected()
    y[::2] = math.nan
    first = condition(one, rule, x, y, 2.0)
    second = condition(other, rule, x[1::2], y[1::2], 2.0)
    assert first.report == pytest.approx(second.report)
    assert_states_close(snapshot(one), snapshot(other))


# ---- micro-batches -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("net_name", NETS)
@pytest.mark.parametrize("sizes", [(6, 6), (1, 4, 7), (1,) * 12], ids=str)
def test_micro_batches_accumulate_to_the_posterior_of_one_batch(
    net_name: str, rule: str, sizes: Sequence[int]
) -> None:
    build, features = NETS[net_name]
    whole, parts = build(), build()
    likelihood = tagi.Regression(0.3).double()
    updates = [tagi.Update(net, rule) for net in (whole, parts)]
    before = snapshot(whole)
    for step in range(2):
        x, y = normal(12, features, seed=step), 2 * normal(12, 2, seed=step + 7)
        likelihood(whole(x), y).backward()
        for chunk, target in zip(x.split(list(sizes)), y.split(list(sizes)), strict=True):
            likelihood(parts(chunk), target).backward()
        for posterior in updates:
            posterior.step()
            posterior.zero_grad()
        assert updates[0].report == pytest.approx(updates[1].report, rel=1e-9)
    assert_states_close(snapshot(whole), snapshot(parts), 1e-9)
    assert_moved(before, snapshot(whole))


@pytest.mark.parametrize("rule", RULES)
def test_micro_batches_across_the_capped_rules_large_batch(rule: str) -> None:
    x, y = normal(256, 3), 50 * normal(256, 2, seed=1)
    whole, parts = fully_connected(), fully_connected()
    condition(whole, rule, x, y, 0.01)
    posterior = tagi.Update(parts, rule)
    for chunk, target in zip(x.split(100), y.split(100), strict=True):
        tagi.Regression(0.01).double()(parts(chunk), target).backward()
    posterior.step()
    assert_states_close(snapshot(whole), snapshot(parts), 1e-9)
