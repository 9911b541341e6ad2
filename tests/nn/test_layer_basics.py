"""What every layer has: a prior, a configuration that rebuilds it, a memory format, use in a user's module."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import Tensor, nn

import torchtagi as tagi
from cases import CASES, Case, gaussian_parameters
from torchtagi import Gaussian, GaussianParameter
from torchtagi import nn as tnn
from torchtagi.nn.layer import Place

LARGE = {
    "linear": (lambda **options: tnn.Linear(300, 200, **options), 300, 200),
    "conv": (lambda **options: tnn.Conv2d(24, 40, (5, 3), **options), 24 * 15, 40 * 15),
    "conv-groups": (lambda **options: tnn.Conv2d(32, 64, 5, groups=4, **options), 8 * 25, 16 * 25),
    "transposed": (lambda **options: tnn.ConvTranspose2d(24, 40, (3, 4), **options), 24 * 12, 40 * 12),
    "transposed-groups": (lambda **options: tnn.ConvTranspose2d(32, 64, 5, groups=4, **options), 8 * 25, 16 * 25),
}
PRIOR_VARIANCE = {
    "lecun": lambda fan_in, fan_out: 1 / fan_in,
    "he": lambda fan_in, fan_out: 2 / fan_in,
    "xavier": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
}


@pytest.mark.parametrize("prior", PRIOR_VARIANCE)
@pytest.mark.parametrize("kind", LARGE)
def test_prior_scales(prior: str, kind: str) -> None:
    """Variances exactly, means by their spread."""
    torch.manual_seed(0)
    build, fan_in, fan_out = LARGE[kind]
    layer = build(prior=prior)
    variance = PRIOR_VARIANCE[prior](fan_in, fan_out)
    torch.testing.assert_close(layer.weight.var.detach(), torch.full_like(layer.weight.var, variance))
    torch.testing.assert_close(layer.bias.var.detach(), torch.full_like(layer.bias.var, variance))
    means = layer.weight.mean.detach().double()
    assert means.square().mean().item() == pytest.approx(variance, rel=6 * math.sqrt(2 / means.numel()))
    assert abs(means.mean().item()) < 6 * math.sqrt(variance / means.numel())
    assert layer.bias.mean.detach().square().mean().item() == pytest.approx(variance, rel=1.2)


def test_default_prior_is_the_authors() -> None:
    """Their code calls 1/fan_in He's."""
    layer = tnn.Linear(8, 2)
    assert layer.prior == "lecun"
    torch.testing.assert_close(layer.weight.var.detach(), torch.full((2, 8), 1 / 8))


def test_parameter_set() -> None:
    parameter = GaussianParameter((50, 40), 0.5)
    torch.testing.assert_close(parameter.var.detach(), torch.full((50, 40), 0.25))
    before = parameter.mean
    assert parameter.set_(3.0, torch.full((50, 40), 0.25)) is parameter
    assert parameter.mean is before
    assert torch.equal(parameter.mean, torch.full((50, 40), 3.0))
    assert torch.equal(parameter.var, torch.full((50, 40), 0.25))
    assert set(dict(parameter.named_parameters())) == {"mean", "var"}


@pytest.mark.parametrize(
    "layer", [tnn.Linear, lambda i, o, **k: tnn.Conv2d(i, o, 1, **k), lambda i, o, **k: tnn.LayerNorm(i, **k)]
)
def test_dtype_argument(layer: object) -> None:
    built = layer(3, 3, dtype=torch.float64)
    assert {parameter.dtype for parameter in built.parameters()} == {torch.float64}


CONFIGURED = [
    *(case.build for case in CASES.values()),
    lambda: tnn.Linear(3, 2, prior="xavier"),
    lambda: tnn.Conv2d(2, 2, 3, prior="he"),
    lambda: tnn.ConvTranspose2d(2, 2, 3, 2, 1, 1, prior="xavier", dilation=2),
    lambda: tnn.BatchNorm2d(2, 1e-3, 0.2, use_running=True, sync=True, correction=1),
    lambda: tnn.Flatten(0, 1),
]


