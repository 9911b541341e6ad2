"""The optimizer around the rules: parts, schedulers, reports, state, refusals."""

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from small_nets import (
    RULES,
    assert_moved,
    assert_same,
    assert_states_close,
    condition,
    fully_connected,
    linear,
    message,
    normal,
    snapshot,
)
from torch import Tensor, nn

import torchtagi as tagi

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
    assert posterior.report["alpha"] == lr


@pytest.mark.parametrize("rule", ["paper", "capped"])
def test_parts_may_have_updates_and_lrs_of_their_own(rule: str) -> None:
    """These rules look at each weight alone, so that parts learn what the whole network does."""
    x, y = normal(5, 3), normal(5, 2, seed=1)
    net, reference = fully_connected(), fully_connected()
    before = snapshot(net)
    condition(reference, rule, x, y, 3.0)
    body = tagi.Update(net[0], rule, outputs=net)
    head = tagi.Update(net[2], rule, outputs=net, lr=0.5)
    tagi.Regression(3.0).double()(net(x), y).backward()
    body.step()
    head.step()
    full = snapshot(reference)
    expected = {
        key: full[key] if key.startswith("0.") else value + 0.5 * (full[key] - value)
        for key, value in before.items()
    }
    assert_states_close(snapshot(net), expected)
    assert [body.report["alpha"], head.report["alpha"]] == [1.0, 0.5]


@pytest.mark.parametrize("rule", RULES)
def test_parameters_outside_a_part_stay(rule: str) -> None:
    net = fully_connected()
    before = snapshot(net)
    condition(net, rule, normal(5, 3), normal(5, 2, seed=1), part=net[2])
    after = snapshot(net)
    assert all(torch.equal(before[key], after[key]) == key.startswith("0.") for key in before)


@pytest.mark.parametrize("rule", RULES)
def test_a_parameter_used_twice_gets_both_messages_and_moves_once(rule: str) -> None:
    torch.manual_seed(0)
    shared = tagi.nn.Linear(3, 3).double()
    net = nn.Sequential(shared, tagi.nn.Tanh(), shared)
    x, y = normal(4, 3), normal(4, 3, seed=1)
    sent, before = message(net, x, y, 3.0), snapshot(net)
    posterior = condition(net, rule, x, y, 3.0)
    assert len(posterior.param_groups[0]["params"]) == 4
    alpha = posterior.report["alpha"]
    step = alpha * before["0.weight.var"] * sent["0.weight.mean"]
    torch.testing.assert_close(snapshot(net)["0.weight.mean"], before["0.weight.mean"] - step)


def test_update_needs_a_gaussian_parameter_and_a_known_rule() -> None:
    with pytest.raises(ValueError, match="at least one GaussianParameter"):
        tagi.Update(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"rule.*coherent, capped, paper.*'adam'"):
        tagi.Update(linear(2), "adam")


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
def test_a_closure_is_evaluated_and_its_loss_returned(rule: str) -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    net, reference = fully_connected(), fully_connected()
    condition(reference, rule, x, y)
    posterior, likelihood = tagi.Update(net, rule), tagi.Regression().double()
    expected = likelihood(net(x), y).item()

    def closure() -> Tensor:
        posterior.zero_grad()
        loss = likelihood(net(x), y)
        loss.backward()
        return loss

    likelihood(net(x), 5 * y).backward()  # forgotten by the closure's zero_grad
    assert posterior.step(closure).item() == pytest.approx(expected)
    assert_states_close(snapshot(net), snapshot(reference))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_forgets_the_messages_so_far(rule: str, set_to_none: bool) -> None:
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
    assert posterior.report == pytest.approx(expected.report)


@pytest.mark.parametrize("rule", RULES)
def test_a_step_without_messages_is_refused_and_changes_nothing(rule: str) -> None:
    net = fully_connected()
    before, posterior = snapshot(net), tagi.Update(net, rule)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"no messages: call backward\(\)"):
            posterior.step()
        with torch.no_grad():
            net(normal(2, 3))
    assert_same(before, snapshot(net))


@pytest.mark.parametrize("rule", RULES)
def test_a_step_consumes_the_record(rule: str) -> None:
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
    assert posterior.report == pytest.approx(fresh.report)
    assert_states_close(snapshot(net), snapshot(reference))


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


# ---- report and state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_the_report_tells_the_fraction_and_the_mean_squared_innovation(rule: str) -> None:
    net = linear(3, outputs=2)
    x, y = normal(6, 3), normal(6, 2, seed=1)
    y[0, 1] = y[3, 0] = math.nan
    with torch.no_grad():
        z = net(x)
    innovation = ((y - z.mean).square() / (z.var + 6.25)).nanmean().item()
    posterior = condition(net, rule, x, y, 2.5)
    report = posterior.report
    assert {"alpha", "innovation", "floored", "clipped"} <= report.keys()
    assert all(isinstance(value, float | int) for value in report.values())
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

    net = fully_connected()
    posterior = tagi.Update(net, rule, lr=0.9)
    run(net, posterior, range(2))
    posterior.param_groups[0]["lr"] = 0.5
    twin = copy.deepcopy(net)
    resumed = tagi.Update(twin, rule)
    resumed.load_state_dict(pickle.loads(pickle.dumps(posterior.state_dict())))
    assert [group["lr"] for group in resumed.param_groups] == [0.5]
    before = snapshot(net)
    run(net, posterior, range(2, 4))
    run(twin, resumed, range(2, 4))
    assert_states_close(snapshot(net), snapshot(twin))
    assert_moved(before, snapshot(net))


def test_hooks_and_the_profiler_see_a_step() -> None:
    """Torch's own wrapper is there for whoever looks, though `step` does without it otherwise."""
    net = fully_connected()
    likelihood, posterior = tagi.Regression(1.0).double(), tagi.Update(net)
    x, y = normal(5, 3), normal(5, 2, seed=1)
    seen: list[tuple[str, Tensor]] = []
    before = net[0].weight.mean.detach().clone()
    for name, register in (
        ("before", posterior.register_step_pre_hook),
        ("after", posterior.register_step_post_hook),
    ):
        register(lambda *_, name=name: seen.append((name, net[0].weight.mean.detach().clone())))
    likelihood(net(x), y).backward()
    posterior.step()
    assert [name for name, _ in seen] == ["before", "after"]
    assert torch.equal(seen[0][1], before)
    assert torch.equal(seen[1][1], net[0].weight.mean)
    assert not torch.equal(before, net[0].weight.mean)
    other = fully_connected()
    unhooked = tagi.Update(other)
    likelihood(other(x), y).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        unhooked.step()
    assert "Optimizer.step#Update.step" in {event.key for event in profile.key_averages()}


def test_which_weights_are_shared_is_not_in_the_state() -> None:
    """It is the network's to say. A state of an older version may have it still."""
    net = torch.nn.Sequential(tagi.nn.Conv2d(1, 2, 2), tagi.nn.Flatten(), tagi.nn.Linear(2, 1))
    posterior = tagi.Update(net, lr=0.5)
    state = posterior.state_dict()
    assert "shared" not in state["param_groups"][0]
    state["param_groups"][0]["shared"] = [False] * 4
    other = tagi.Update(net)
    other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == 0.5
    tagi.condition(net, tagi.Regression(1.0), other, torch.randn(2, 1, 2, 2), torch.randn(2, 1))
    assert len(other.sharing) == 2
