"""The rules that turn messages into posteriors, and the optimizer around them."""

import copy
import gc
import math
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtagi as tagi

RULES = ("paper", "capped", "coherent")
State = dict[str, Tensor]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def fully_connected() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 2)).double()


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        tagi.nn.Unflatten(1, (1, 6, 6)),
        tagi.nn.Conv2d(1, 4, 3, padding=1),
        tagi.nn.ReLU(),
        tagi.nn.AvgPool2d(2, 2),
        tagi.nn.Flatten(),
        tagi.nn.Linear(36, 2),
    ).double()


def layer_normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.LayerNorm(8), tagi.nn.Tanh(), tagi.nn.Linear(8, 2)).double()


def one_layer() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(tagi.nn.Linear(3, 2)).double()


NETS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "linear": (one_layer, 3),
    "fully connected": (fully_connected, 3),
    "convolutional": (convolutional, 36),
    "layer normed": (layer_normed, 3),
}


def snapshot(net: nn.Module) -> State:
    return {key: value.detach().clone() for key, value in net.state_dict().items()}


def assert_states_close(one: State, other: State, tolerance: float = 1e-12) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        torch.testing.assert_close(
            value, other[key], rtol=tolerance, atol=tolerance, msg=lambda m, key=key: f"{key}: {m}"
        )


def assert_moved(before: State, after: State) -> None:
    """Every tensor differs: a comparison of states that never changed would prove nothing."""
    assert all(not torch.equal(before[key], after[key]) for key in before)


def assert_same(before: State, after: State) -> None:
    assert all(torch.equal(before[key], after[key]) for key in before)


def message(net: nn.Module, x: Tensor, y: Tensor, noise_std: float | Tensor = 1.0) -> State:
    """The summed messages on a network's parameters, heard by nobody."""
    twin = copy.deepcopy(net)
    tagi.Regression(noise_std).double()(twin(x), y).backward()
    return {name: p.grad for name, p in twin.named_parameters() if p.grad is not None}


def condition(
    net: nn.Module, rule: str, x: Tensor, y: Tensor, noise_std: float | Tensor = 1.0, **options: Any
) -> Any:
    """One step on one batch; the update that made it."""
    posterior = tagi.Update(net, rule, **options)
    tagi.Regression(noise_std).double()(net(x), y).backward()
    posterior.step()
    posterior.zero_grad()
    return posterior


def linear(features: int, outputs: int = 1, bias: bool = False, var: float = 0.7, seed: int = 0) -> tagi.nn.Linear:
    net = tagi.nn.Linear(features, outputs, bias=bias).double()
    net.weight.set_(0.3 * normal(outputs, features, seed=seed), var)
    if bias:
        net.bias.set_(0.1, 0.2)
    return net


def dense_posterior(
    mean: Tensor, var: Tensor, design: Tensor, y: Tensor, noise_var: float
) -> tuple[Tensor, Tensor]:
    """Condition w ~ N(mean, diag var) on y = design·w + noise, all at once."""
    prior = torch.diag(var)
    innovation_var = design @ prior @ design.t() + noise_var * torch.eye(len(y), dtype=torch.float64)
    gain = torch.linalg.solve(innovation_var, design @ prior).t()
    return mean + gain @ (y - design @ mean), prior - gain @ design @ prior


# ---- paper and capped ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("net_name", NETS)
@pytest.mark.parametrize("batch", [1, 7])
def test_paper_rule_adds_variance_times_message(net_name: str, batch: int) -> None:
    build, features = NETS[net_name]
    net = build()
    x, y = normal(batch, features), normal(batch, 2, seed=1)
    sent, before = message(net, x, y, 3.0), snapshot(net)
    condition(net, "paper", x, y, 3.0)
    expected = {}
    for key, value in before.items():
        s = before[key.removesuffix("mean") + "var"] if key.endswith("mean") else value
        expected[key] = value + (s if key.endswith("mean") else s.square()) * sent[key]
    assert_states_close(snapshot(net), expected)
    assert_moved(before, expected)


def test_paper_rule_keeps_a_variance_positive() -> None:
    """Ten copies of one observation, taken as independent, say more than there is to know."""
    net = linear(1)
    posterior = condition(net, "paper", torch.ones(10, 1).double(), torch.ones(10, 1).double(), 0.5)
    assert net.weight.var.item() > 0
    assert posterior.reports[0]["floored"] == 1


