"""Mistakes in a user's loop are refused, with the remedy in the message; correct loops are not."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_nets import assert_moved, assert_same, assert_states_close, fully_connected, normal, snapshot
from torch import Tensor, nn

import torchtagi as tagi

X, Y = normal(6, 3), normal(6, 2, seed=1)


class Loop:
    """A network, its likelihood and its update; `learn` is one correct step."""

    def __init__(self, net: nn.Module | None = None, part: nn.Module | None = None) -> None:
        self.net = fully_connected() if net is None else net
        self.likelihood = tagi.Regression(0.5).double()
        self.update = tagi.Update(self.net if part is None else part, outputs=self.net)

    def loss(self, x: Tensor = X, y: Tensor = Y) -> Tensor:
        return self.likelihood(self.net(x), y)

    def learn(self, x: Tensor = X, y: Tensor = Y) -> None:
        self.loss(x, y).backward()
        self.update.step()
        self.update.zero_grad()


# ---- refused -------------------------------------------------------------------------------------------------

# A mistake does what is still right about it and returns the call that is to be refused.
Refused = Callable[[], Any]


def scaled(factor: float) -> Callable[[Loop], Refused]:
    return lambda loop: (factor * loop.loss()).backward


def mean_over_the_batch(loop: Loop) -> Refused:
    return (loop.loss() / len(X)).backward


def average_of_two(loop: Loop) -> Refused:
    return ((loop.loss() + loop.loss()) / 2).backward


def grad_scaler(loop: Loop) -> Refused:
    return torch.amp.GradScaler("cpu").scale(loop.loss()).backward


def scaled_for_an_ordinary_trunk(loop: Loop) -> Refused:
    return (0.5 * loop.loss(nn.Linear(3, 3).double()(X))).backward


def no_zero_grad(loop: Loop) -> Refused:
    loop.loss().backward()
    loop.update.step()
    return loop.loss().backward


def zero_grad_of_the_trunk_alone(loop: Loop) -> Refused:
    trunk = nn.Linear(3, 3).double()
    adam = torch.optim.Adam(trunk.parameters())
    loop.loss(trunk(X)).backward()
    adam.step()
    loop.update.step()
    adam.zero_grad()
    return loop.loss(trunk(X)).backward


def two_updates(loop: Loop, part: nn.Module | None = None) -> Refused:
    loop.learn()
    other = Loop(loop.net, part)
    other.loss().backward()
    return other.update.step


def two_updates_that_share_a_part(loop: Loop) -> Refused:
    return two_updates(loop, loop.net[2])


def no_backward(loop: Loop) -> Refused:
    loop.loss()
    return loop.update.step


def a_second_step(loop: Loop) -> Refused:
    loop.learn()
    return loop.update.step


def update_of_another_copy(loop: Loop) -> Refused:
    loop.likelihood(copy.deepcopy(loop.net)(X), Y).backward()
    return loop.update.step


def everything_frozen(loop: Loop) -> Refused:
    loop.net.requires_grad_(False)
    loop.loss(X.clone().requires_grad_()).backward()
    return loop.update.step


def a_part_called_in_place_of_the_network(loop: Loop) -> Refused:
    loop.likelihood(loop.net[2](loop.net[1](loop.net[0](X))), Y).backward()
    return loop.update.step


def with_optimizer(kind: type[torch.optim.Optimizer], **options: Any) -> Callable[[Loop], Refused]:
    def mistake(loop: Loop) -> Refused:
        optimizer = kind(loop.net.parameters(), **options)
        loop.loss().backward()
        return optimizer.step

    return mistake


def adam_made_before_the_update(loop: Loop) -> Refused:
    adam = torch.optim.Adam(loop.net.parameters())
    loop.update = tagi.Update(loop.net)
    loop.loss().backward()
    return adam.step


def adam_on_trunk_and_head(loop: Loop) -> Refused:
    trunk = nn.Linear(3, 3).double()
    adam = torch.optim.Adam([*trunk.parameters(), *loop.net.parameters()])
    loop.loss(trunk(X)).backward()
    return adam.step


def lr_set_later(lr: float) -> Callable[[Loop], Refused]:
    def mistake(loop: Loop) -> Refused:
        loop.update.param_groups[0]["lr"] = lr
        loop.loss().backward()
        return loop.update.step

    return mistake


WEIGHT = (
    r"multiplied by {} before backward\(\).*call backward\(\) on the loss itself, or on a sum of losses.*noise_std"
)
UNCLEARED = r"messages of the last step are still there.*call zero_grad\(\) after step\(\)"
TWO = r"two Updates write the same parameters.*make one Update for a network and keep it; del the other"
OTHERS = r"{} was given Gaussian parameters.*give it tagi\.ordinary_parameters\(net\) alone"
NONE = r"found no messages: call backward\(\) on the loss first"
LR = r"lr, the fraction of the messages applied, must be finite and not negative, got {}"

MISTAKES: dict[str, tuple[Callable[[Loop], Refused], type[Exception], str]] = {
    "a loss times two": (scaled(2.0), RuntimeError, WEIGHT.format(2)),
    "a negated loss": (scaled(-1.0), RuntimeError, WEIGHT.format(-1)),
    "a loss times zero": (scaled(0.0), RuntimeError, WEIGHT.format(0)),
    "a mean over the batch": (mean_over_the_batch, RuntimeError, WEIGHT.format(r"0\.166667")),
    "an average of two losses": (average_of_two, RuntimeError, WEIGHT.format(r"0\.5")),
    "a GradScaler": (grad_scaler, RuntimeError, "no GradScaler is needed"),
    "a scaled loss behind a trunk": (scaled_for_an_ordinary_trunk, RuntimeError, WEIGHT.format(r"0\.5")),
    "no zero_grad": (no_zero_grad, RuntimeError, UNCLEARED),
    "zero_grad of the trunk alone": (zero_grad_of_the_trunk_alone, RuntimeError, UNCLEARED),
    "two updates": (two_updates, RuntimeError, TWO),
    "two updates that share a part": (two_updates_that_share_a_part, RuntimeError, TWO),
    "no backward": (no_backward, RuntimeError, NONE),
    "a second step": (a_second_step, RuntimeError, NONE),
    "an update of another copy": (
        update_of_another_copy,
        RuntimeError,
        "a copy of a network needs an Update of its own, and the loss must come from the network that was given",
    ),
    "everything frozen": (
        everything_frozen,
        RuntimeError,
        "all parameters of this update have requires_grad=False",
    ),
    "a part called in place of the network": (
        a_part_called_in_place_of_the_network,
        RuntimeError,
        r"none came through the output of the module given to Update: call that module itself.*outputs=",
    ),
    "Adam": (with_optimizer(torch.optim.Adam), RuntimeError, OTHERS.format("Adam")),
    "SGD": (with_optimizer(torch.optim.SGD, lr=0.1), RuntimeError, OTHERS.format("SGD")),
    "Adam made before the update": (adam_made_before_the_update, RuntimeError, OTHERS.format("Adam")),
    "Adam on trunk and head": (adam_on_trunk_and_head, RuntimeError, OTHERS.format("Adam")),
    **{
        f"an lr of {lr} set later": (lr_set_later(lr), ValueError, LR.format(lr))
        for lr in (-0.1, math.nan, math.inf, -math.inf)
    },
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_refused_and_the_loop_can_go_on(name: str) -> None:
    """The refused call writes nothing, and a correct step afterwards is that of a loop without a mistake."""
    mistake, error, remedy = MISTAKES[name]
    loop = Loop()
    refused = mistake(loop)
    before = snapshot(loop.net)
    with pytest.raises(error, match=remedy):
        refused()
    assert_same(before, snapshot(loop.net))
    loop.net.requires_grad_()
    loop.update.zero_grad()
    loop.update.param_groups[0]["lr"] = 1.0
    other = Loop(copy.deepcopy(loop.net))
    for one in (loop, other):
        one.learn()
    assert_same(snapshot(other.net), snapshot(loop.net))
    assert_moved(before, snapshot(loop.net))


def test_a_refused_update_has_written_nothing() -> None:
    """Neither the part that is another update's, nor the part that would have been free."""
    net = fully_connected()
    head = Loop(net, net[2])
    head.learn()
    net.zero_grad()
    whole = Loop(net)
    whole.loss().backward()
    with pytest.raises(RuntimeError, match=TWO):
        whole.update.step()
    assert net[2].weight.learned
    assert not net[0].weight.learned
    whole.update.zero_grad()
    body = Loop(net, net[0])
    body.learn()
    assert net[0].weight.learned


