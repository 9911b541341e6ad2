"""Torch's functions on Gaussians: every case of `FUNCTIONS` meets every oracle, and the rest is refused by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtagi as tagi
from cases import FUNCTIONS, FunctionCase, known
from oracles import assert_moments_of_draws, jacobian_messages
from random_gaussians import random_gaussian
from torchtagi import Gaussian
from torchtagi import nn as tnn
from torchtagi.functions import RULES

EVERY_CASE = pytest.mark.parametrize("case", FUNCTIONS.values(), ids=list(FUNCTIONS))
LINEAR = {name: case for name, case in FUNCTIONS.items() if case.linear}


def jacobian(case: FunctionCase, x: Gaussian) -> Tensor:
    """(outputs, inputs) of the function at the means, by torch's own autograd."""
    dense = torch.autograd.functional.jacobian(lambda m: case.function(m).flatten(), x.mean)
    return dense.flatten(1)


@EVERY_CASE
@pytest.mark.parametrize("certain", [False, True], ids=["uncertain", "certain"])
def test_moments_are_those_of_the_linearised_function(case: FunctionCase, certain: bool) -> None:
    """f(m) and (J∘J) v, exact where the function is linear; J from autograd of torch's function on a tensor."""
    x = random_gaussian(*case.shape)
    out = case.function(Gaussian(x.mean) if certain else x)
    expected = case.function(x.mean)
    assert isinstance(out, Gaussian)
    assert out.shape == expected.shape
    torch.testing.assert_close(out.mean, expected)
    if certain:
        assert out.var is None
    else:
        torch.testing.assert_close(out.var.flatten(), jacobian(case, x).square() @ x.var.flatten())


@pytest.mark.parametrize("case", LINEAR.values(), ids=list(LINEAR))
def test_moments_match_monte_carlo(case: FunctionCase) -> None:
    """Oracle 1 for what is exact."""
    x = random_gaussian(*case.shape)
    draws = x.sample(20_000, generator=torch.Generator().manual_seed(7))
    assert_moments_of_draws(case.function(x), torch.func.vmap(case.function)(draws))