@pytest.mark.parametrize(("batch", "cap"), [(1, 0.1), (2, 2.0), (16, 2.0), (255, 2.0), (256, 3.0), (300, 3.0)])
def test_capped_rule_bounds_each_change_by_a_standard_deviation_over_the_cap(batch: int, cap: float) -> None:
    net = fully_connected()
    x, y = normal(batch, 3), 100 * normal(batch, 2, seed=1)
    noise = 1e-3
    sent, before = message(net, x, y, noise), snapshot(net)
    posterior = condition(net, "capped", x, y, noise)
    after, clipped, floored = snapshot(net), 0, 0
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        mean, var = before[f"{name}.mean"], before[f"{name}.var"]
        bound = var.sqrt() / cap
        change, shrink = var * sent[f"{name}.mean"], var.square() * sent[f"{name}.var"]
        clipped += int((change.abs() > bound).sum() + (shrink.abs() > bound).sum())
        expected_var = var + torch.minimum(torch.maximum(shrink, -bound), bound)
        floored += int((expected_var <= 0).sum())
        expected_var[expected_var <= 0] = 1e-5
        expected_mean = mean + torch.minimum(torch.maximum(change, -bound), bound)
        torch.testing.assert_close(after[f"{name}.mean"], expected_mean, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(after[f"{name}.var"], expected_var, rtol=1e-12, atol=1e-14)
    assert clipped > 0
    assert posterior.reports[0]["clipped"] == clipped
    assert posterior.reports[0]["floored"] == floored


@pytest.mark.parametrize("rule", RULES)
def test_an_ordinary_single_observation_has_the_same_posterior_under_every_rule(rule: str) -> None:
    """Within the caps and bounds, conditioning on one observation is exact."""
    net, reference = linear(4, bias=True), linear(4, bias=True)
    x, y = normal(1, 4), reference(normal(1, 4)).mean.detach() + 0.5
    condition(net, rule, x, y, 1.5)
    sent = message(reference, x, y, 1.5)
    for name in ("weight", "bias"):
        before, after = getattr(reference, name), getattr(net, name)
        torch.testing.assert_close(after.mean, before.mean + before.var * sent[f"{name}.mean"])
        torch.testing.assert_close(after.var, before.var + before.var.square() * sent[f"{name}.var"])


# ---- conditioning on one observation after the other ---------------------------------------------------------


@pytest.mark.parametrize("rule", ["paper", "coherent"])
def test_sequential_conditioning_of_independent_weights_equals_dense_conditioning(rule: str) -> None:
    """Each observation sees one weight, so nothing is lost by keeping the diagonal only."""
    net = linear(4)
    design = torch.eye(4, dtype=torch.float64)[torch.tensor([0, 1, 2, 3, 0, 2, 2, 1])]
    prior_mean, prior_var = net.weight.mean.detach()[0].clone(), net.weight.var.detach()[0].clone()
    y = design @ prior_mean + 0.4 * normal(8, seed=3)
    mean, covariance = dense_posterior(prior_mean, prior_var, design, y, 0.81)
    posterior = tagi.Update(net, rule)
    likelihood = tagi.Regression(torch.tensor(0.9, dtype=torch.float64)).double()
    for row, target in zip(design, y, strict=True):
        likelihood(net(row[None]), target.view(1, 1)).backward()
        posterior.step()
        posterior.zero_grad()
    torch.testing.assert_close(net.weight.mean.detach()[0], mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(torch.diag(net.weight.var.detach()[0]), covariance, rtol=1e-6, atol=1e-6)


def test_each_step_of_the_paper_rule_is_dense_conditioning_with_the_diagonal_kept() -> None:
    net = linear(3, bias=True)
    mean = torch.cat([net.weight.mean.detach()[0], net.bias.mean.detach()])
    var = torch.cat([net.weight.var.detach()[0], net.bias.var.detach()])
    posterior = tagi.Update(net, "paper")
    likelihood = tagi.Regression(torch.tensor(0.5, dtype=torch.float64)).double()
    for step in range(5):
        x, y = normal(1, 3, seed=step), normal(1, 1, seed=step + 50)
        likelihood(net(x), y).backward()
        posterior.step()
        posterior.zero_grad()
        design = torch.cat([x, torch.ones(1, 1)], 1)
        mean, covariance = dense_posterior(mean, var, design, y[0], 0.25)
        var = torch.diag(covariance).clone()
        torch.testing.assert_close(
            torch.cat([net.weight.mean[0], net.bias.mean]).detach(), mean, rtol=1e-6, atol=1e-7
        )
        torch.testing.assert_close(torch.cat([net.weight.var[0], net.bias.var]).detach(), var, rtol=1e-6, atol=1e-7)


# ---- coherent ------------------------------------------------------------------------------------------------


def test_coherent_is_the_default() -> None:
    assert tagi.Update(linear(2)).rule == "coherent"


@pytest.mark.parametrize("net_name", NETS)
def test_coherent_takes_a_single_ordinary_observation_whole(net_name: str) -> None:
    build, features = NETS[net_name]
    net = build()
    x = normal(1, features)
    with torch.no_grad():
        z = net(x)
    y = torch.full((1, 2), math.nan).double()
    y[0, 0] = z.mean[0, 0] + 0.5 * (z.var[0, 0] + 9.0).sqrt()
    posterior = condition(net, "coherent", x, y, 3.0)
    assert posterior.reports[0]["alpha"] == pytest.approx(1.0, abs=1e-12)


def test_coherent_takes_uncorrelated_observations_whole() -> None:
    net = linear(5)
    before = net.weight.mean.detach()[0].clone()
    y = before[:, None] + 0.5 * normal(5, 1)
    mean, covariance = dense_posterior(before, net.weight.var.detach()[0], torch.eye(5).double(), y[:, 0], 1.0)
    posterior = condition(net, "coherent", torch.eye(5).double(), y)
    assert posterior.reports[0]["alpha"] == pytest.approx(1.0, abs=1e-12)
    torch.testing.assert_close(net.weight.mean.detach()[0], mean)
    torch.testing.assert_close(net.weight.var.detach()[0], torch.diag(covariance))


@pytest.mark.parametrize("copies", [2, 3, 16, 200])
@pytest.mark.parametrize("noise_std", [0.9, 2.0])
def test_coherent_is_exact_for_copies_of_one_observation(copies: int, noise_std: float) -> None:
    net = linear(3, bias=True, var=0.2)
    x = 0.5 * normal(1, 3)
    with torch.no_grad():
        z = net(x)
    v, noise_var = z.var.item(), float(torch.tensor(noise_std)) ** 2
    assert noise_var > 0.3 * v, "the bound of the gain must not act here"
    y = z.mean + 0.3
    mean = torch.cat([net.weight.mean.detach()[0], net.bias.mean.detach()])
    var = torch.cat([net.weight.var.detach()[0], net.bias.var.detach()])
    design = torch.cat([x, torch.ones(1, 1)], 1).expand(copies, -1)
    exact_mean, exact_covariance = dense_posterior(mean, var, design, y.expand(copies, 1)[:, 0], noise_var)
    posterior = condition(net, "coherent", x.expand(copies, -1), y.expand(copies, -1), noise_std)
    assert posterior.reports[0]["alpha"] == pytest.approx((v + noise_var) / (copies * v + noise_var), rel=1e-6)
    torch.testing.assert_close(
        torch.cat([net.weight.mean[0], net.bias.mean]).detach(), exact_mean, rtol=1e-6, atol=1e-8
    )
    exact_var = torch.diag(exact_covariance)
    torch.testing.assert_close(
        torch.cat([net.weight.var[0], net.bias.var]).detach(), exact_var, rtol=1e-6, atol=1e-8
    )


def test_coherent_line_search_knows_the_whole_covariance_of_the_batch() -> None:
    """α = r·dm / dm·(J S Jᵀ + R)·dm, with the dense covariance of the predictions."""
    net = linear(3, bias=True, var=0.05)
    x, y, noise_var = normal(12, 3), 0.3 * normal(12, 1, seed=1), 0.64
    design = torch.cat([x, torch.ones(12, 1)], 1)
    var = torch.cat([net.weight.var.detach()[0], net.bias.var.detach()])
    with torch.no_grad():
        innovation = (y - net(x).mean)[:, 0]
    covariance = design @ torch.diag(var) @ design.t()
    dmean = innovation / (covariance.diagonal() + noise_var)
    joint = covariance + noise_var * torch.eye(12, dtype=torch.float64)
    posterior = condition(net, "coherent", x, y, torch.tensor(0.8, dtype=torch.float64))
    assert posterior.reports[0]["innovation"] <= 1, "larger innovations may count as a sign of more noise"
    alpha = (innovation @ dmean / (dmean @ joint @ dmean)).item()
    assert 0 < alpha < 0.9
    assert posterior.reports[0]["alpha"] == pytest.approx(alpha, rel=1e-6)


BATCHES = [(1, 1.0, 3.0), (1, 0.1, 1.0), (64, 1e-3, 100.0), (64, 0.3, 1.0), (300, 1e-2, 30.0)]


@pytest.mark.parametrize(("batch", "noise_std", "scale"), BATCHES)
@pytest.mark.parametrize("bounds", [{}, {"weight_bound": 0.05, "floor": 0.7}, {"output_bound": 0.2}], ids=str)
def test_coherent_never_leaves_its_trust_region(
    batch: int, noise_std: float, scale: float, bounds: dict[str, float]
) -> None:
    net = fully_connected()
    posterior = tagi.Update(net, **bounds)
    likelihood = tagi.Regression(noise_std).double()
    weight_bound, output_bound, floor = (
        bounds.get(name, getattr(posterior, name)) for name in ("weight_bound", "output_bound", "floor")
    )
    for step in range(4):
        before = snapshot(net)
        likelihood(net(normal(batch, 3, seed=step)), scale * normal(batch, 2, seed=step + 9)).backward()
        posterior.step()
        posterior.zero_grad()
        after, length = snapshot(net), 0.0
        for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
            var = before[f"{name}.var"]
            moved = (after[f"{name}.mean"] - before[f"{name}.mean"]).square() / var
            length += moved.sum().item()
            assert moved.max().item() <= weight_bound**2 * (1 + 1e-9)
            ratio = after[f"{name}.var"] / var
            assert ratio.min().item() >= floor * (1 - 1e-9)
            assert ratio.max().item() <= 1 + 1e-9
            assert bool((after[f"{name}.var"] > 0).all())
        assert math.sqrt(length) <= output_bound * (1 + 1e-9)
        assert 0 < posterior.reports[0]["alpha"] <= 1


@pytest.mark.parametrize("bound", [0.3, 1.0])
def test_coherent_bounds_the_gain_of_an_observation_almost_without_noise(bound: float) -> None:
    net = linear(3)
    x = normal(1, 3)
    with torch.no_grad():
        before = net(x)
    condition(net, "coherent", x, before.mean + 0.1, 1e-4, gain_bound=bound)
    with torch.no_grad():
        after = net(x)
    assert (after.mean - before.mean).item() == pytest.approx(0.1 / (1 + bound), rel=1e-6)
    shrink = net.weight.var.detach() / 0.7
    expected = 1 - 0.7 * x.square() / ((1 + bound) * before.var)
    torch.testing.assert_close(shrink, expected, rtol=1e-6, atol=0)


def test_coherent_goes_as_far_as_its_output_bound() -> None:
    net = linear(3, var=0.5)
    x, before = normal(1, 3), net.weight.mean.detach().clone()
    with torch.no_grad():
        z = net(x)
    posterior = condition(net, "coherent", x, z.mean + z.var.sqrt(), 1.0, output_bound=0.1)
    length = ((net.weight.mean.detach() - before).square() / 0.5).sum().sqrt().item()
    assert length == pytest.approx(0.1, rel=1e-6)
    assert posterior.reports[0]["alpha"] < 1


def test_coherent_bounds_count_what_they_cut() -> None:
    net = linear(2, var=0.5)
    x = torch.eye(2).double().repeat(30, 1)[:31]  # the first weight is seen once more than the second
    posterior = condition(net, "coherent", x, torch.full((31, 1), 50.0).double(), 0.1, weight_bound=1e-3, floor=0.9)
    assert posterior.reports[0]["clipped"] == 2
    unbounded = linear(2, var=0.5)
    posterior = condition(
        unbounded, "coherent", x, torch.full((31, 1), 50.0).double(), 0.1, weight_bound=1e9, floor=1e-9
    )
    assert posterior.reports[0]["clipped"] == 0
    assert posterior.reports[0]["floored"] == 0


def test_coherent_shrinks_the_variance_where_predictions_are_perfect() -> None:
    net = linear(3)
    x = normal(1, 3)
    before = snapshot(net)
    with torch.no_grad():
        y = net(x).mean
    condition(net, "coherent", x, y)
    assert torch.equal(net.weight.mean.detach(), before["weight.mean"])
    assert bool((net.weight.var < before["weight.var"]).all())


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
    assert first.reports[0]["alpha"] == pytest.approx(second.reports[0]["alpha"], rel=1e-6)
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
        assert posterior.reports[0]["alpha"] > 0.01, "an ordinary surprise must not stop the learning"
    assert_states_close(snapshot(nets[0]), snapshot(nets[1]), 1e-6)


@pytest.mark.parametrize("rule", RULES)
def test_missing_targets_do_not_matter(rule: str) -> None:
    x, y = normal(9, 3), normal(9, 2, seed=1)
    one, other = fully_connected(), fully_connected()
    y[::2] = math.nan
    first = condition(one, rule, x, y, 2.0)
    second = condition(other, rule, x[1::2], y[1::2], 2.0)
    assert first.reports == [pytest.approx(report) for report in second.reports]
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
        assert updates[0].reports == [pytest.approx(report, rel=1e-9) for report in updates[1].reports]
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


# ---- the optimizer around the rules --------------------------------------------------------------------------


@pytest.mark.parametrize("lr", [0.0, 0.25, 1.0])
def test_lr_is_the_fraction_of_the_message_that_is_applied(lr: float) -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    net, reference = fully_connected(), fully_connected()
    before = snapshot(net)
    condition(reference, "paper", x, y, 3.0)
    posterior = condition(net, "paper", x, y, 3.0, lr=lr)
    full, after = snapshot(reference), snapshot(net)
    assert_states_close(after, {key: value + lr * (full[key] - value) for key, value in before.items()})
    assert posterior.reports[0]["alpha"] == lr


@pytest.mark.parametrize("rule", RULES)
def test_groups_divide_the_parameters_and_have_their_own_lr(rule: str) -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    net, reference = fully_connected(), fully_connected()
    before = snapshot(net)
    whole = condition(reference, rule, x, y, 3.0)
    groups = [{"modules": [net[0]]}, {"modules": [net[2]], "lr": 0.5}]
    posterior = condition(net, rule, x, y, 3.0, groups=groups)
    full = snapshot(reference)
    expected = {
        key: full[key] if key.startswith("0.") else value + 0.5 * (full[key] - value)
        for key, value in before.items()
    }
    assert_states_close(snapshot(net), expected)
    alpha = whole.reports[0]["alpha"]
    assert [report["alpha"] for report in posterior.reports] == pytest.approx([alpha, alpha / 2])


@pytest.mark.parametrize("rule", RULES)
def test_parameters_outside_all_groups_stay(rule: str) -> None:
    net = fully_connected()
    before = snapshot(net)
    condition(net, rule, normal(5, 3), normal(5, 2, seed=1), groups=[{"modules": [net[2]]}])
    after = snapshot(net)
    assert all(torch.equal(before[key], after[key]) == key.startswith("0.") for key in before)


@pytest.mark.parametrize("rule", RULES)
def test_a_parameter_used_twice_hears_both_messages_and_moves_once(rule: str) -> None:
    torch.manual_seed(0)
    shared = tagi.nn.Linear(3, 3).double()
    net = nn.Sequential(shared, tagi.nn.Tanh(), shared)
    x, y = normal(4, 3), normal(4, 3, seed=1)
    sent, before = message(net, x, y, 3.0), snapshot(net)
    posterior = condition(net, rule, x, y, 3.0)
    assert len(posterior.param_groups[0]["params"]) == 4
    alpha = posterior.reports[0]["alpha"]
    step = alpha * before["0.weight.var"] * sent["0.weight.mean"]
    torch.testing.assert_close(snapshot(net)["0.weight.mean"], before["0.weight.mean"] + step)


def test_a_module_and_its_part_in_one_group_are_updated_once() -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    one, other = fully_connected(), fully_connected()
    condition(one, "paper", x, y, 3.0)
    condition(other, "paper", x, y, 3.0, groups=[{"modules": [other[2], other, other[0]]}])
    assert_states_close(snapshot(one), snapshot(other))


def test_update_needs_a_gaussian_parameter_and_a_known_rule() -> None:
    with pytest.raises(ValueError, match="at least one GaussianParameter"):
        tagi.Update(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"rule.*coherent, capped, paper.*'adam'"):
        tagi.Update(linear(2), "adam")
    for floor in (0.0, 1.0, -0.5, math.nan):
        with pytest.raises(ValueError, match=rf"floor.*{floor}"):
            tagi.Update(linear(2), floor=floor)


@pytest.mark.parametrize("rule", RULES)
def test_torch_schedulers_set_the_lr(rule: str) -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    schedulers: list[tuple[Callable[[Any], Any], list[float]]] = [
        (lambda u: torch.optim.lr_scheduler.StepLR(u, step_size=2, gamma=0.5), [1.0, 1.0, 0.5, 0.5, 0.25]),
        (
            lambda u: torch.optim.lr_scheduler.LambdaLR(u, lambda epoch: 1 / (1 + epoch)),
            [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5],
        ),
    ]
    for build, rates in schedulers:
        net, reference = fully_connected(), fully_connected()
        posterior, other = tagi.Update(net, rule), tagi.Update(reference, rule)
        scheduler = build(posterior)
        for rate in rates:
            assert posterior.param_groups[0]["lr"] == pytest.approx(rate)
            other.param_groups[0]["lr"] = rate
            for module, update in ((net, posterior), (reference, other)):
                tagi.Regression(3.0).double()(module(x), y).backward()
                update.step()
                update.zero_grad()
            scheduler.step()
        assert_states_close(snapshot(net), snapshot(reference))


@pytest.mark.parametrize("rule", RULES)
def test_a_closure_is_evaluated_and_its_evidence_returned(rule: str) -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    net, reference = fully_connected(), fully_connected()
    condition(reference, rule, x, y)
    posterior, likelihood = tagi.Update(net, rule), tagi.Regression().double()
    expected = likelihood(net(x), y).item()

    def closure() -> Tensor:
        posterior.zero_grad()
        evidence = likelihood(net(x), y)
        evidence.backward()
        return evidence

    likelihood(net(x), 5 * y).backward()  # forgotten by the closure's zero_grad
    assert posterior.step(closure).item() == pytest.approx(expected)
    assert_states_close(snapshot(net), snapshot(reference))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_forgets_what_was_heard(rule: str, set_to_none: bool) -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    net, reference = fully_connected(), fully_connected()
    expected = condition(reference, rule, x, y, 0.3)
    posterior = tagi.Update(net, rule)
    likelihood = tagi.Regression(0.3).double()
    likelihood(net(normal(300, 3)), 9 * normal(300, 2)).backward()
    posterior.zero_grad(set_to_none=set_to_none)
    grads = [parameter.grad for parameter in net.parameters()]
    assert all(grad is None if set_to_none else not grad.any() for grad in grads)
    likelihood(net(x), y).backward()
    posterior.step()
    assert_states_close(snapshot(net), snapshot(reference))
    assert posterior.reports == [pytest.approx(report) for report in expected.reports]


@pytest.mark.parametrize("rule", RULES)
def test_a_step_without_messages_changes_nothing(rule: str) -> None:
    net = fully_connected()
    before, posterior = snapshot(net), tagi.Update(net, rule)
    posterior.step()
    with torch.no_grad():
        net(normal(2, 3))
    posterior.step()
    assert_same(before, snapshot(net))


@pytest.mark.parametrize("rule", RULES)
def test_a_step_consumes_what_was_heard(rule: str) -> None:
    """The second step's fraction knows only the second batch."""
    x, y = normal(5, 3), 0.2 * normal(5, 2, seed=1)
    net = fully_connected()
    posterior, likelihood = tagi.Update(net, rule), tagi.Regression(3.0).double()
    likelihood(net(normal(40, 3)), 0.2 * normal(40, 2)).backward()
    posterior.step()
    net.zero_grad()  # torch's own, which knows nothing of the update
    reference = copy.deepcopy(net)
    fresh = condition(reference, rule, x, y, 3.0)
    likelihood(net(x), y).backward()
    posterior.step()
    assert posterior.reports == [pytest.approx(report) for report in fresh.reports]
    assert_states_close(snapshot(net), snapshot(reference))


# ---- frozen parameters ---------------------------------------------------------------------------------------


def three_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        tagi.nn.Linear(3, 6), tagi.nn.Tanh(), tagi.nn.Linear(6, 5), tagi.nn.Tanh(), tagi.nn.Linear(5, 2)
    ).double()


@pytest.mark.parametrize("rule", RULES)
def test_a_frozen_layer_stays_and_passes_messages_on(rule: str) -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    net = three_layers()
    free = message(net, x, y, 3.0)
    net[2].requires_grad_(False)
    before, frozen = snapshot(net), message(net, x, y, 3.0)
    assert not any(key.startswith("2.") for key in frozen)
    for key, value in frozen.items():
        torch.testing.assert_close(value, free[key], rtol=1e-12, atol=0)
    posterior = condition(net, rule, x, y, 3.0)
    after, alpha = snapshot(net), posterior.reports[0]["alpha"]
    assert all(torch.equal(before[key], after[key]) == key.startswith("2.") for key in before)
    step = alpha * before["0.weight.var"] * free["0.weight.mean"]
    torch.testing.assert_close(after["0.weight.mean"], before["0.weight.mean"] + step)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_whole_group_may_be_frozen(rule: str, frozen: int) -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    one, other = fully_connected(), fully_connected()
    for net in (one, other):
        net[2 * frozen].requires_grad_(False)
    before = snapshot(one)
    condition(one, rule, x, y, 3.0)
    condition(other, rule, x, y, 3.0, groups=[{"modules": [other[0]]}, {"modules": [other[2]]}])
    assert_states_close(snapshot(one), snapshot(other))
    after = snapshot(other)
    assert all(torch.equal(before[key], after[key]) == key.startswith(f"{2 * frozen}.") for key in before)


@pytest.mark.parametrize("rule", RULES)
def test_an_input_may_ask_for_its_message(rule: str) -> None:
    net = fully_connected().requires_grad_(False)
    before, posterior = snapshot(net), tagi.Update(net, rule)
    x = tagi.Gaussian(normal(2, 3), torch.ones(2, 3).double()).requires_grad_()
    tagi.Regression(2.0).double()(net(x), normal(2, 2, seed=1)).backward()
    posterior.step()
    assert_same(before, snapshot(net))
    assert bool((x.posterior().var < x.var).any())


# ---- several outputs -----------------------------------------------------------------------------------------


class Heads(nn.Module):
    """A shared trunk under two heads, returned in a container of the caller's choice."""

    def __init__(self, container: Callable[[Any, Any], Any] = lambda a, b: (a, b)) -> None:
        super().__init__()
        self.trunk = nn.Sequential(tagi.nn.Linear(3, 6), tagi.nn.Tanh())
        self.first, self.second = tagi.nn.Linear(6, 1), tagi.nn.Linear(6, 1)
        self.container = container

    def forward(self, x: Tensor) -> Any:
        shared = self.trunk(x)
        return self.container(self.first(shared), self.second(shared))


def same_net_with_one_head(heads: Heads, which: Sequence[str]) -> nn.Sequential:
    """The heads' rows side by side in one layer."""
    joined = tagi.nn.Linear(6, len(which)).double()
    for parameter in ("weight", "bias"):
        parts = [getattr(getattr(heads, head), parameter) for head in which]
        joined.get_submodule(parameter).set_(
            torch.cat([part.mean for part in parts]), torch.cat([part.var for part in parts])
        )
    return nn.Sequential(copy.deepcopy(heads.trunk), joined)


def two_heads(container: Callable[[Any, Any], Any] = lambda a, b: (a, b)) -> Heads:
    torch.manual_seed(0)
    return Heads(container).double()


CONTAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "dict": lambda a, b: {"one": a, "two": b},
    "nested": lambda a, b: (a, {"rest": [b, torch.zeros(3)]}),
}