@pytest.mark.parametrize("lr", [-0.5, math.nan, math.inf, -math.inf])
def test_an_lr_that_is_no_fraction_is_refused_at_once(lr: float) -> None:
    with pytest.raises(ValueError, match=LR.format(lr)):
        tagi.Update(fully_connected(), lr=lr)


@pytest.mark.parametrize("given", [lambda net: net.parameters(), lambda net: list(net.parameters())])
def test_parameters_in_place_of_the_network_are_refused(given: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(TypeError, match=r"Update takes the network, Update\(net\), not its parameters"):
        tagi.Update(given(fully_connected()))


def test_parameters_cannot_be_added_later() -> None:
    update, other = tagi.Update(fully_connected()), fully_connected()
    with pytest.raises(TypeError, match="make an Update for the other one"):
        update.add_param_group({"params": list(other.parameters())})


@pytest.mark.parametrize("shape", [(6,), (6, 1), (1, 2), (2,), (6, 2, 1)])
def test_log_prob_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    """It would broadcast, and count observations that nobody made."""
    z = tagi.Gaussian(X[:, :2], torch.ones(6, 2).double())
    with pytest.raises(ValueError, match=r"the units' shape \(6, 2\), got \(" + ", ".join(map(str, shape))):
        z.log_prob(torch.zeros(shape).double())


# ---- not refused ---------------------------------------------------------------------------------------------


def test_micro_batches_accumulate() -> None:
    loop, whole = Loop(), Loop()
    for _ in range(3):
        for part in range(3):
            loop.loss(X[2 * part : 2 * part + 2], Y[2 * part : 2 * part + 2]).backward()
        loop.update.step()
        loop.update.zero_grad()
        whole.learn()
    assert_states_close(snapshot(loop.net), snapshot(whole.net), 1e-9)


def clear_by_update(loop: Loop) -> None:
    loop.update.zero_grad()


def clear_to_zero(loop: Loop) -> None:
    loop.update.zero_grad(set_to_none=False)


def clear_by_network(loop: Loop) -> None:
    loop.net.zero_grad()


def clear_network_to_zero(loop: Loop) -> None:
    loop.net.zero_grad(set_to_none=False)


@pytest.mark.parametrize("first", [False, True], ids=["after the step", "before the pass"])
@pytest.mark.parametrize("clear", [clear_by_update, clear_to_zero, clear_by_network, clear_network_to_zero])
def test_every_way_to_clear_the_messages(clear: Callable[[Loop], None], first: bool) -> None:
    loop, reference = Loop(), Loop()
    for _ in range(3):
        if first:
            clear(loop)
        loop.loss().backward()
        loop.update.step()
        if not first:
            clear(loop)
        reference.learn()
    assert_same(snapshot(reference.net), snapshot(loop.net))
    assert loop.update.report == reference.update.report


@pytest.mark.parametrize("quietly", [False, True], ids=["with autograd", "no_grad"])
def test_passes_between_a_step_and_zero_grad(quietly: bool) -> None:
    """Looking at a prediction, its log-probability or the gradient of an input is no learning."""
    loop, reference = Loop(), Loop()
    for _ in range(3):
        loop.loss().backward()
        loop.update.step()
        with torch.set_grad_enabled(not quietly):
            z = loop.net(X)
            loop.likelihood.predict(z)
            loop.likelihood.log_prob(z, Y)
            loop.loss()
        if not quietly:
            x = X.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loop.loss(x), x)
            assert gradient.any()
        loop.update.zero_grad()
        reference.learn()
    assert_same(snapshot(reference.net), snapshot(loop.net))


