"""Frozen parts, several outputs, copies and pickles of the network."""

import copy
import gc
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
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
    message,
    normal,
    snapshot,
)
from torch import Tensor, nn

import torchtagi as tagi

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
    after, alpha = snapshot(net), posterior.report["alpha"]
    assert all(torch.equal(before[key], after[key]) == key.startswith("2.") for key in before)
    step = alpha * before["0.weight.var"] * free["0.weight.mean"]
    torch.testing.assert_close(after["0.weight.mean"], before["0.weight.mean"] - step)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_part_is_a_part_without_an_update(rule: str, frozen: int) -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    one, other = fully_connected(), fully_connected()
    one[2 * frozen].requires_grad_(False)
    before = snapshot(one)
    condition(one, rule, x, y, 3.0)
    condition(other, rule, x, y, 3.0, part=other[2 - 2 * frozen])
    assert_states_close(snapshot(one), snapshot(other))
    after = snapshot(other)
    assert all(torch.equal(before[key], after[key]) == key.startswith(f"{2 * frozen}.") for key in before)


@pytest.mark.parametrize("rule", RULES)
def test_an_input_may_ask_for_its_message(rule: str) -> None:
    net = fully_connected().requires_grad_(False)
    before, posterior = snapshot(net), tagi.Update(net, rule)
    x = tagi.Gaussian(normal(2, 3), torch.ones(2, 3).double()).requires_grad_()
    tagi.Regression(2.0).double()(net(x), normal(2, 2, seed=1)).backward()
    with pytest.raises(RuntimeError, match="all parameters of this update have requires_grad=False"):
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
    assert posterior.report == pytest.approx(expected.report)


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
        losses = [likelihood(first, y[:, :1]), likelihood(second, y[:, 1:])]
        if together:
            sum(losses).backward()
        else:
            losses[0].backward(retain_graph=True)
            losses[1].backward()
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
    with pytest.raises(RuntimeError, match="a copy of a network needs an Update of its own"):
        posterior.step()
    assert_same(before, snapshot(net))
    # and it can have an update of its own
    condition(twin, rule, x, y, 0.5)
    likelihood = tagi.Regression(0.5).double()
    likelihood(net(x), y).backward()
    posterior.step()
    assert_states_close(snapshot(net), snapshot(twin))


def test_a_discarded_update_leaves_messages_alone() -> None:
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


# ---- messages that are not this step's -----------------------------------------------------------------------


@pytest.mark.parametrize("set_to_none", [True, False])
def test_messages_cleared_by_somebody_else_are_not_remembered(set_to_none: bool) -> None:
    x, y = normal(5, 3), normal(5, 2, seed=1)
    outcomes = []
    for distracted in (False, True):
        net = fully_connected()
        posterior = tagi.Update(net)
        if distracted:
            for _ in range(3):
                tagi.Regression(0.1)(net(x), 10 * y).backward()
                net.zero_grad(set_to_none=set_to_none)
        tagi.Regression(0.5)(net(x), y).backward()
        posterior.step()
        outcomes.append((posterior.report, snapshot(net)))
    assert outcomes[0][0] == outcomes[1][0]
    assert_same(outcomes[0][1], outcomes[1][1])


def test_inference_through_a_frozen_network_leaves_nothing_behind() -> None:
    net = fully_connected().requires_grad_(False)
    posterior = tagi.Update(net)
    z = tagi.Gaussian(normal(5, 3), torch.ones(5, 3).double()).requires_grad_()
    tagi.Regression(0.5)(net(z), normal(5, 2)).backward()
    assert not torch.equal(z.posterior().mean, z.mean)
    assert posterior.record.entries == []


@pytest.mark.parametrize("rule", RULES)
def test_parameters_that_were_replaced_are_learned(rule: str) -> None:
    """The update reads the network's tensors, whichever they are."""
    net, reference = fully_connected(), fully_connected()
    posterior = tagi.Update(net, rule)
    net.load_state_dict({key: value.clone() for key, value in net.state_dict().items()}, assign=True)
    net.requires_grad_()
    before = snapshot(net)
    tagi.Regression(0.5)(net(normal(5, 3)), normal(5, 2)).backward()
    posterior.step()
    posterior.zero_grad()
    assert all(parameter.grad is None for parameter in net.parameters())
    condition(reference, rule, normal(5, 3), normal(5, 2), 0.5)
    assert_same(snapshot(reference), snapshot(net))
    assert_moved(before, snapshot(net))