def gaussians(output: Any) -> list[tagi.Gaussian]:
    if isinstance(output, tagi.Gaussian):
        return [output]
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, list | tuple) else []
    return [found for part in parts for found in gaussians(part)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("batch", [1, 5, 128, 256])
def test_two_heads_learn_as_one_layer_with_their_rows(rule: str, container: str, batch: int) -> None:
    """With 128 entries seen by two heads the capped rule still counts 128 samples, not 256."""
    net = two_heads(CONTAINERS[container])
    single = same_net_with_one_head(net, ["first", "second"])
    x, y = normal(batch, 3), 20 * normal(batch, 2, seed=1)
    expected = condition(single, rule, x, y, 0.05)
    posterior, likelihood = tagi.Update(net, rule), tagi.Regression(0.05).double()
    first, second = gaussians(net(x))
    (likelihood(first, y[:, :1]) + likelihood(second, y[:, 1:])).backward()
    posterior.step()
    assert_states_close(snapshot(net.trunk), snapshot(single[0]), 1e-9)
    for row, head in enumerate((net.first, net.second)):
        torch.testing.assert_close(head.weight.mean[0], single[1].weight.mean[row])
        torch.testing.assert_close(head.weight.var[0], single[1].weight.var[row])
    assert posterior.reports == [pytest.approx(report) for report in expected.reports]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("head", [0, 1])
@pytest.mark.parametrize("batch", [1, 5, 256])
def test_one_head_may_be_observed_alone(rule: str, head: int, batch: int) -> None:
    net = two_heads()
    names = ("first", "second")
    single = same_net_with_one_head(net, [names[head]])
    x, y = normal(batch, 3), 20 * normal(batch, 1, seed=1)
    condition(single, rule, x, y, 0.05)
    before, posterior = snapshot(net), tagi.Update(net, rule)
    tagi.Regression(0.05).double()(net(x)[head], y).backward()
    posterior.step()
    assert_states_close(snapshot(net.trunk), snapshot(single[0]), 1e-9)
    assert_states_close(snapshot(net.get_submodule(names[head])), snapshot(single[1]), 1e-9)
    other = names[1 - head]
    assert all(
        torch.equal(value, before[f"{other}.{key}"]) for key, value in snapshot(net.get_submodule(other)).items()
    )


@pytest.mark.parametrize("rule", RULES)
def test_heads_observed_in_separate_backward_passes(rule: str) -> None:
    one, other = two_heads(), two_heads()
    x, y = normal(5, 3), normal(5, 2, seed=1)
    likelihood = tagi.Regression(0.5).double()
    for net, together in ((one, True), (other, False)):
        posterior = tagi.Update(net, rule)
        first, second = net(x)
        evidences = [likelihood(first, y[:, :1]), likelihood(second, y[:, 1:])]
        if together:
            sum(evidences).backward()
        else:
            evidences[0].backward(retain_graph=True)
            evidences[1].backward()
        posterior.step()
    assert_states_close(snapshot(one), snapshot(other), 1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_the_output_may_be_that_of_another_module(rule: str) -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    one, other = fully_connected(), fully_connected()
    condition(one, rule, x, y)
    posterior = tagi.Update(other, rule, outputs=other[2])
    tagi.Regression().double()(other[2](other[1](other[0](x))), y).backward()
    posterior.step()
    assert_states_close(snapshot(one), snapshot(other))


# ---- copies, pickles, and updates that are gone --------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_of_a_network_is_free_of_its_update(rule: str, way: str, tmp_path: Path) -> None:
    x, y = normal(5, 3), 9 * normal(5, 2, seed=1)
    net = fully_connected()
    posterior = tagi.Update(net, rule)
    if way == "deepcopy":
        twin = copy.deepcopy(net)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(net))
    else:
        torch.save(net, tmp_path / "net.pt")
        twin = torch.load(tmp_path / "net.pt", weights_only=False)
    before = snapshot(net)
    assert_same(before, snapshot(twin))
    # the copy's messages neither reach the original's update nor are bounded by it
    sent, likelihood = message(fully_connected(), x, y, 1e-3), tagi.Regression(1e-3).double()
    likelihood(twin(x), y).backward()
    for name, parameter in twin.named_parameters():
        torch.testing.assert_close(parameter.grad, sent[name], rtol=1e-12, atol=0)
    twin.zero_grad()
    posterior.step()
    assert_same(before, snapshot(net))
    # and it can have an update of its own
    condition(twin, rule, x, y, 0.5)
    likelihood = tagi.Regression(0.5).double()
    likelihood(net(x), y).backward()
    posterior.step()
    assert_states_close(snapshot(net), snapshot(twin))


def test_a_discarded_update_stops_listening() -> None:
    x, y = normal(5, 3), 9 * normal(5, 2, seed=1)
    net = fully_connected()
    sent = message(net, x, y, 1e-3)
    posterior = tagi.Update(net)
    likelihood = tagi.Regression(1e-3).double()
    likelihood(net(x), y).backward()
    assert not torch.allclose(net[0].weight.mean.grad, sent["0.weight.mean"]), "the bound of the gain should act"
    del posterior
    gc.collect()
    net.zero_grad()
    likelihood(net(x), y).backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, sent[name], rtol=1e-12, atol=0)


