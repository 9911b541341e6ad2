"""Gaussian parameters and their priors."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchtagi as tagi
from torchtagi.parameter import prior_std


@pytest.mark.parametrize(
    ("prior", "expected"),
    [("lecun", math.sqrt(1 / 50)), ("he", math.sqrt(2 / 50)), ("xavier", math.sqrt(2 / 80))],
)
def test_prior_std_is_the_formula_of_its_name(prior: str, expected: float) -> None:
    assert prior_std(prior, fan_in=50, fan_out=30) == pytest.approx(expected, rel=1e-15)


def test_no_other_prior_is_known() -> None:
    with pytest.raises(ValueError, match=r"prior.*lecun, he, xavier.*'glorot'"):
        prior_std("glorot", 3, 4)


def test_means_are_drawn_with_the_priors_standard_deviation() -> None:
    torch.manual_seed(0)
    size, std = 200_000, 0.3
    parameter = tagi.GaussianParameter((size,), std, dtype=torch.float64)
    assert torch.equal(parameter.var.detach(), torch.full((size,), std**2, dtype=torch.float64))
    drawn = parameter.mean.detach() / std
    assert abs(drawn.mean().item()) < 6 / math.sqrt(size)
    assert abs(drawn.var().item() - 1) < 6 * math.sqrt(2 / size)


def test_mean_and_variance_are_ordinary_torch_parameters() -> None:
    parameter = tagi.GaussianParameter((2, 3), dtype=torch.float64)
    assert [name for name, _ in parameter.named_parameters()] == ["mean", "var"]
    assert parameter.mean.dtype == parameter.var.dtype == torch.float64
    assert parameter.mean.shape == parameter.var.shape == (2, 3)
    assert parameter.mean.requires_grad
    assert parameter.var.requires_grad
    assert parameter.float().var.dtype == torch.float32
    assert tagi.GaussianParameter((2,), device="meta").mean.is_meta
    assert "(2, 3)" in repr(parameter)


def test_state_dict_and_copies_are_bit_equal() -> None:
    parameter, other = tagi.GaussianParameter((4,)), tagi.GaussianParameter((4,))
    other.load_state_dict(parameter.state_dict())
    twin = copy.deepcopy(parameter)
    for match in (other, twin):
        assert torch.equal(match.mean, parameter.mean)
        assert torch.equal(match.var, parameter.var)
    twin.set_(0.0, 9.0)
    assert not torch.equal(twin.var, parameter.var)


def with_entry(tensor: Tensor, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor.view(-1)[-1] = value
    return tensor


NO_GAUSSIANS: dict[str, tuple[str, Callable[[Tensor], Tensor], str]] = {
    "variance negative": ("var", lambda t: with_entry(t, -0.25), "positive, got -0.25"),
    "variance zero": ("var", lambda t: with_entry(t, 0.0), "positive, got 0.0"),
    "variance nan": ("var", lambda t: with_entry(t, math.nan), "finite, got nan"),
    "variance infinite": ("var", lambda t: with_entry(t, math.inf), "finite, got inf"),
    "variance whole": ("var", lambda t: torch.ones_like(t, dtype=torch.long), "floating dtype, got torch.int64"),
    "mean nan": ("mean", lambda t: with_entry(t, math.nan), "finite, got nan"),
    "mean whole": ("mean", lambda t: torch.ones_like(t, dtype=torch.int32), "floating dtype, got torch.int32"),
}


@pytest.mark.parametrize("case", NO_GAUSSIANS)
@pytest.mark.parametrize("options", [{}, {"strict": False}, {"assign": True}], ids=str)
def test_load_state_dict_refuses_what_is_no_gaussian(case: str, options: dict[str, bool]) -> None:
    """As torch does it: all reasons in one error, and of what is refused nothing is loaded."""
    name, change, message = NO_GAUSSIANS[case]
    net = torch.nn.Sequential(tagi.nn.Linear(3, 2), tagi.nn.BatchNorm1d(2))
    for module, prefix in ((net, "0.weight."), (net, "1.bias."), (net[0], "bias."), (net[1].weight, "")):
        before = copy.deepcopy(module.state_dict())
        state = {key: value.clone() for key, value in before.items()}
        state[prefix + name] = change(state[prefix + name])
        other = {"mean": "var", "var": "mean"}[name]
        state[prefix + other] = state[prefix + other] + 1.0
        with pytest.raises(RuntimeError, match=f"{prefix}{name}".replace(".", r"\.") + " must .*" + message):
            module.load_state_dict(state, **options)
        for key, value in module.state_dict().items():
            assert torch.equal(value, before[key]), key


def test_load_state_dict_names_every_parameter_that_is_no_gaussian() -> None:
    net = tagi.nn.Linear(3, 2)
    state = {key: -value.abs() for key, value in net.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"(?s)weight\.var.*bias\.var"):
        net.load_state_dict(state)


def test_load_state_dict_still_says_what_is_missing_and_does_not_fit() -> None:
    parameter, state = tagi.GaussianParameter((3,)), tagi.GaussianParameter((4,)).state_dict()
    with pytest.raises(RuntimeError, match="size mismatch for mean"):
        parameter.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"Missing key.*mean"):
        parameter.load_state_dict({"var": torch.ones(3)})
    parameter.load_state_dict({"var": torch.full((3,), 2.0)}, strict=False)
    assert parameter.var.tolist() == [2.0, 2.0, 2.0]


def test_shapes_without_values_are_loaded_as_such() -> None:
    parameter = tagi.GaussianParameter((3,))
    parameter.load_state_dict(tagi.GaussianParameter((3,), device="meta").state_dict(), assign=True)
    assert parameter.var.is_meta


def test_set_takes_numbers_and_tensors_and_returns_the_parameter() -> None:
    parameter = tagi.GaussianParameter((2, 2))
    assert parameter.set_(1.5, torch.tensor([[1.0, 2.0], [3.0, 4.0]])) is parameter
    assert parameter.mean.tolist() == [[1.5, 1.5], [1.5, 1.5]]
    assert parameter.var.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert parameter.mean.requires_grad


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_variance_must_be_positive_and_finite(bad: float) -> None:
    parameter = tagi.GaussianParameter((3,)).set_(1.0, 2.0)
    for var in (bad, torch.tensor([1.0, bad, 2.0])):
        with pytest.raises(ValueError, match=rf"var.*{bad}"):
            parameter.set_(0.0, var)
        assert parameter.mean.tolist() == [1.0, 1.0, 1.0]
        assert parameter.var.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_mean_must_be_finite(bad: float) -> None:
    parameter = tagi.GaussianParameter((3,)).set_(1.0, 2.0)
    with pytest.raises(ValueError, match=rf"mean.*{bad}"):
        parameter.set_(torch.tensor([0.0, bad, 0.0]), 1.0)
    assert parameter.mean.tolist() == [1.0, 1.0, 1.0]


def test_set_with_one_shape_that_does_not_fit_changes_neither() -> None:
    parameter = tagi.GaussianParameter((3,)).set_(1.0, 2.0)
    with pytest.raises((ValueError, RuntimeError)):
        parameter.set_(torch.zeros(3), torch.ones(5))
    assert parameter.mean.tolist() == [1.0, 1.0, 1.0]
    assert parameter.var.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_prior_that_is_none_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=rf"std.*{bad}"):
        tagi.GaussianParameter((3,), bad)