@EVERY_CASE
def test_messages_are_jacobian_products(case: FunctionCase) -> None:
    """Oracle 2: Jᵀ dm and (J∘J)ᵀ dv."""
    x = random_gaussian(*case.shape).requires_grad_()
    out = case.function(x)
    dmean, dvar = torch.randn((2, *out.shape), dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    torch.autograd.backward([out.mean, out.var], [dmean, dvar])
    ((to_mean, to_var),) = jacobian_messages(case.function, [x.mean.detach()], dmean, dvar)
    torch.testing.assert_close(x.mean.grad, to_mean)
    torch.testing.assert_close(x.var.grad, to_var)


@EVERY_CASE
def test_ordinary_tensors_in_front_get_the_gradient_of_the_loss(case: FunctionCase) -> None:
    """Oracle 7: by central differences of the negative log-evidence, through the mean and through the variance."""
    likelihood = tagi.Regression(0.5).double()
    spread = 0.3 + torch.rand(case.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def loss(t: Tensor) -> Tensor:
        out = case.function(Gaussian(t, spread * t.square()))
        return likelihood(out, torch.ones_like(out.mean))

    t = random_gaussian(*case.shape, seed=4).mean.requires_grad_()
    loss(t).backward()
    step = 1e-5
    for index in torch.randperm(t.numel(), generator=torch.Generator().manual_seed(2))[:5]:
        change = torch.zeros_like(t).flatten()
        change[index] = step
        change = change.view(case.shape)
        with torch.no_grad():
            slope = (loss(t + change) - loss(t - change)).item() / (2 * step)
        assert t.grad.flatten()[index].item() == pytest.approx(slope, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("function", [F.linear, torch.mul, torch.add, torch.matmul])
def test_known_weights_that_require_a_gradient_get_it(function: Callable[..., Gaussian]) -> None:
    """Ordinary layers behind Gaussian ones: the gradient of the loss to them, messages to the Gaussian layers."""
    x, likelihood = random_gaussian(4, 3).requires_grad_(), tagi.Regression(0.5).double()
    target = torch.ones(4, 3, dtype=torch.float64)

    def loss(w: Tensor) -> Tensor:
        weight = w if function in (F.linear, torch.matmul) else w[0]
        return likelihood(function(x, weight), target)

    w = known(3, 3).requires_grad_()
    loss(w).backward()
    message = x.mean.grad.clone()
    with torch.no_grad():
        for index in range(3):
            step = torch.zeros_like(w)
            step[0, index] = 1e-5
            slope = (loss(w + step) - loss(w - step)).item() / 2e-5
            assert w.grad[0, index].item() == pytest.approx(slope, rel=1e-6)
    x.mean.grad = x.var.grad = None
    loss(w.detach()).backward()
    torch.testing.assert_close(message, x.mean.grad)


# ---- the same as the layers ----------------------------------------------------------------------------------

TORCH_MODULES = {
    "ReLU": nn.ReLU(inplace=True),
    "LeakyReLU": nn.LeakyReLU(0.2, inplace=True),
    "Tanh": nn.Tanh(),
    "Sigmoid": nn.Sigmoid(),
    "Softplus": nn.Softplus(2.0, 3.0),
    "Flatten": nn.Flatten(),
    "Unflatten": nn.Unflatten(1, (2, 1)),
    "ZeroPad2d": nn.ZeroPad2d((1, 0, 2, 1)),
    "AvgPool2d": nn.AvgPool2d(3, 2, 1, divisor_override=5),
    "MaxPool2d": nn.MaxPool2d(3, 2, 1),
    "AdaptiveAvgPool2d": nn.AdaptiveAvgPool2d(3),
    "Identity": nn.Identity(),
}


@pytest.mark.parametrize("name", TORCH_MODULES)
def test_torch_modules_without_weights_are_our_layers(name: str) -> None:
    """Unconverted, on a Gaussian: equal to the bit to the layer of the same name."""
    x, module = random_gaussian(3, 2, 6, 5), TORCH_MODULES[name]
    ours = tagi.convert(module)
    assert type(ours) is getattr(tnn, name)
    one, other = module(x), ours(x)
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.var, other.var)


def test_ordinary_affine_modules_are_known_weights() -> None:
    """torch.nn.Linear on a Gaussian is ours with weights of no variance."""
    x, module = random_gaussian(3, 4), nn.Linear(4, 2).double()
    ours = tnn.Linear(4, 2, dtype=torch.float64)
    ours.weight.set_(module.weight.detach(), 1e-200)
    ours.bias.set_(module.bias.detach(), 1e-200)
    torch.testing.assert_close(module(x).mean, ours(x).mean)
    torch.testing.assert_close(module(x).var, ours(x).var)


def test_operators_that_assign_make_a_new_gaussian() -> None:
    """`out += identity` as residual networks write it, with a Gaussian or a tensor on the left."""
    x, y = random_gaussian(2, 3), random_gaussian(2, 3, seed=1)
    before = x.mean.clone()
    out = x
    out += y
    out -= 1.0
    out *= 2.0
    torch.testing.assert_close(out.mean, (before + y.mean - 1) * 2)
    torch.testing.assert_close(out.var, (x.var + y.var) * 4)
    assert torch.equal(x.mean, before)
    tensor = before.clone()
    total = tensor
    total += y
    assert torch.equal(tensor, before)
    torch.testing.assert_close(total.mean, before + y.mean)


def test_shape_methods() -> None:
    x = random_gaussian(2, 3)
    assert x.size() == torch.Size([2, 3])
    assert (x.size(1), x.dim(), x.numel(), torch.numel(x)) == (3, 2, 6, 6)
    assert [part.shape for part in x.unbind()] == [(3,), (3,)]
    assert x.float().dtype == torch.float32


def test_a_view_is_there_in_any_layout() -> None:
    x = random_gaussian(2, 3, 4, 5)
    last = Gaussian(*(part.to(memory_format=torch.channels_last) for part in (x.mean, x.var)))
    assert torch.equal(last.view(2, -1).mean, x.mean.view(2, -1))
    assert torch.equal(last.view(2, -1).var, x.var.view(2, -1))
    assert x.view(2, -1).mean.data_ptr() == x.mean.data_ptr(), "no copy where none is needed"
    with pytest.raises(RuntimeError, match="invalid"):
        last.view(7, -1)


def test_copies_and_pickles() -> None:
    """Methods that are looked up by name must not stand in for the ones that copying asks for."""
    x = random_gaussian(2, 3)
    for again in (copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert torch.equal(again.mean, x.mean)
        assert torch.equal(again.var, x.var)


# ---- what is refused -----------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[Gaussian], object], str]] = {
    "softmax": (lambda x: F.softmax(x, 1), r"softmax.*likelihood takes its place"),
    "log_softmax": (lambda x: torch.log_softmax(x, 1), r"log_softmax.*likelihood"),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.zeros(2, dtype=torch.long)), r"cross_entropy.*likelihood"),
    "gelu": (F.gelu, r"gelu.*use relu, leaky_relu, tanh, sigmoid or softplus"),
    "exp": (torch.exp, r"exp .*tagi\.nn\.Exp"),
    "batch_norm": (nn.BatchNorm1d(3).double(), r"batch_norm.*tagi\.nn\.BatchNorm"),
    "layer_norm": (nn.LayerNorm(3).double(), r"layer_norm.*tagi\.nn\.LayerNorm"),
    "argmax": (torch.argmax, r"argmax.*RULES.*x\.mean is a tensor"),
    "autograd": (lambda x: torch.autograd.grad(x, x.mean), r"grad .*x\.mean"),
    "product": (lambda x: x * x, r"mul: the product of two Gaussians is no Gaussian"),
    "mul": (lambda x: torch.mul(x, x), r"mul: the product of two Gaussians is no Gaussian"),
    "matmul": (lambda x: x @ x.T, r"matmul.*must be known"),
    "linear": (lambda x: F.linear(known(2, 3), x), r"linear.*the layer of this name in tagi\.nn"),
    "weights": (lambda x: F.linear(x, x), r"linear.*the layer of this name in tagi\.nn"),
    "reciprocal": (lambda x: 1 / x, r"div: .*divide by a number or a tensor"),
    "tensor / x": (lambda x: known(2, 3) / x, r"div: .*divide by a number or a tensor"),
    "div": (lambda x: torch.div(1.0, x), r"div: .*divide by a number or a tensor"),
    "rounding": (lambda x: torch.div(x, 2, rounding_mode="floor"), r"divide.* 'rounding_mode'"),
    "reflect": (lambda x: F.pad(x, (1, 1), mode="reflect"), r"pad with mode='reflect'.*use 'constant'"),
    "relu_": (torch.relu_, r"relu_ works in place.*use relu"),
    "add_": (lambda x: known(2, 3).add_(x), r"add_ works in place.*use add"),
    "out": (lambda x: torch.add(x, 1, out=known(2, 3)), r"add with out= works in place"),
    "indices": (lambda x: F.max_pool2d(x[None, None], 2, return_indices=True), r"without return_indices"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gaussian_meaning_is_refused_by_name(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(TypeError, match=message):
        function(random_gaussian(2, 3))


def test_methods_without_a_gaussian_meaning_are_refused_by_name() -> None:
    x = random_gaussian(2, 3)
    with pytest.raises(AttributeError, match=r"softmax.*likelihood"):
        x.softmax(1)
    with pytest.raises(AttributeError, match=r"add_ works in place.*use add"):
        x.add_(1)
    with pytest.raises(AttributeError, match="'Gaussian' object has no attribute 'bogus'"):
        _ = x.bogus


def test_every_rule_is_a_function_or_a_method_of_torch() -> None:
    """A rule under a misspelt name would never be found."""
    for name in RULES:
        assert any(hasattr(place, name) for place in (torch, F, Tensor)), name
