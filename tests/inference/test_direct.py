"""A step without autograd against the same step with it: posteriors, noises and reports are equal to the bit."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from small_nets import update_of
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

import torchtagi as tagi
from cases import CASES, Case
from torchtagi.experiments import networks as models
from torchtagi.inference import direct
from torchtagi.inference.direct import joins

RULES = ("paper", "capped", "coherent")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each step since, whether it was made without autograd."""
    steps: list[bool] = []
    learn_directly = direct.learn_directly

    def noted(*args: Any) -> Tensor | None:
        loss = learn_directly(*args)
        steps.append(loss is not None)
        return loss

    monkeypatch.setattr(direct, "learn_directly", noted)
    return steps


@contextmanager
def autograd_only() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "learn_directly", lambda *args: None)
        yield


def state(*modules: nn.Module) -> list[Tensor]:
    return [value.clone() for module in modules for value in module.state_dict().values()]


def mlp(kind: type[nn.Sequential] = tagi.nn.Sequential, inputs: int = 5, outputs: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return kind(tagi.nn.Linear(inputs, 7), tagi.nn.ReLU(), tagi.nn.Linear(7, outputs))


def assert_same_learning(
    net: nn.Module,
    likelihood: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    chunk: int = 16,
    steps: int = 3,
    update: Callable[[nn.Module], tagi.Update] = tagi.Update,
) -> None:
    """Some steps of two copies, one of them by autograd."""
    outcomes = []
    for context in (nullcontext(), autograd_only()):
        torch.manual_seed(4)
        own_net, own_likelihood = copy.deepcopy(net), copy.deepcopy(likelihood)
        posterior = update(own_net)
        with context:
            losses = [tagi.condition(own_net, own_likelihood, posterior, x, y, chunk=chunk) for _ in range(steps)]
        assert all(parameter.grad is None for parameter in own_net.parameters())
        outcomes.append((state(own_net, own_likelihood), losses, posterior.report))
    (one, losses, report), (other, expected, expected_report) = outcomes
    assert any(not torch.equal(a, b) for a, b in zip(one, state(net, likelihood), strict=True)), "it learned"
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert losses == expected
    assert report == expected_report


# ---- equal to the bit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.id)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "last"])
def test_every_layer(case: Case, layout: torch.memory_format, taken: list[bool]) -> None:
    """Behind an affine layer, so that its input has a variance, and messages pass through it."""
    torch.manual_seed(1)
    images = len(case.shape) == 4
    if layout == torch.channels_last and not images:
        pytest.skip("a layout of images")
    first = (
        tagi.nn.Conv2d(case.shape[1], case.shape[1], 1)
        if images
        else tagi.nn.Linear(case.shape[-1], case.shape[-1])
    )
    net = tagi.nn.Sequential(first, case.layer(torch.float32))
    x = torch.randn(case.shape)
    if images:
        net, x = net.to(memory_format=layout), x.contiguous(memory_format=layout)
    with torch.no_grad():
        y = net(x).mean + 0.1
    assert_same_learning(net, tagi.Regression(0.5), x, y)
    assert taken == [joins(net[1])] * 3


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", [tagi.nn.Sequential, nn.Sequential])
def test_every_rule(rule: str, kind: type[nn.Sequential], taken: list[bool]) -> None:
    net, x, y = mlp(kind), torch.randn(40, 5), torch.randn(40, 3)
    assert_same_learning(net, tagi.Regression(0.1), x, y, update=lambda net: tagi.Update(net, rule))
    assert taken == [True] * 9, "three steps of three chunks"
    assert_same_learning(net, tagi.Regression(1e-3), x[:1], y[:1], update=lambda net: tagi.Update(net, rule))


def labels(classes: int, n: int = 20) -> Tensor:
    return torch.randint(classes, (n,), generator=torch.Generator().manual_seed(2))


def targets(missing: bool = False, n: int = 20) -> Tensor:
    y = torch.randn(n, 2, generator=torch.Generator().manual_seed(2))
    return torch.where(y > 1, torch.nan, y) if missing else y


LIKELIHOODS: dict[str, tuple[Callable[[], nn.Module], int, Tensor]] = {
    "regression": (lambda: tagi.Regression(0.3), 2, targets()),
    "targets in float64": (lambda: tagi.Regression(0.3), 2, targets().double() / 3),
    "one noise each": (lambda: tagi.Regression([0.3, 0.5]), 2, targets()),
    "learned noise": (lambda: tagi.Regression(0.01, learn_noise=True), 2, targets()),
    "missing targets": (lambda: tagi.Regression(0.1, learn_noise=True), 2, targets(missing=True)),
    "binary": (lambda: tagi.Binary(0.5), 2, targets().sign()),
    "binary, learned": (lambda: tagi.Binary(0.1, learn_noise=True), 2, targets().sign()),
    "classes": (lambda: tagi.HierarchicalClassification(10), 11, labels(10)),
    "classes, learned": (lambda: tagi.HierarchicalClassification(3, 0.01, learn_noise=True), 3, labels(3)),
    "predicted noise": (tagi.HeteroscedasticRegression, 4, targets()),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood(name: str, rule: str, taken: list[bool]) -> None:
    build, outputs, y = LIKELIHOODS[name]
    torch.manual_seed(0)
    net = mlp(outputs=outputs)
    if name == "predicted noise":
        net.append(tagi.nn.EvenExp())
    x = torch.randn(20, 5)
    assert_same_learning(net, build(), x, y, chunk=8, update=lambda net: tagi.Update(net, rule))
    assert taken == [True] * 9


@pytest.mark.parametrize("rule", RULES)
def test_uncertain_inputs(rule: str, taken: list[bool]) -> None:
    x = tagi.Gaussian(torch.randn(20, 5), torch.rand(20, 5))
    net, y = mlp(), torch.randn(20, 3)
    assert_same_learning(net, tagi.Regression(0.3), x, y, chunk=8, update=lambda net: tagi.Update(net, rule))
    assert taken == [True] * 9
    certain, uncertain = mlp(), mlp()
    for one, inputs in ((certain, x.mean), (uncertain, x)):
        tagi.condition(one, tagi.Regression(0.3), tagi.Update(one, rule), inputs, y)
    assert not torch.equal(certain[0].weight.mean, uncertain[0].weight.mean), "the variance counts"


@pytest.mark.parametrize("of_images", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("of_weights", [torch.contiguous_format, torch.channels_last])
def test_a_convolutional_network(
    of_weights: torch.memory_format, of_images: torch.memory_format, taken: list[bool]
) -> None:
    """Images may bring their layout to the messages on the weights."""
    torch.manual_seed(0)
    net = models.cifar_3conv().to(memory_format=of_weights)
    x = torch.randn(4, 3, 32, 32).contiguous(memory_format=of_images)
    assert_same_learning(net, tagi.HierarchicalClassification(10), x, labels(10, 4))
    assert all(taken)


@pytest.mark.parametrize("rule", RULES)
def test_frozen_parts_and_shared_layers(rule: str, taken: list[bool]) -> None:
    x, y = torch.randn(12, 5), torch.randn(12, 3)
    net = mlp()
    net[0].requires_grad_(False)
    assert_same_learning(net, tagi.Regression(0.1), x, y, update=lambda net: tagi.Update(net, rule))
    net = mlp()
    net[2].bias.requires_grad_(False)
    assert_same_learning(net, tagi.Regression(0.1), x, y, update=lambda net: tagi.Update(net, rule))
    assert_same_learning(
        *(mlp(), tagi.Regression(0.1), x, y),
        update=lambda net: update_of(net, rule, lr=0.5, gain_bound=0.0),
    )
    assert_same_learning(
        *(mlp(), tagi.Regression(0.1), x, y),
        update=lambda net: tagi.Update(net[0], rule, outputs=net, frozen=[net[2]]),
    )
    torch.manual_seed(0)
    shared = tagi.nn.Linear(5, 5)
    net = tagi.nn.Sequential(shared, tagi.nn.Tanh(), shared, tagi.nn.Tanh(), shared)
    assert_same_learning(net, tagi.Regression(0.1), x, torch.randn(12, 5))
    assert all(taken)


# ---- where somebody else takes part, the step is autograd's --------------------------------------------------


class Twice(tagi.Regression):
    def forward(self, z: tagi.Gaussian, y: Tensor) -> Tensor:
        return super().forward(z, y) + super().forward(z, y)


class Shifted(tagi.nn.Sequential):
    def forward(self, x: Any) -> Any:
        return super().forward(x) + 1.0


class Plain(nn.Module):
    """A likelihood of a user's own."""

    def forward(self, z: tagi.Gaussian, y: Tensor) -> Tensor:
        return tagi.Regression(0.2)(z, y)


class CertainMoments(torch.autograd.Function):
    """w a, whose variance is left out."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor | None, weight: Tensor) -> tuple[Tensor, None]:
        ctx.save_for_backward(mean, weight)
        return mean * weight, None

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: None) -> tuple[Tensor | None, ...]:
        mean, weight = ctx.saved_tensors
        return dmean * weight, None, (dmean * mean).sum(0)


class Certain(tagi.nn.Linear):
    function = CertainMoments

    def operands(self) -> tuple[Any, ...]:
        return (self.bias.mean,)


class Scaled(tagi.nn.Linear):
    """Its operands are not the parameters themselves."""

    def operands(self) -> tuple[Any, ...]:
        product, *tensors = super().operands()
        return product, *(2 * tensor for tensor in tensors)


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return build()


Setting = tuple[nn.Module, nn.Module, tagi.Update, AbstractContextManager[Any]]


def plain(
    net: nn.Module | None = None, likelihood: nn.Module | None = None, part: nn.Module | None = None
) -> Setting:
    net = mlp() if net is None else net
    update = tagi.Update(net if part is None else part, outputs=net)
    return net, likelihood or tagi.Regression(0.1), update, nullcontext()


def changed(change: Callable[[Any, Any, Any], Any]) -> Setting:
    """Something done to a plain network, its likelihood or its update; what it returns stays alive."""
    net, likelihood, posterior, context = plain()
    likelihood.kept = [change(net, likelihood, posterior)]
    return net, likelihood, posterior, context


@contextmanager
def hooked(handle: Any) -> Iterator[None]:
    yield
    handle.remove()


def normed() -> nn.Module:
    return tagi.nn.Sequential(*mlp(), tagi.nn.LayerNorm(3))


def halve(parameter: Tensor) -> None:
    parameter.grad *= 0.5


def instance_forward(net: Any, likelihood: nn.Module, posterior: tagi.Update) -> None:
    net.forward = lambda x: tagi.nn.Sequential.forward(net, 2 * x)


OTHERS: dict[str, Callable[[], Setting]] = {
    "a layer that is not one Function": lambda: plain(normed()),
    "a network of another class": lambda: plain(mlp()[2]),
    "a nested network": lambda: plain(tagi.nn.Sequential(mlp())),
    "a forward of its own": lambda: plain(Shifted(*mlp())),
    "a forward set on the network": lambda: changed(instance_forward),
    "a likelihood with a forward of its own": lambda: plain(likelihood=Twice(0.1)),
    "a likelihood of a user's own": lambda: plain(likelihood=Plain()),
    "a hook on a layer": lambda: changed(lambda net, *_: net[1].register_forward_hook(lambda *_: None)),
    "a hook on the network": lambda: changed(lambda net, *_: net.register_forward_hook(lambda *_: None)),
    "a hook before it": lambda: changed(lambda net, *_: net.register_forward_pre_hook(lambda *_: None)),
    "a hook on the likelihood": lambda: changed(lambda _, likelihood, __: likelihood.register_forward_hook(print)),
    "a hook on a parameter": lambda: changed(lambda net, *_: net[0].weight.mean.register_hook(lambda g: 0.5 * g)),
    "a hook on its message": lambda: changed(
        lambda net, *_: net[0].bias.var.register_post_accumulate_grad_hook(halve)
    ),
    "a hook on the update": lambda: changed(
        lambda net, _, posterior: posterior.register_step_pre_hook(lambda *_: halve(net[0].bias.mean))
    ),
    "a hook on all updates": lambda: (*plain()[:3], hooked(register_optimizer_step_pre_hook(lambda *_: None))),
    "a hook on all modules": lambda: (
        *plain()[:3],
        hooked(nn.modules.module.register_module_forward_hook(lambda *_: None)),
    ),
    "a second update": lambda: changed(lambda net, *_: tagi.Update(net)),
    "parameters that are not the update's": lambda: plain(net := mlp(), part=net[0]),
    "operands that are computed": lambda: plain(seeded(lambda: tagi.nn.Sequential(Scaled(5, 3)))),
    "an output without variance": lambda: plain(seeded(lambda: nn.Sequential(tagi.nn.Linear(3, 3), Certain(3, 3)))),
    "lower precision": lambda: (*plain(mlp()[:1])[:3], torch.autocast("cpu", torch.bfloat16)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_autograd_where_somebody_else_takes_part(name: str, taken: list[bool]) -> None:
    outcomes = []
    for by_hand in (False, True):
        net, likelihood, posterior, context = OTHERS[name]()
        before = state(net)
        torch.manual_seed(3)
        width = next(net.parameters()).shape
        x = torch.randn(4, width[1])
        with context:
            y = torch.randn(4, 3) if name != "lower precision" else torch.randn(4, width[0]).bfloat16()
            if by_hand:
                likelihood(net(x), y).backward()
                posterior.step()
            else:
                tagi.condition(net, likelihood, posterior, x, y)
        outcomes.append(state(net))
    assert taken == [False]
    assert any(not torch.equal(a, b) for a, b in zip(before, outcomes[0], strict=True)), "it learned"
    assert all(torch.equal(a, b) for a, b in zip(*outcomes, strict=True))


def test_messages_that_processes_share_are_autograds() -> None:
    net, likelihood, posterior, _ = plain()
    x = tagi.Gaussian(torch.randn(4, 5))
    assert direct.is_alone(net, likelihood, posterior, x)
    posterior.process_group = object()
    assert not direct.is_alone(net, likelihood, posterior, x)


def test_an_input_that_requires_a_gradient_gets_it(taken: list[bool]) -> None:
    net, likelihood, posterior, _ = plain()
    x = torch.randn(4, 5, requires_grad=True)
    tagi.condition(net, likelihood, posterior, x, torch.randn(4, 3))
    assert taken == [False]
    assert x.grad is not None
    asked = tagi.Gaussian(torch.randn(4, 5), torch.rand(4, 5)).requires_grad_()
    tagi.condition(net, likelihood, posterior, asked, torch.randn(4, 3))
    assert taken == [False, False]
    assert asked.var.grad is not None


def test_updates_that_are_gone_or_elsewhere_do_not_count(taken: list[bool]) -> None:
    net, likelihood, posterior, _ = plain()
    discarded = tagi.Update(net)
    del discarded
    twin = copy.deepcopy(net)  # holds what is left of its hooks
    x, y = torch.randn(4, 5), torch.randn(4, 3)
    tagi.condition(net, likelihood, posterior, x, y)
    tagi.condition(twin, likelihood, tagi.Update(twin), x, y)
    assert taken == [True, True]
    assert all(torch.equal(a, b) for a, b in zip(state(net), state(twin), strict=True))


# ---- errors change nothing -----------------------------------------------------------------------------------


def refused(net: nn.Module, y: Tensor, error: type[Exception], match: str, x: Tensor | None = None) -> None:
    likelihood, posterior = tagi.Regression(0.1, learn_noise=True), tagi.Update(net)
    before = state(net)
    x = torch.randn(4, 5) if x is None else x
    with pytest.raises(error, match=match):
        tagi.condition(net, likelihood, posterior, x, y)
    assert all(torch.equal(a, b) for a, b in zip(before, state(net), strict=True))
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not posterior.record.entries


@pytest.mark.parametrize("by_autograd", [False, True])
def test_errors_change_nothing_and_leave_no_message(by_autograd: bool) -> None:
    with autograd_only() if by_autograd else nullcontext():
        refused(mlp(), torch.randn(4, 2), ValueError, "outputs' shape")
        refused(mlp(), torch.full((4, 3), float("inf")), ValueError, "must be finite")
        refused(mlp(), torch.full((4, 3), 1e30), FloatingPointError, "no parameter was changed")
        refused(mlp(inputs=4), torch.randn(4, 3), ValueError, "4 features")
        refused(mlp(), torch.randn(4, 3), TypeError, "float64", torch.randn(4, 5).double())
        frozen = mlp()
        frozen.requires_grad_(False)
        refused(frozen, torch.randn(4, 3), RuntimeError, "all parameters of this update have requires_grad=False")
        with torch.no_grad():
            refused(mlp(), torch.randn(4, 3), RuntimeError, "does not require grad")


# ---- what stays behind ---------------------------------------------------------------------------------------


def test_autograd_can_go_on_where_a_direct_step_ended(taken: list[bool]) -> None:
    net = mlp()
    likelihood, posterior = tagi.Regression(0.01, learn_noise=True), tagi.Update(net)
    x, y = torch.randn(4, 5), torch.randn(4, 3)
    stale = likelihood(net(x), y)
    tagi.condition(net, likelihood, posterior, x, y)
    assert taken == [True]
    for tensor in (*net.parameters(), *likelihood.buffers()):
        assert not tensor.is_inference()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()
    posterior.zero_grad()
    likelihood(net(x), y).backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    posterior.step()


@pytest.mark.parametrize("by_autograd", [False, True])
def test_before_sees_what_the_network_said_first(by_autograd: bool) -> None:
    net = mlp()
    x, y = torch.randn(6, 5), torch.randn(6, 3)
    with torch.no_grad():
        expected = net(x[:4])
    seen: list[tuple[Tensor, tagi.Gaussian, Tensor]] = []
    learned: list[list[Tensor]] = []
    with autograd_only() if by_autograd else nullcontext():
        posterior = tagi.Update(net)
        tagi.condition(
            *(net, tagi.Regression(0.1), posterior, x, y, 4),
            before=lambda inputs, z, targets: seen.append((inputs, z, targets)),
            after=lambda: learned.append(state(net)),
        )
    (first_x, first, first_y), (second_x, second, second_y) = seen
    assert torch.equal(first.mean, expected.mean)
    assert torch.equal(first.var, expected.var)
    assert torch.equal(first_y, y[:4])
    assert torch.equal(second_y, y[4:])
    assert len(second) == 2
    assert isinstance(first_x, Tensor), "inputs as they were given"
    assert torch.equal(first_x, x[:4])
    assert torch.equal(second_x, x[4:])
    assert len(learned) == 2
    assert not torch.equal(learned[0][0], learned[1][0]), "after() is called when a chunk has been learned"
