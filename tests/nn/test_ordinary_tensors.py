"""Ordinary tensors in front of Gaussian layers: they get the gradient of the loss, the one found numerically.

Oracle 7, for every layer of the registry and for small networks. The gradient has two paths, through the means and
through the variances; the messages that Gaussian parameters get know nothing of the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtagi as tagi
from cases import CASES, FUNCTIONS, Case
from oracles import numerical_gradient
from torchtagi import Gaussian
from torchtagi import nn as tnn

EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
NOISE_STD = 0.8


def observed(net: Callable[[Any], Gaussian], x: Any) -> Callable[[], Tensor]:
    """The loss of fixed targets near the outputs at x; x is read at each call."""
    with torch.no_grad():
        mean = net(x() if callable(x) else x).mean
    noise = torch.randn(mean.shape, generator=torch.Generator().manual_seed(11), dtype=mean.dtype)
    target, likelihood = mean + noise, tagi.Regression(NOISE_STD).double()
    return lambda: likelihood(net(x() if callable(x) else x), target)


def assert_exact_gradients(loss: Callable[[], Tensor], *leaves: Tensor) -> None:
    """Each leaf's gradient after `loss().backward()` is the numerical one, and is not zero everywhere."""
    for leaf in leaves:
        leaf.requires_grad_()
        leaf.grad = None
    loss().backward()
    for leaf in leaves:
        assert leaf.grad is not None, "an ordinary tensor got no gradient"
        expected = numerical_gradient(lambda: loss().item(), leaf)
        assert expected.any(), "the example shows nothing"
        torch.testing.assert_close(leaf.grad, expected, rtol=1e-7, atol=1e-9)


def weights_in_front(case: Case) -> nn.Module:
    """An affine layer that keeps the shape: behind it a certain input is uncertain."""
    torch.manual_seed(1)
    if len(case.shape) == 4:
        return tnn.Conv2d(case.shape[1], case.shape[1], 1, dtype=torch.float64)
    return tnn.Linear(case.shape[-1], case.shape[-1], dtype=torch.float64)


# ---- every layer ---------------------------------------------------------------------------------------------


@EVERY_CASE
def test_a_tensor_in_front_of_a_layer(case: Case) -> None:
    x = case.input().mean
    assert_exact_gradients(observed(case.layer(), x), x)


@EVERY_CASE
def test_a_tensor_in_front_of_weights_and_a_layer(case: Case) -> None:
    """Here the variance that reaches the layer depends on the tensor too."""
    x, net = case.input().mean, nn.Sequential(weights_in_front(case), case.layer())
    assert_exact_gradients(observed(net, x), x)


@EVERY_CASE
def test_means_and_variances_that_are_ordinary_tensors(case: Case) -> None:
    """`Gaussian(mean, var)` of tensors that require a gradient: both get it, and no message."""
    x, layer = case.input(), case.layer()
    assert_exact_gradients(observed(layer, lambda: Gaussian(x.mean, x.var)), x.mean, x.var)


@EVERY_CASE
def test_the_parameters_messages_are_those_of_an_input_without_gradient(case: Case) -> None:
    sent = []
    for asks in (False, True):
        x, net = case.input().mean.requires_grad_(asks), nn.Sequential(weights_in_front(case), case.layer())
        observed(net, x)().backward()
        sent.append([parameter.grad for parameter in net.parameters()])
    for one, other in zip(*sent, strict=True):
        assert torch.equal(one, other)


# ---- small networks ------------------------------------------------------------------------------------------

NETWORKS: dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...]]] = {
    "linear relu linear": (lambda: [tnn.Linear(4, 6), tnn.ReLU(), tnn.Linear(6, 2)], (3, 4)),
    "conv pool linear": (
        lambda: [
            *(tnn.Conv2d(2, 3, 3, padding=1), tnn.ReLU(), tnn.AvgPool2d(2), tnn.MaxPool2d(2)),
            *(tnn.Flatten(), tnn.Linear(3, 2)),
        ],
        (2, 2, 4, 4),
    ),
    "transposed": (
        lambda: [tnn.Linear(3, 8), tnn.Tanh(), tnn.Unflatten(1, (2, 2, 2)), tnn.ConvTranspose2d(2, 1, 2)],
        (2, 3),
    ),
    "layer norm": (lambda: [tnn.Linear(4, 6), tnn.LayerNorm(6), tnn.ReLU(), tnn.Linear(6, 2)], (3, 4)),
    "batch norm": (
        lambda: [tnn.Conv2d(1, 2, 2), tnn.BatchNorm2d(2), tnn.ReLU(), tnn.Flatten(), tnn.Linear(8, 2)],
        (4, 1, 3, 3),
    ),
    "held statistics": (
        lambda: [
            tnn.Linear(4, 6),
            tnn.BatchNorm1d(6, differentiate_statistics=False),
            tnn.Tanh(),
            tnn.Linear(6, 2),
        ],
        (4, 4),
    ),
    "residual": (
        lambda: [
            tnn.Linear(4, 5),
            tnn.Residual(nn.Sequential(tnn.ReLU(), tnn.Linear(5, 5))),
            tnn.Residual(tnn.Linear(5, 3), tnn.Linear(5, 3, bias=False)),
            tnn.Linear(3, 2),
        ],
        (3, 4),
    ),
    "residual first": (lambda: [tnn.Residual(tnn.Linear(4, 4)), tnn.Linear(4, 2)], (3, 4)),
}