def test_a_loss_beside_other_terms_and_a_sum_of_losses() -> None:
    """An ordinary penalty may have any weight."""
    trunk = nn.Linear(3, 3).double()
    loop = Loop()
    for _ in range(2):
        (loop.loss(trunk(X)) + loop.loss(X) + 0.01 * trunk.weight.square().sum()).backward()
        loop.update.step()
        loop.update.zero_grad()
    assert trunk.weight.grad.any()


@pytest.mark.parametrize("scheduled", [False, True], ids=["alone", "with a scheduler"])
def test_a_new_update_after_the_old_one_is_gone(scheduled: bool) -> None:
    """Without waiting for the garbage collector."""
    net = fully_connected()
    gc.disable()
    try:
        for _ in range(3):
            loop = Loop(net)
            if scheduled:
                scheduler = torch.optim.lr_scheduler.StepLR(loop.update, 1, 1.0)
            before = snapshot(net)
            loop.learn()
            if scheduled:
                scheduler.step()
                del scheduler
            assert_moved(before, snapshot(net))
            del loop
    finally:
        gc.enable()


def test_an_update_replaced_under_its_own_name() -> None:
    loop = Loop()
    loop.learn()
    loop.update = tagi.Update(loop.net, "paper")
    before = snapshot(loop.net)
    loop.learn()
    assert_moved(before, snapshot(loop.net))