def test_a_submodule_called_in_place_of_the_network_is_noticed() -> None:
    net = nn.Sequential(nn.Sequential(tagi.nn.Linear(3, 2)).double())
    posterior = tagi.Update(net)
    before = snapshot(net)
    tagi.Regression().double()(net[0](normal(2, 3)), normal(2, 2)).backward()
    with pytest.raises(RuntimeError, match=r"output of the module given to Update.*outputs="):
        posterior.step()
    assert_same(before, snapshot(net))


# ---- messages that are not finite ----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("stream", ["mean", "var"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("layer", [0, 2])
def test_a_message_that_is_not_finite_raises_and_changes_nothing(
    rule: str, stream: str, bad: float, layer: int
) -> None:
    net = fully_connected()
    posterior, before = tagi.Update(net, rule), snapshot(net)
    tagi.Regression().double()(net(normal(4, 3)), normal(4, 2)).backward()
    net[layer].weight.get_parameter(stream).grad[0, 1] = bad
    with pytest.raises(FloatingPointError, match=r"not finite.*no parameter was changed"):
        posterior.step()
    assert_same(before, snapshot(net))
    posterior.zero_grad()
    condition(net, rule, normal(4, 3), normal(4, 2))
    assert all(bool(torch.isfinite(value).all()) for value in snapshot(net).values())