@pytest.mark.parametrize("build", CONFIGURED)
def test_config_rebuilds_the_same_layer(build: object) -> None:
    """`type(layer)(**layer.config())`, of the same shapes, priors and options; repr is made from it."""
    layer = build()
    again = type(layer)(**layer.config())
    assert again.config() == layer.config()
    assert repr(again) == repr(layer)
    for name, value in layer.config().items():
        assert f"{name}={value!r}" in repr(layer)
    parts, rebuilt = gaussian_parameters(layer), gaussian_parameters(again)
    assert parts.keys() == rebuilt.keys()
    for name, part in parts.items():
        assert torch.equal(rebuilt[name].var, part.var)
    assert {n: t.shape for n, t in again.state_dict().items()} == {
        n: t.shape for n, t in layer.state_dict().items()
    }


def test_config_holds_every_constructor_argument() -> None:
    """Only device and dtype are left out: they are where a layer is, not what it is."""
    for case in CASES.values():
        layer = case.build()
        expected = set()
        for name, argument in inspect.signature(type(layer)).parameters.items():
            if argument.kind is argument.VAR_KEYWORD:
                assert not layer.arguments or argument.annotation == "Unpack[Place]", case.id
            elif argument.kind is not argument.VAR_POSITIONAL:
                expected.add(name)
        assert set(layer.config()) == expected, case.id
    assert Place.__annotations__.keys() == {"device", "dtype"}


def test_a_layer_of_the_users_own_has_the_arguments_of_the_one_it_extends() -> None:
    class Square(tnn.Linear):
        def __init__(self, size: int) -> None:
            super().__init__(size, size)

    assert Square(3).config() == tnn.Linear(3, 3).config()
    assert "in_features=3" in repr(Square(3))


IMAGE_CASES = [case for case in CASES.values() if len(case.shape) == 4]


@pytest.mark.parametrize("case", IMAGE_CASES, ids=[case.id for case in IMAGE_CASES])
def test_channels_last_gives_the_same_numbers(case: Case) -> None:
    """Outputs and messages, with layer and input in either memory format."""
    results = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        layer = case.layer().to(memory_format=memory_format)
        x = case.input().map(lambda t, f=memory_format: t.contiguous(memory_format=f)).requires_grad_()
        out = layer(x)
        generator = torch.Generator().manual_seed(3)
        dmean, dvar = torch.randn((2, *out.shape), generator=generator, dtype=torch.float64)
        torch.autograd.backward([out.mean, out.var], [dmean, dvar])
        results.append([out.mean, out.var, x.mean.grad, x.var.grad, *(p.grad for p in layer.parameters())])
    for usual, last in zip(*results, strict=True):
        torch.testing.assert_close(last, usual, rtol=1e-10, atol=1e-12)


def test_layers_work_inside_an_ordinary_torch_module() -> None:
    """A user's forward: two branches, a shared trunk, two heads."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.left, self.right = tnn.Linear(3, 4), tnn.Linear(4, 2), tnn.Linear(4, 1)

        def forward(self, x: Tensor) -> tuple[Gaussian, Gaussian]:
            hidden = tnn.ReLU()(self.trunk(x))
            return self.left(hidden + hidden * 0.5), self.right(hidden)

    torch.manual_seed(0)
    net, x = Net(), torch.randn(5, 3)
    messages = []
    for heads in ((0, 1), (0,), (1,)):
        net.zero_grad()
        outs = net(x)
        for head in heads:
            tagi.Regression(0.5)(outs[head], torch.ones_like(outs[head].mean)).backward(retain_graph=True)
        messages.append([net.trunk.weight.mean.grad.clone(), net.trunk.weight.var.grad.clone()])
    for both, left, right in zip(*messages, strict=True):
        torch.testing.assert_close(both, left + right)
