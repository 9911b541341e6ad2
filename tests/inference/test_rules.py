"""The rules that turn messages into posteriors."""

import copy
import math

import pytest
import torch
from small_nets import (
    NETS,
    RULES,
    assert_moved,
    assert_states_close,
    condition,
    dense_posterior,
    fully_connected,
    linear,
    message,
    normal,
    snapshot,
    update_of,
)

import torchtagi as tagi

# ---- paper and capped ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("net_name", NETS)
@pytest.mark.parametrize("batch", [1, 7])
def test_paper_rule_subtracts_variance_times_message(net_name: str, batch: int) -> None:
    build, features = NETS[net_name]
    net = build()
    x, y = normal(batch, features), normal(batch, 2, seed=1)
    sent, before = message(net, x, y, 3.0), snapshot(net)
    condition(net, "paper", x, y, 3.0)
    expected = {}
    for key, value in before.items():
        s = before[key.removesuffix("mean") + "var"] if key.endswith("mean") else value
        expected[key] = value - (s if key.endswith("mean") else s.square()) * sent[key]
    assert_states_close(snapshot(net), expected)
    assert_moved(before, expected)


def test_paper_rule_keeps_a_variance_positive() -> None:
    """Ten copies of one observation, taken as independent, say more than there is to know."""
    net = linear(1)
    posterior = condition(net, "paper", torch.ones(10, 1).double(), torch.ones(10, 1).double(), 0.5)
    assert net.weight.var.item() > 0
    assert posterior.report["floored"] == 1


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
        expected_var = var - torch.minimum(torch.maximum(shrink, -bound), bound)
        floored += int((expected_var <= 0).sum())
        expected_var[expected_var <= 0] = 1e-5
        expected_mean = mean - torch.minimum(torch.maximum(change, -bound), bound)
        torch.testing.assert_close(after[f"{name}.mean"], expected_mean, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(after[f"{name}.var"], expected_var, rtol=1e-12, atol=1e-14)
    assert clipped > 0
    assert posterior.report["clipped"] == clipped
    assert posterior.report["floored"] == floored


@pytest.mark.parametrize("rule", RULES)
def test_an_ordinary_single_observation_has_the_same_posterior_under_every_rule(rule: str) -> None:
    """Within the caps and bounds, conditioning on one observation is exact."""
    net, reference = linear(4, bias=True), linear(4, bias=True)
    x, y = normal(1, 4), reference(normal(1, 4)).mean.detach() + 0.5
    condition(net, rule, x, y, 1.5)
    sent = message(reference, x, y, 1.5)
    for name in ("weight", "bias"):
        before, after = getattr(reference, name), getattr(net, name)
        torch.testing.assert_close(after.mean, before.mean - before.var * sent[f"{name}.mean"])
        torch.testing.assert_close(after.var, before.var - before.var.square() * sent[f"{name}.var"])


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
    assert posterior.report["alpha"] == pytest.approx(1.0, abs=1e-12)


def test_coherent_takes_uncorrelated_observations_whole() -> None:
    net = linear(5)
    before = net.weight.mean.detach()[0].clone()
    y = before[:, None] + 0.5 * normal(5, 1)
    mean, covariance = dense_posterior(before, net.weight.var.detach()[0], torch.eye(5).double(), y[:, 0], 1.0)
    posterior = condition(net, "coherent", torch.eye(5).double(), y)
    assert posterior.report["alpha"] == pytest.approx(1.0, abs=1e-12)
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
    assert posterior.report["alpha"] == pytest.approx((v + noise_var) / (copies * v + noise_var), rel=1e-6)
    torch.testing.assert_close(
        torch.cat([net.weight.mean[0], net.bias.mean]).detach(), exact_mean, rtol=1e-6, atol=1e-8
    )
    exact_var = torch.diag(exact_covariance)
    torch.testing.assert_close(
        torch.cat([net.weight.var[0], net.bias.var]).detach(), exact_var, rtol=1e-6, atol=1e-8
    )


def test_coherent_line_search_knows_the_whole_covariance_of_the_batch() -> None:
    """α = r·u / u·(J S Jᵀ + R)·u, u the gradients, with the dense covariance of the predictions."""
    net = linear(3, bias=True, var=0.05)
    x, y, noise_var = normal(12, 3), 0.3 * normal(12, 1, seed=1), 0.64
    design = torch.cat([x, torch.ones(12, 1)], 1)
    var = torch.cat([net.weight.var.detach()[0], net.bias.var.detach()])
    with torch.no_grad():
        innovation = (y - net(x).mean)[:, 0]
    covariance = design @ torch.diag(var) @ design.t()
    gradient = innovation / (covariance.diagonal() + noise_var)
    joint = covariance + noise_var * torch.eye(12, dtype=torch.float64)
    posterior = condition(net, "coherent", x, y, torch.tensor(0.8, dtype=torch.float64))
    assert posterior.report["innovation"] <= 1, "larger innovations may count as a sign of more noise"
    alpha = (innovation @ gradient / (gradient @ joint @ gradient)).item()
    assert 0 < alpha < 0.9
    assert posterior.report["alpha"] == pytest.approx(alpha, rel=1e-6)


BATCHES = [(1, 1.0, 3.0), (1, 0.1, 1.0), (64, 1e-3, 100.0), (64, 0.3, 1.0), (300, 1e-2, 30.0)]


@pytest.mark.parametrize(("batch", "noise_std", "scale"), BATCHES)
@pytest.mark.parametrize("bounds", [{}, {"weight_bound": 0.05, "floor": 0.7}, {"output_bound": 0.2}], ids=str)
def test_coherent_never_leaves_its_trust_region(
    batch: int, noise_std: float, scale: float, bounds: dict[str, float]
) -> None:
    net = fully_connected()
    posterior = update_of(net, **bounds)
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
        assert 0 < posterior.report["alpha"] <= 1


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
    assert posterior.report["alpha"] < 1


def test_coherent_bounds_count_what_they_cut() -> None:
    net = linear(2, var=0.5)
    x = torch.eye(2).double().repeat(30, 1)[:31]  # the first weight is seen once more than the second
    posterior = condition(net, "coherent", x, torch.full((31, 1), 50.0).double(), 0.1, weight_bound=1e-3, floor=0.9)
    assert posterior.report["clipped"] == 2
    unbounded = linear(2, var=0.5)
    posterior = condition(
        unbounded, "coherent", x, torch.full((31, 1), 50.0).double(), 0.1, weight_bound=1e9, floor=1e-9
    )
    assert posterior.report["clipped"] == 0
    assert posterior.report["floored"] == 0


def test_coherent_shrinks_the_variance_where_predictions_are_perfect() -> None:
    net = linear(3)
    x = normal(1, 3)
    before = snapshot(net)
    with torch.no_grad():
        y = net(x).mean
    condition(net, "coherent", x, y)
    assert torch.equal(net.weight.mean.detach(), before["weight.mean"])
    assert bool((net.weight.var < before["weight.var"]).all())


# ---- shared weights ------------------------------------------------------------------------------------------


def mean_of_convolution(positions: int) -> torch.nn.Module:
    """A 1×1 convolution averaged over all positions: its weight acts at each of them."""
    return torch.nn.Sequential(
        tagi.nn.Conv2d(1, 1, 1, bias=False, dtype=torch.float64),
        tagi.nn.AvgPool2d((positions, 1)),
        tagi.nn.Flatten(),
    )


@pytest.mark.parametrize("positions", [1, 4, 25])
def test_a_shared_weight_is_as_certain_afterwards_as_its_exact_posterior(positions: int) -> None:
    """y = w·c + e whatever the number of positions: the diagonal sum over them would be off by their number."""
    c, noise_std, prior_var = 1.7, 0.6, 0.8
    net = mean_of_convolution(positions)
    weight = net[0].weight
    weight.set_(0.3, prior_var)
    x = torch.full((1, 1, positions, 1), c, dtype=torch.float64)
    condition(net, "coherent", x, torch.tensor([[1.1]], dtype=torch.float64), noise_std, gain_bound=0.0)
    gain = prior_var * c / (prior_var * c * c + noise_std**2)
    assert weight.mean.item() == pytest.approx(0.3 + gain * (1.1 - 0.3 * c))
    assert weight.var.item() == pytest.approx(prior_var * (1 - gain * c))


def test_without_counting_a_shared_weight_stays_too_uncertain() -> None:
    counted = mean_of_convolution(25)
    uncounted = copy.deepcopy(counted)
    x, y = torch.ones(1, 1, 25, 1, dtype=torch.float64), torch.tensor([[1.0]], dtype=torch.float64)
    condition(counted, "coherent", x, y)
    condition(uncounted, "coherent", x, y, count_sharing=False)
    before = mean_of_convolution(25)[0].weight.var  # the same for all
    lost = [1 - (net[0].weight.var / before).item() for net in (counted, uncounted)]
    assert lost[0] == pytest.approx(25 * lost[1], rel=1e-6)


@pytest.mark.parametrize("rule", ["paper", "capped"])
def test_the_other_rules_do_not_count_sharing(rule: str) -> None:
    torch.manual_seed(0)
    nets = [mean_of_convolution(9)]
    nets.append(copy.deepcopy(nets[0]))
    x, y = torch.randn(3, 1, 9, 1, dtype=torch.float64), torch.randn(3, 1, dtype=torch.float64)
    for net, count in zip(nets, (True, False), strict=True):
        condition(net, rule, x, y, count_sharing=count)
    assert torch.equal(nets[0][0].weight.var, nets[1][0].weight.var)


def test_which_parameters_are_shared() -> None:
    layers = tagi.nn
    shared = [layers.Conv2d(2, 3, 3), layers.ConvTranspose2d(2, 3, 3), layers.BatchNorm2d(3)]
    own = [layers.Linear(2, 3), layers.BatchNorm1d(3), layers.LayerNorm(3)]
    for layer in [*shared, *own, layers.LayerNorm((3, 2, 2))]:
        wanted = layer in shared
        assert [part.shared is not None for part in (layer.weight, layer.bias)] == [wanted, wanted], layer


# ---- sharing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 4, 16])
def test_sharing_is_not_what_a_batch_has_in_common(batch: int) -> None:
    """A kernel at 25 equal positions before a linear layer, and B equal samples: what dense conditioning finds."""
    net = torch.nn.Sequential(
        tagi.nn.Conv2d(1, 1, 1, bias=False),
        tagi.nn.AvgPool2d((25, 1)),
        tagi.nn.Flatten(),
        tagi.nn.Linear(1, 1, bias=False),
    ).double()
    net[0].weight.set_(0.7, 0.1)
    net[3].weight.set_(0.9, 0.1)
    x = torch.ones(batch, 1, 25, 1).double()
    posterior = update_of(net, floor=0.001)
    tagi.Regression(1.0)(net(x), net(x).mean.detach() + 0.5).backward()
    posterior.step()
    variance = 0.1 * 0.9**2 + 0.1 * 0.7**2 + 0.1 * 0.1  # of one output
    expected = 0.1 - (0.1 * 0.9) ** 2 * batch / (batch * (variance - 0.1 * 0.1) + 1 + 0.1 * 0.1)
    assert net[0].weight.var.item() == pytest.approx(expected, rel=0.01)


def test_sharing_is_at_most_the_number_of_positions() -> None:
    """A convolution on single pixels shares nothing, however equal its samples are."""
    x, y = torch.ones(4, 1, 1, 1).double(), torch.ones(4, 1).double()
    outcomes = []
    for layer in (tagi.nn.Conv2d(1, 1, 1, bias=False), tagi.nn.Linear(1, 1, bias=False)):
        net = torch.nn.Sequential(layer, tagi.nn.Flatten()).double()
        layer.weight.set_(0.5, 0.2)
        posterior = condition(net, "coherent", x if layer.weight.mean.ndim == 4 else x.flatten(1), y, 1.0)
        outcomes.append(layer.weight.var.item())
    assert posterior.sharing == []
    assert outcomes[0] == pytest.approx(outcomes[1])


@pytest.mark.parametrize(
    ("layer", "shape", "count"),
    [
        (tagi.nn.Conv2d(1, 2, 3, stride=2), (2, 1, 9, 9), 81),
        (tagi.nn.ConvTranspose2d(1, 2, 3, stride=2), (2, 1, 4, 4), 81),
        (tagi.nn.BatchNorm2d(3), (2, 3, 4, 5), 20),
    ],
)
def test_layers_count_the_positions_at_which_they_act(
    layer: torch.nn.Module, shape: tuple[int, ...], count: int
) -> None:
    layer(torch.randn(shape))
    assert layer.weight.shared.count == layer.bias.shared.count == count
    assert copy.deepcopy(layer).weight.shared.count == count


def test_a_convolution_with_messages_that_widen_has_no_sharing() -> None:
    torch.manual_seed(19)
    net = torch.nn.Sequential(
        tagi.nn.Conv2d(1, 2, 3), tagi.nn.ReLU(), tagi.nn.Conv2d(2, 2, 3), tagi.nn.AvgPool2d(4), tagi.nn.Flatten()
    )
    posterior = tagi.Update(net)
    z = net(torch.randn(4, 1, 8, 8))
    torch.autograd.backward((z.mean, z.var), (-torch.ones(4, 2), torch.full((4, 2), -0.5)))
    posterior.step()
    assert posterior.sharing == [1.0] * 4