@pytest.mark.parametrize("rule", RULES)
def test_a_target_far_out_of_range_raises_and_changes_nothing(rule: str) -> None:
    net = fully_connected().float()
    posterior, before = tagi.Update(net, rule), snapshot(net)
    tagi.Regression()(net(torch.ones(2, 3)), torch.full((2, 2), 1e30)).backward()
    with pytest.raises(FloatingPointError, match="out of range"):
        posterior.step()
    assert_same(before, snapshot(net))


# ---- reports and state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_reports_tell_the_fraction_and_the_mean_squared_innovation(rule: str) -> None:
    net = linear(3, outputs=2)
    x, y = normal(6, 3), normal(6, 2, seed=1)
    y[0, 1] = y[3, 0] = math.nan
    with torch.no_grad():
        z = net(x)
    innovation = ((y - z.mean).square() / (z.var + 6.25)).nanmean().item()
    posterior = condition(net, rule, x, y, 2.5)
    (report,) = posterior.reports
    assert {"alpha", "innovation", "floored", "clipped"} <= report.keys()
    assert all(isinstance(value, float) for value in report.values())
    assert bool((0.3 * z.var < 6.25).all()), "the bound of the gain must not act here"
    assert report["innovation"] == pytest.approx(innovation, rel=1e-6)
    assert report["floored"] == report["clipped"] == 0
    assert 0 < report["alpha"] <= 1
    if rule != "coherent":
        assert report["alpha"] == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_saved_state_resumes_exactly(rule: str) -> None:
    """Network and update saved after two surprising steps go on as if never interrupted."""

    def run(net: nn.Module, posterior: tagi.Update, steps: Sequence[int]) -> None:
        for step in steps:
            y = 12 * normal(4, 2, seed=step + 50)
            tagi.Regression(3.0).double()(net(normal(4, 3, seed=step)), y).backward()
            posterior.step()
            posterior.zero_grad()

    def split(net: nn.Module) -> tagi.Update:
        return tagi.Update(net, rule, groups=[{"modules": [net[0]], "lr": 0.9}, {"modules": [net[2]]}])

    net = fully_connected()
    posterior = split(net)
    run(net, posterior, range(2))
    posterior.param_groups[1]["lr"] = 0.5
    twin = copy.deepcopy(net)
    resumed = split(twin)
    resumed.load_state_dict(pickle.loads(pickle.dumps(posterior.state_dict())))
    assert [group["lr"] for group in resumed.param_groups] == [0.9, 0.5]
    before = snapshot(net)
    run(net, posterior, range(2, 4))
    run(twin, resumed, range(2, 4))
    assert_states_close(snapshot(net), snapshot(twin))
    assert_moved(before, snapshot(net))
