"""Bad input is refused before anything changes; the error names the argument and the value."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from cases import CASES, Case
from torchtagi import Gaussian, GaussianParameter
from torchtagi import nn as tnn
from torchtagi.parameter import prior_std

EVERY_CASE = pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))


# ---- values --------------------------------------------------------------------------------------------------


@EVERY_CASE
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite(case: Case, bad: float) -> None:
    """Every layer, with the offending value and where it is; nothing of the layer changes."""
    layer = case.layer(torch.float32)
    before = copy.deepcopy(layer.state_dict())
    x = case.input(torch.float32).mean
    x.view(-1)[-1] = bad
    index = [size - 1 for size in x.shape]
    with pytest.raises(ValueError, match=re.escape(f"input must be finite, got {bad} at index {index}")):
        layer(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


@EVERY_CASE
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64])
def test_dtypes_that_are_not_floating(case: Case, dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"input must have a floating dtype, got {dtype}"):
        case.layer(torch.float32)(torch.ones(case.shape).to(dtype))


@EVERY_CASE
def test_empty_batch(case: Case) -> None:
    shape = (0, *case.shape[1:])
    with pytest.raises(ValueError, match=re.escape(f"input is empty: shape {shape}")):
        case.layer(torch.float32)(torch.ones(shape))


@EVERY_CASE
@pytest.mark.parametrize("x", [[1.0, 2.0], 3.0, None, "image"], ids=["list", "float", "None", "str"])
def test_things_that_are_not_tensors(case: Case, x: object) -> None:
    with pytest.raises(TypeError, match=f"input must be a tensor or a Gaussian, got {type(x).__name__}"):
        case.layer(torch.float32)(x)


@EVERY_CASE
def test_negative_variance(case: Case) -> None:
    """Refused where it is made: a layer never sees it."""
    x = case.input(torch.float32)
    x.var.view(-1)[0] = -0.5
    with pytest.raises(ValueError, match=r"var must not be negative, got -0\.5"):
        Gaussian(x.mean, x.var)


# ---- shapes --------------------------------------------------------------------------------------------------

SHAPES: list[tuple[Callable[[], nn.Module], tuple[int, ...], str]] = [
    (lambda: tnn.Linear(4, 2), (3, 5), r"Linear: .*4 features.*\(3, 5\)"),
    (lambda: tnn.Linear(4, 2), (4, 3), r"Linear: .*4 features.*\(4, 3\)"),
    (lambda: tnn.Linear(4, 2), (), r"Linear: .*4 features.*\(\)"),
    (lambda: tnn.Conv2d(2, 3, 3), (2, 3, 5, 5), r"Conv2d: .*\(N, 2, H, W\).*\(2, 3, 5, 5\)"),
    (lambda: tnn.Conv2d(2, 3, 3), (2, 5, 5), r"Conv2d: .*\(N, 2, H, W\).*\(2, 5, 5\)"),
    (lambda: tnn.Conv2d(2, 3, 3), (2, 50), r"Conv2d: .*\(N, 2, H, W\).*\(2, 50\)"),
    (lambda: tnn.ConvTranspose2d(2, 3, 3), (2, 3, 5, 5), r"ConvTranspose2d: .*\(N, 2, H, W\).*\(2, 3, 5, 5\)"),
    (lambda: tnn.ConvTranspose2d(2, 3, 3), (2, 5, 5), r"ConvTranspose2d: .*\(N, 2, H, W\).*\(2, 5, 5\)"),
    (lambda: tnn.AvgPool2d(2), (2, 4), r"AvgPool2d: .*\(N, C, H, W\).*\(2, 4\)"),
    (lambda: tnn.MaxPool2d(2), (2, 4), r"MaxPool2d: .*\(N, C, H, W\).*\(2, 4\)"),
    (lambda: tnn.LayerNorm(4), (3, 5), r"LayerNorm: .*\(4,\).*\(3, 5\)"),
    (lambda: tnn.LayerNorm((2, 3)), (3,), r"LayerNorm: .*\(2, 3\).*\(3,\)"),
    (lambda: tnn.LayerNorm((2, 3)), (4, 3, 2), r"LayerNorm: .*\(2, 3\).*\(4, 3, 2\)"),
    (lambda: tnn.BatchNorm1d(3), (4, 2), r"BatchNorm1d: .*3 channels.*\(4, 2\)"),
    (lambda: tnn.BatchNorm1d(3), (4, 3, 2, 2), r"BatchNorm1d: .*2 or 3 dimensions.*\(4, 3, 2, 2\)"),
    (lambda: tnn.BatchNorm2d(3), (4, 3), r"BatchNorm2d: .*4 dimensions.*\(4, 3\)"),
    (lambda: tnn.BatchNorm2d(3), (4, 2, 5, 5), r"BatchNorm2d: .*3 channels.*\(4, 2, 5, 5\)"),
    (lambda: tnn.EvenExp(), (2, 3), r"EvenExp: .*even last dimension.*\(2, 3\)"),
]


@pytest.mark.parametrize(("build", "shape", "message"), SHAPES)
def test_wrong_shape(build: Callable[[], nn.Module], shape: tuple[int, ...], message: str) -> None:
    """The layer, what it accepts and what it got."""
    layer = build()
    before = copy.deepcopy(layer.state_dict())
    for x in (torch.ones(shape), Gaussian(torch.ones(shape), torch.ones(shape))):
        with pytest.raises(ValueError, match=message):
            layer(x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


TOO_SMALL: list[tuple[Callable[[], nn.Module], tuple[int, ...], str]] = [
    (lambda: tnn.Conv2d(2, 3, 3), (1, 2, 2, 5), r"2 x 5.*3 x 3"),
    (lambda: tnn.Conv2d(1, 1, 3, dilation=3), (1, 1, 7, 6), r"7 x 6.*7 x 7"),
    (lambda: tnn.ConvTranspose2d(1, 1, 3, padding=2), (1, 1, 2, 4), r"2 x 4.*0 x 2.*too small"),
    (lambda: tnn.AvgPool2d(5), (1, 1, 4, 6), r"1x4x6.*too small"),
    (lambda: tnn.MaxPool2d(2, padding=2), (1, 1, 4, 4), r"pad=2, kernel_size=2"),
]


@pytest.mark.parametrize(("build", "shape", "message"), TOO_SMALL)
def test_images_that_do_not_fit_a_window(
    build: Callable[[], nn.Module], shape: tuple[int, ...], message: str
) -> None:
    """torch itself says so."""
    for x in (torch.ones(shape), Gaussian(torch.ones(shape), torch.ones(shape))):
        with pytest.raises(RuntimeError, match=message):
            build()(x)


# ---- constructor arguments -----------------------------------------------------------------------------------

ARGUMENTS: list[tuple[Callable[[], object], str]] = [
    (lambda: tnn.Linear(0, 3), "in_features.*0"),
    (lambda: tnn.Linear(3, -1), "out_features.*-1"),
    (lambda: tnn.Linear(2.5, 3), r"in_features.*2\.5"),
    (lambda: tnn.Linear(3, 3, prior="glorot"), "prior.*'glorot'"),
    (lambda: tnn.Conv2d(0, 3, 3), "in_channels.*0"),
    (lambda: tnn.Conv2d(3, 0, 3), "out_channels.*0"),
    (lambda: tnn.Conv2d(3, 3, 0), "kernel_size.*0"),
    (lambda: tnn.Conv2d(3, 3, (3, 3, 3)), r"kernel_size.*\(3, 3, 3\)"),
    (lambda: tnn.Conv2d(3, 3, 2.5), r"kernel_size.*2\.5"),
    (lambda: tnn.Conv2d(3, 3, (3, 1.5)), r"kernel_size.*1\.5"),
    (lambda: tnn.Conv2d(3, 3, None), "kernel_size.*None"),
    (lambda: tnn.Conv2d(3, 3, 3, 0), "stride.*0"),
    (lambda: tnn.Conv2d(3, 3, 3, padding=-1), "padding.*-1"),
    (lambda: tnn.Conv2d(3, 3, 3, padding="full"), "padding.*'full'"),
    (lambda: tnn.Conv2d(3, 3, 3, 2, "same"), "padding='same'.*stride 1.*2"),
    (lambda: tnn.Conv2d(3, 3, 4, padding="same"), r"padding='same'.*kernel_size=\(4, 4\).*ZeroPad2d"),
    (lambda: tnn.Conv2d(3, 3, 3, dilation=0), "dilation.*0"),
    (lambda: tnn.Conv2d(3, 3, 3, groups=0), "groups.*0"),
    (lambda: tnn.Conv2d(4, 6, 3, groups=4), "groups=4.*in_channels=4.*out_channels=6"),
    (lambda: tnn.Conv2d(3, 4, 3, groups=2), "groups=2.*in_channels=3.*out_channels=4"),
    (lambda: tnn.ConvTranspose2d(3, 3, 3, output_padding=-1), "output_padding.*-1"),
    (lambda: tnn.ConvTranspose2d(3, 3, (0, 3)), r"kernel_size.*\(0, 3\)"),
    (lambda: tnn.ConvTranspose2d(3, 3, 3, padding="same"), "padding.*'same'"),
    (lambda: tnn.AvgPool2d(0), "kernel_size.*0"),
    (lambda: tnn.AvgPool2d(2, -1), "stride.*-1"),
    (lambda: tnn.AvgPool2d(2, padding=-1), "padding.*-1"),
    (lambda: tnn.MaxPool2d(0), "kernel_size.*0"),
    (lambda: tnn.MaxPool2d(2, dilation=0), "dilation.*0"),
    (
        lambda: tnn.BatchNorm2d(2, use_running=True, track_running_stats=False),
        "use_running=True.*track_running_stats",
    ),
    (lambda: tnn.BatchNorm2d(0), "num_features.*0"),
    (lambda: tnn.BatchNorm1d(-3), "num_features.*-3"),
    (lambda: tnn.BatchNorm2d(2, eps=-1.0), r"eps.*-1\.0"),
    (lambda: tnn.LayerNorm(0), "normalized_shape.*0"),
    (lambda: tnn.LayerNorm(()), r"normalized_shape.*\(\)"),
    (lambda: tnn.LayerNorm((2, -3)), r"normalized_shape.*-3"),
    (lambda: tnn.LayerNorm(3, eps=-1.0), r"eps.*-1\.0"),
    (lambda: prior_std("zero", 3, 3), "prior.*'zero'"),
    (lambda: GaussianParameter((2,), 0.0), r"std.*0\.0"),
    (lambda: GaussianParameter((2,)).set_(0.0, 0.0), r"var must be positive and finite, got 0\.0"),
    (
        lambda: GaussianParameter((2,)).set_(0.0, torch.tensor([1.0, -2.0])),
        r"var must be positive and finite, got -2\.0",
    ),
    (lambda: GaussianParameter((2,)).set_(0.0, math.nan), "var must be positive and finite, got nan"),
]


@pytest.mark.parametrize(("build", "message"), ARGUMENTS, ids=[message for _, message in ARGUMENTS])
def test_bad_constructor_argument(build: Callable[[], object], message: str) -> None:
    """The argument's name and the value given."""
    with pytest.raises((ValueError, TypeError), match=message):
        build()


def test_set_refuses_before_it_writes() -> None:
    parameter = GaussianParameter((2,))
    before = parameter.mean.detach().clone()
    with pytest.raises(ValueError, match="var must be positive"):
        parameter.set_(5.0, -1.0)
    assert torch.equal(parameter.mean, before)


@pytest.mark.parametrize(("norm", "shape"), [(tnn.BatchNorm1d(3), (1, 3)), (tnn.BatchNorm2d(3), (1, 3, 1, 1))])
def test_one_value_in_a_channel_cannot_be_normalised(norm, shape):
    with pytest.raises(ValueError, match="no spread to normalise by"):
        norm(torch.randn(shape))
    norm(torch.randn(2, *shape[1:]))
    norm.eval()(torch.randn(shape))
