"""The pair that flows: construction, sums and scales, sampling, and the message an input asks for."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.utils import _pytree as pytree

import torchtagi as tagi
from oracles import assert_moments_of_draws, condition
from random_gaussians import random_gaussian
from torchtagi import Gaussian
from torchtagi.gaussian import as_gaussian

DRAWS = 40_000


def draws(x: Gaussian, seed: int) -> Tensor:
    return x.sample(DRAWS, generator=torch.Generator().manual_seed(100 + seed))


def assert_same(one: Gaussian, other: Gaussian) -> None:
    torch.testing.assert_close(one.mean, other.mean)
    torch.testing.assert_close(one.variance, other.variance)


# ---- sums and scales -----------------------------------------------------------------------------------------


def test_samples_have_the_moments() -> None:
    """Oracle 1 for the sampler itself."""
    x = random_gaussian(3, 2)
    drawn = draws(x, 0)
    assert drawn.shape == (DRAWS, 3, 2)
    assert_moments_of_draws(x, drawn)
    assert x.sample().shape == (3, 2)
    assert x.sample(4, 5).shape == (4, 5, 3, 2)
    assert stats.kstest(((drawn - x.mean) / x.std).flatten()[:4000].numpy(), "norm").pvalue > 1e-4


def test_sum_of_independent_gaussians() -> None:
    """Oracle 1: means add, variances add, with broadcasting."""
    x, y = random_gaussian(3, 2, seed=1), random_gaussian(2, seed=2)
    assert_moments_of_draws(x + y, draws(x, 1) + draws(y, 2)[:, None])
    assert_moments_of_draws(y + x, draws(x, 1) + draws(y, 2)[:, None])


def test_scale_squares_the_factor_for_the_variance() -> None:
    """Oracle 1 for a known factor, from either side."""
    x = random_gaussian(3, 2)
    assert_moments_of_draws(x * -2.5, -2.5 * draws(x, 3))
    assert_same(x * -2.5, -2.5 * x)


def test_a_shift_leaves_the_variance() -> None:
    x = random_gaussian(3, 2)
    for shifted in (x + 1.5, 1.5 + x, x + torch.full((3, 2), 1.5, dtype=torch.float64)):
        torch.testing.assert_close(shifted.mean, x.mean + 1.5)
        torch.testing.assert_close(shifted.var, x.var)


def test_tensor_plus_gaussian_is_gaussian_plus_tensor() -> None:
    x, shift = random_gaussian(3, 2), torch.randn(3, 2, dtype=torch.float64)
    assert_same(shift + x, x + shift)
    assert isinstance(shift + x, Gaussian)


def test_sum_builtin_adds_branches() -> None:
    parts = [random_gaussian(4, seed=seed) for seed in range(3)]
    total = sum(parts)
    torch.testing.assert_close(total.mean, parts[0].mean + parts[1].mean + parts[2].mean)
    torch.testing.assert_close(total.var, parts[0].var + parts[1].var + parts[2].var)


@pytest.mark.parametrize("shapes", [((3,), (3,)), ((3,), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3))])
def test_a_sum_with_a_certain_part_keeps_mean_and_variance_of_one_shape(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    """Whatever broadcasts, mean and variance of the sum have its shape: certain Gaussian or plain tensor."""
    x, known = random_gaussian(*shapes[0]), torch.randn(shapes[1], dtype=torch.float64)
    for total in (x + Gaussian(known), Gaussian(known) + x, x + known, known + x):
        torch.testing.assert_close(total.mean, x.mean + known)
        torch.testing.assert_close(total.var, x.var.expand(total.mean.shape))


def test_certain_plus_certain_stays_certain() -> None:
    total = Gaussian(torch.ones(2)) + Gaussian(torch.ones(2))
    assert total.var is None
    assert (Gaussian(torch.ones(2)) * 3.0).var is None


def test_product_of_two_gaussians_is_refused() -> None:
    """It is not a Gaussian; a scale is a number."""
    for x in (random_gaussian(2), Gaussian(torch.ones(2))):
        with pytest.raises(TypeError):
            x * random_gaussian(2)


def test_messages_through_sum_and_scale() -> None:
    """Oracle 2: a sum copies its message to both parts, a factor enters as c and c²."""
    x, y = random_gaussian(3, seed=1).requires_grad_(), random_gaussian(2, 3, seed=2).requires_grad_()
    out = x * 3.0 + y
    dmean, dvar = torch.randn(2, 2, 3, dtype=torch.float64)
    torch.autograd.backward([out.mean, out.var], [dmean, dvar])
    torch.testing.assert_close(x.mean.grad, 3 * dmean.sum(0))
    torch.testing.assert_close(x.var.grad, 9 * dvar.sum(0))
    torch.testing.assert_close(y.mean.grad, dmean)
    torch.testing.assert_close(y.var.grad, dvar)


# ---- shape ---------------------------------------------------------------------------------------------------


def test_rearrangements_act_on_mean_and_variance_alike() -> None:
    x = random_gaussian(2, 3, 4)
    for rearranged, function in (
        (x[1], lambda t: t[1]),
        (x[..., 0::2], lambda t: t[..., 0::2]),
        (x.reshape(6, 4), lambda t: t.reshape(6, 4)),
        (x.flatten(1), lambda t: t.flatten(1)),
        (x.unflatten(2, (2, 2)), lambda t: t.unflatten(2, (2, 2))),
        (x.permute(2, 0, 1), lambda t: t.permute(2, 0, 1)),
        (x.to(torch.float32), lambda t: t.float()),
    ):
        assert torch.equal(rearranged.mean, function(x.mean))
        assert torch.equal(rearranged.var, function(x.var))
        certain = Gaussian(x.mean).map(function)
        assert torch.equal(certain.mean, rearranged.mean)
        assert certain.var is None


def test_shape_dtype_device_length() -> None:
    x = random_gaussian(2, 3)
    assert (x.shape, x.ndim, len(x), x.dtype, x.device) == ((2, 3), 2, 2, torch.float64, torch.device("cpu"))
    assert "mean=" in repr(x)
    assert "var=" in repr(x)


def test_cat_gives_certain_parts_zero_variance() -> None:
    x, y = random_gaussian(2, 3), random_gaussian(1, 3, seed=1)
    both = tagi.cat([x, Gaussian(y.mean)])
    assert torch.equal(both.mean, torch.cat([x.mean, y.mean]))
    assert torch.equal(both.var, torch.cat([x.var, torch.zeros_like(y.mean)]))
    assert tagi.cat([Gaussian(x.mean), Gaussian(y.mean)]).var is None
    beside = tagi.cat([x, x], dim=1)
    assert torch.equal(beside.var, torch.cat([x.var, x.var], 1))


def test_pytree_sees_every_tensor() -> None:
    x = random_gaussian(2)
    leaves, spec = pytree.tree_flatten({"out": x})
    assert all(one is other for one, other in zip(leaves, [x.mean, x.var, None], strict=True))
    again = pytree.tree_unflatten([leaf if leaf is None else leaf * 2 for leaf in leaves], spec)["out"]
    torch.testing.assert_close(again.var, 2 * x.var)
    mean, var = x.mean.clone().requires_grad_(), x.var.clone().requires_grad_()
    leaves, spec = pytree.tree_flatten(Gaussian(mean, var))
    assert leaves[2] is mean
    assert leaves[3] is var
    again = pytree.tree_unflatten(leaves, spec)
    assert again.plain.mean is mean
    assert again.plain.var is var


def test_its_fields_can_be_replaced_and_keep_their_messages() -> None:
    """FSDP does so with what passes between the layers: what carried messages carries them on."""
    x = random_gaussian(2, 3).requires_grad_()
    known = torch.ones(3, dtype=torch.float64, requires_grad=True)
    for z, plain in ((x * 2, False), (x * known, True)):
        again = dataclasses.replace(z, mean=z.mean.view_as(z.mean), var=z.var.view_as(z.var))
        assert (again.plain is not None) == plain
        assert again.plain is z.plain
        dmean, dvar = torch.randn(2, 2, 3, dtype=torch.float64)
        factor = 1.0 if plain else 2.0
        x.mean.grad = x.var.grad = None
        torch.autograd.backward([again.mean, again.var], [dmean, dvar])
        torch.testing.assert_close(x.mean.grad, factor * dmean)
        torch.testing.assert_close(x.var.grad, factor**2 * dvar)


# ---- use -----------------------------------------------------------------------------------------------------


def test_log_prob_and_interval_match_scipy() -> None:
    x = random_gaussian(4)
    value = torch.linspace(-1, 2, 4, dtype=torch.float64)
    normal = stats.norm(x.mean.numpy(), x.var.sqrt().numpy())
    np.testing.assert_allclose(x.log_prob(value).numpy(), normal.logpdf(value.numpy()))
    for level in (0.5, 0.95, 0.999):
        for bound, expected in zip(x.interval(level), normal.interval(level), strict=True):
            np.testing.assert_allclose(bound.numpy(), expected)
    for bound, expected in zip(x.interval(), normal.interval(0.95), strict=True):
        np.testing.assert_allclose(bound.numpy(), expected)


def test_a_certain_gaussian_has_zero_spread() -> None:
    x = Gaussian(torch.ones(2))
    assert torch.equal(x.variance, torch.zeros(2))
    assert torch.equal(x.sample(3), torch.ones(3, 2))
    assert torch.equal(x.interval()[0], x.mean)


# ---- hidden-state inference ----------------------------------------------------------------------------------


def test_posterior_of_a_directly_observed_unit_is_bayes_rule() -> None:
    """Oracle 3 without a network: y = x + e."""
    x = random_gaussian(1, 4).requires_grad_()
    target = torch.tensor([[1.0, -2.0, 0.5, 3.0]], dtype=torch.float64)
    tagi.Regression(0.5).double()(x, target).backward()
    mean, var = condition(
        x.mean.detach().numpy()[0],
        x.var.detach().numpy()[0],
        np.eye(4),
        x.mean.detach().numpy()[0],
        np.diag(x.var.detach().numpy()[0] + 0.25),
        target.numpy()[0],
    )
    posterior = x.posterior()
    np.testing.assert_allclose(posterior.mean.numpy()[0], mean)
    np.testing.assert_allclose(posterior.var.numpy()[0], var)
    assert not posterior.mean.requires_grad
    assert not posterior.var.requires_grad


def test_posterior_stays_positive_and_below_the_prior_under_many_messages() -> None:
    """A unit with messages from many outputs at once; their sum alone would make its variance negative."""
    torch.manual_seed(0)
    layer = tagi.nn.Linear(2, 50)
    x = Gaussian(torch.zeros(1, 2), torch.ones(1, 2)).requires_grad_()
    tagi.Regression(0.1)(layer(x), torch.zeros(1, 50)).backward()
    assert (x.var.detach() * x.var.grad > 1).all(), "the example is not hard enough"
    posterior = x.posterior()
    assert (posterior.var > 0).all()
    assert (posterior.var < x.var).all()


def test_messages_of_two_observations_add_up() -> None:
    x = random_gaussian(1, 3).requires_grad_()
    once = []
    for value in (1.0, -1.0):
        tagi.Regression(1.0).double()(x, torch.full((1, 3), value, dtype=torch.float64)).backward()
        once.append((x.mean.grad.clone(), x.var.grad.clone()))
    torch.testing.assert_close(once[1][0], (x.mean - 1 + x.mean + 1).detach() / (x.var.detach() + 1))
    torch.testing.assert_close(once[1][1], 2 / (x.var.detach() + 1))


@pytest.mark.parametrize("asked", [False, True], ids=["not-asked", "no-backward"])
def test_posterior_without_a_message_says_what_to_do(asked: bool) -> None:
    x = random_gaussian(2)
    if asked:
        x.requires_grad_()
    with pytest.raises(RuntimeError, match=r"requires_grad_\(\).*backward\(\)"):
        x.posterior()


# ---- construction --------------------------------------------------------------------------------------------


def test_construction_keeps_the_tensors_themselves() -> None:
    mean, var = torch.ones(2), torch.ones(2)
    x = Gaussian(mean, var)
    assert x.mean is mean
    assert x.var is var
    assert as_gaussian(x) is x
    assert as_gaussian(mean).mean is mean
    assert as_gaussian(mean).var is None


def test_large_finite_values_whose_sum_overflows_are_accepted() -> None:
    """The finiteness check reduces to a sum first; an overflow of that sum is no reason to refuse."""
    huge = torch.full((4,), 3e38)
    assert torch.equal(Gaussian(huge).mean, huge)


@pytest.mark.parametrize(
    ("mean", "var", "error", "message"),
    [
        ([1.0, 2.0], None, TypeError, r"mean must be a tensor.*list"),
        (torch.ones(2, dtype=torch.long), None, TypeError, r"mean must have a floating dtype.*int64"),
        (torch.ones(2, dtype=torch.complex64), None, TypeError, r"mean must have a floating dtype.*complex64"),
        (torch.ones(0, 3), None, ValueError, r"mean is empty.*\(0, 3\)"),
        (torch.tensor([1.0, math.nan]), None, ValueError, r"mean must be finite, got nan at index \[1\]"),
        (torch.tensor([[1.0, -math.inf]]), None, ValueError, r"mean must be finite, got -inf at index \[0, 1\]"),
        (torch.tensor([math.inf, -math.inf]), None, ValueError, r"mean must be finite, got inf at index \[0\]"),
        (torch.ones(2), torch.ones(3), ValueError, r"var must have the shape of mean, \(2,\), got \(3,\)"),
        (torch.ones(2), torch.ones(2).double(), TypeError, r"var is torch.float64.*mean is torch.float32"),
        (torch.ones(2), torch.ones(2).long(), TypeError, r"var must have a floating dtype.*int64"),
        (torch.ones(2), torch.tensor([1.0, -0.25]), ValueError, r"var must not be negative, got -0.25"),
        (torch.ones(2), torch.tensor([1.0, math.nan]), ValueError, r"var must be finite, got nan at index \[1\]"),
        (torch.ones(2), torch.tensor([math.inf, 1.0]), ValueError, r"var must be finite, got inf at index \[0\]"),
        (torch.ones(2), 1.0, TypeError, r"var must be a tensor.*float"),
    ],
)
def test_bad_gaussian_is_refused(mean: object, var: object, error: type[Exception], message: str) -> None:
    """The error names the argument and the value."""
    with pytest.raises(error, match=message):
        Gaussian(mean, var)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 2.0, math.nan])
def test_bad_level_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match=f"level must lie between 0 and 1, got {level}"):
        random_gaussian(2).interval(level)