def network(name: str, kind: type[nn.Sequential] = tnn.Sequential) -> tuple[nn.Module, Tensor]:
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    net = kind(*build()).double()
    return net, torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("kind", [tnn.Sequential, nn.Sequential], ids=["chain", "layer by layer"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_tensor_in_front_of_a_network(name: str, kind: type[nn.Sequential]) -> None:
    net, x = network(name, kind)
    assert_exact_gradients(observed(net, x), x)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_ordinary_layer_in_front_of_a_network(name: str) -> None:
    """Its weights get the gradient; the network's own messages are those of its input as it is."""
    net, x = network(name)
    trunk = nn.Linear(x.shape[-1], x.shape[-1], dtype=torch.float64)
    loss = observed(lambda inputs: net(torch.tanh(trunk(inputs))), x)
    assert_exact_gradients(loss, trunk.weight, trunk.bias)
    own = [parameter.grad for parameter in net.parameters()]
    net.zero_grad()
    hidden = torch.tanh(trunk(x)).detach()
    target = net(hidden)  # the loss's targets lie where `observed` put them
    assert target.plain is None
    noise = torch.randn(target.shape, generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    tagi.Regression(NOISE_STD).double()(target, target.mean.detach() + noise).backward()
    for one, other in zip(own, net.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_update_leaves_the_gradient_as_it_is(name: str) -> None:
    """It bounds the messages of the network that it learns; the gradient in front of it stays the loss's."""
    net, x = network(name)
    alone = observed(net, x)
    x.requires_grad_()
    alone().backward()
    expected, sent = x.grad, [parameter.grad for parameter in net.parameters()]
    x.grad = None
    net.zero_grad()
    update = tagi.Update(net)
    update.gain_bound = 30.0
    alone().backward()
    assert torch.equal(x.grad, expected)
    assert not torch.allclose(next(net.parameters()).grad, sent[0]), "the bound should act"
    update.step()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_frozen_network_passes_the_gradient_on(name: str) -> None:
    net, x = network(name)
    net.requires_grad_(False)
    assert_exact_gradients(observed(net, x), x)


def test_a_frozen_network_between_a_tensor_and_a_message() -> None:
    """A Gaussian that asks for its message beside a tensor that requires a gradient: each gets its own."""
    net, x = network("linear relu linear")
    known = torch.randn(4, dtype=torch.float64)
    asked = Gaussian(x.clone(), torch.full_like(x, 0.3)).requires_grad_()
    assert_exact_gradients(observed(lambda shift: net(asked + shift), known), known)
    other = Gaussian(x + known.detach(), torch.full_like(x, 0.3)).requires_grad_()
    asked.mean.grad = asked.var.grad = None
    observed(lambda shift: net(asked + shift), known)().backward()
    observed(net, other)().backward()
    torch.testing.assert_close(asked.mean.grad, other.mean.grad, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(asked.var.grad, other.var.grad, rtol=1e-12, atol=1e-14)


# ---- arithmetic and torch's functions -------------------------------------------------------------------------

ARITHMETIC: dict[str, Callable[[Gaussian, Tensor], Gaussian]] = {
    "g * t": lambda g, t: g * t,
    "t * g": lambda g, t: t * g,
    "g / t": lambda g, t: g / t,
    "g + t": lambda g, t: g + t,
    "t + g": lambda g, t: t + g,
    "g - t": lambda g, t: g - t,
    "t - g": lambda g, t: t - g,
    "-g * t": lambda g, t: -g * t,
    "g + N(t, t²)": lambda g, t: g + Gaussian(t.expand(g.shape), t.square().expand(g.shape)),
    "g - N(t, t²)": lambda g, t: g - Gaussian(t.expand(g.shape), t.square().expand(g.shape)),
    "cat": lambda g, t: tagi.cat([g * t, Gaussian(t.expand(g.shape)), g], 1),
}
REARRANGED: dict[str, Callable[[Gaussian], Gaussian]] = {
    "index": lambda g: g[1:, ::2],
    "reshape": lambda g: g.reshape(2, 6),
    "flatten": lambda g: g.unflatten(1, (2, 2)).flatten(1),
    "permute": lambda g: g.permute(1, 0),
    "to": lambda g: g.to(torch.float64),
}


@pytest.mark.parametrize("shape", [(), (4,), (3, 1), (3, 4)], ids=str)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_a_tensor_beside_a_gaussian(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, x = tnn.Linear(4, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    t = 0.5 + torch.rand(shape, dtype=torch.float64)
    assert_exact_gradients(observed(lambda known: ARITHMETIC[name](layer(x), known), t), t)
    sent = layer.weight.mean.grad.clone(), layer.weight.var.grad.clone()
    layer.zero_grad()
    observed(lambda known: ARITHMETIC[name](layer(x), known), t.detach())().backward()
    assert torch.equal(layer.weight.mean.grad, sent[0]), "the messages are those of a factor that is known"
    assert torch.equal(layer.weight.var.grad, sent[1])


@pytest.mark.parametrize("name", REARRANGED)
def test_a_rearranged_gaussian_of_ordinary_tensors(name: str) -> None:
    torch.manual_seed(0)
    mean, var = torch.randn(3, 4, dtype=torch.float64), 0.2 + torch.rand(3, 4, dtype=torch.float64)
    assert_exact_gradients(observed(lambda _: REARRANGED[name](Gaussian(mean, var)), mean), mean, var)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torchs_functions_of_a_gaussian_of_ordinary_tensors(name: str) -> None:
    case = FUNCTIONS[name]
    torch.manual_seed(0)
    mean, var = torch.randn(case.shape, dtype=torch.float64), 0.2 + torch.rand(case.shape, dtype=torch.float64)
    assert_exact_gradients(observed(lambda _: case.function(Gaussian(mean, var)), mean), mean, var)


KNOWN_WEIGHTS: dict[str, tuple[Callable[[Gaussian, Tensor], Gaussian], tuple[int, ...], tuple[int, ...]]] = {
    "linear": (lambda g, w: F.linear(g, w), (3, 4), (2, 4)),
    "linear with a bias": (lambda g, w: F.linear(g, w, w[:, 0]), (3, 4), (2, 4)),
    "conv2d": (lambda g, w: F.conv2d(g, w, padding=1), (2, 2, 3, 3), (1, 2, 2, 2)),
    "conv_transpose2d": (lambda g, w: F.conv_transpose2d(g, w, stride=2), (2, 2, 2, 2), (2, 1, 2, 2)),
    "g @ w": (lambda g, w: g @ w, (3, 4), (4, 2)),
    "w @ g": (lambda g, w: torch.matmul(w, g), (3, 4), (2, 3)),
    "add with a factor": (lambda g, w: torch.add(g, w, alpha=3), (3, 4), (4,)),
    "div": (lambda g, w: torch.div(g, 2 + w.square()), (3, 4), (4,)),
}


@pytest.mark.parametrize("name", KNOWN_WEIGHTS)
def test_a_known_weight_that_requires_a_gradient(name: str) -> None:
    """Behind a layer whose parameters get their messages as if it were known."""
    function, shape, weight_shape = KNOWN_WEIGHTS[name]
    torch.manual_seed(0)
    layer = tnn.LayerNorm(shape[-1], dtype=torch.float64)
    x, weight = torch.randn(shape, dtype=torch.float64), torch.randn(weight_shape, dtype=torch.float64)
    assert_exact_gradients(observed(lambda w: function(layer(x), w), weight), weight)
    sent = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    observed(lambda w: function(layer(x), w), weight.detach())().backward()
    for one, other in zip(sent, layer.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad, rtol=1e-12, atol=1e-14)


def test_a_detached_gaussian_passes_no_gradient_on() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    z = tnn.Linear(4, 2, dtype=torch.float64)(x).detach()
    assert not z.mean.requires_grad
    assert z.plain is None or not z.plain.mean.requires_grad
    with torch.no_grad():
        assert tnn.Linear(4, 2, dtype=torch.float64)(x).plain is None


@pytest.mark.parametrize("which", ["mean", "var"])
def test_one_of_mean_and_variance_may_require_a_gradient(which: str) -> None:
    torch.manual_seed(0)
    mean, var = torch.randn(3, 4, dtype=torch.float64), 0.2 + torch.rand(3, 4, dtype=torch.float64)
    layer = tnn.Linear(4, 2, dtype=torch.float64)
    leaf, other = (mean, var) if which == "mean" else (var, mean)
    assert_exact_gradients(observed(lambda _: layer(Gaussian(mean, var)), mean), leaf)
    assert other.grad is None


def test_requires_grad_asks_for_messages_and_not_for_the_gradient() -> None:
    """The two differ in the variance: a curvature there, the derivative of the loss here."""
    torch.manual_seed(0)
    mean, var = torch.randn(3, 2, dtype=torch.float64), 0.2 + torch.rand(3, 2, dtype=torch.float64)
    target, likelihood = torch.randn(3, 2, dtype=torch.float64), tagi.Regression(NOISE_STD).double()
    asked = Gaussian(mean.clone(), var.clone()).requires_grad_()
    likelihood(asked, target).backward()
    total = var + likelihood.noise_var
    torch.testing.assert_close(asked.mean.grad, (mean - target) / total)
    torch.testing.assert_close(asked.var.grad, 1 / total)
    mean.requires_grad_()
    var.requires_grad_()
    ordinary = Gaussian(mean, var)
    assert not ordinary.mean.requires_grad, "no message was asked for"
    likelihood(ordinary, target).backward()
    torch.testing.assert_close(mean.grad, (mean.detach() - target) / total)
    torch.testing.assert_close(var.grad, 0.5 * (1 / total - ((mean.detach() - target) / total).square()))