def test_a_second_update_that_never_steps() -> None:
    loop = Loop()
    idle = tagi.Update(loop.net)
    loop.learn()
    loop.learn()
    assert not idle.report


def test_two_updates_of_different_parts() -> None:
    net = fully_connected()
    body, head = (tagi.Update(part, outputs=net) for part in (net[0], net[2]))
    likelihood = tagi.Regression(0.5).double()
    for _ in range(2):
        before = snapshot(net)
        likelihood(net(X), Y).backward()
        for update in (body, head):
            update.step()
            update.zero_grad()
        assert_moved(before, snapshot(net))


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "torch.save"])
@pytest.mark.parametrize("kept", [False, True], ids=["update gone", "update kept"])
def test_a_copy_of_a_trained_network_is_trained_by_its_own_update(way: str, kept: bool, tmp_path: Path) -> None:
    loop = Loop()
    loop.learn()
    if way == "deepcopy":
        twin = copy.deepcopy(loop.net)
    elif way == "pickle":
        twin = pickle.loads(pickle.dumps(loop.net))
    else:
        torch.save(loop.net, tmp_path / "net.pt")
        twin = torch.load(tmp_path / "net.pt", weights_only=False)
    if not kept:
        loop.update = None
        gc.collect()
        loop.update = tagi.Update(loop.net)
    other = Loop(twin)
    for one in (loop, other, loop, other):
        one.learn()
    assert_same(snapshot(loop.net), snapshot(twin))


def test_adam_on_the_ordinary_parameters_beside_an_update() -> None:
    """They are all but the Gaussian ones, each once; both learn."""
    torch.manual_seed(0)
    shared = nn.Linear(3, 3)
    trunk = nn.Sequential(shared, nn.BatchNorm1d(3), nn.Tanh(), shared)
    net = nn.Sequential(trunk, *fully_connected()).double()
    ordinary = tagi.ordinary_parameters(net)
    assert list(map(id, ordinary)) == list(map(id, trunk.parameters()))
    loop = Loop(net)
    adam = torch.optim.Adam(ordinary, 0.01)
    before, start = {key: value.detach().clone() for key, value in net.named_parameters()}, loop.loss().item()
    for _ in range(20):
        loop.loss().backward()
        adam.step()
        loop.update.step()
        adam.zero_grad()
        loop.update.zero_grad()
    assert_moved(before, dict(net.named_parameters()))
    assert loop.loss().item() < start


def test_an_ordinary_optimizer_of_another_network() -> None:
    loop, ordinary = Loop(), nn.Linear(3, 2).double()
    sgd = torch.optim.SGD(ordinary.parameters(), 0.1)
    before = ordinary.weight.detach().clone()
    loop.learn()
    (ordinary(X) - Y).square().mean().backward()
    sgd.step()
    assert not torch.equal(ordinary.weight, before), "its step is not refused"


# ---- hooks ---------------------------------------------------------------------------------------------------


def test_no_hook_is_left_by_updates_that_are_gone() -> None:
    net = fully_connected()
    for _ in range(1000):
        tagi.Update(net)
    gc.collect()
    assert not net._forward_hooks
    for _ in range(3):
        Loop(net).learn()
    gc.collect()
    assert not net._forward_hooks
    kept = tagi.Update(net)
    gc.collect()
    assert len(net._forward_hooks) == 1
    del kept
    gc.collect()
    assert not net._forward_hooks


def test_no_hook_is_left_on_a_module_named_as_output() -> None:
    net = fully_connected()
    update = tagi.Update(net, outputs=net[2])
    assert len(net[2]._forward_hooks) == 1
    del update
    gc.collect()
    assert not net[2]._forward_hooks
    assert not net._forward_hooks


def test_a_network_that_is_gone_takes_nothing_with_it() -> None:
    """The update outlives it, and is discarded after it."""
    loop = Loop()
    update = loop.update
    gone = weakref.ref(update)
    loop.learn()
    del loop
    gc.collect()
    del update
    gc.collect()
    assert gone() is None
