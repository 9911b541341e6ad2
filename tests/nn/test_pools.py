"""Max pooling that draws, against brute force."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from oracles import chance_of_largest
from random_gaussians import random_gaussian
from torchtagi import Gaussian
from torchtagi import nn as tnn


def test_stochastic_pooling_draws_an_entry_by_its_chance_of_being_the_largest() -> None:
    """Frequencies against the integral, within six standard errors; mean and variance are the entry's own."""
    torch.manual_seed(0)
    mean = torch.tensor([0.0, 0.5, -0.5, 0.2], dtype=torch.float64)
    std = torch.tensor([1.0, 0.3, 2.0, 0.7], dtype=torch.float64)
    chances = chance_of_largest(mean, std)
    assert chances.sum() == pytest.approx(1, abs=1e-6)
    copies = 20_000
    x = Gaussian(mean, std.square()).map(lambda t: t.view(1, 1, 2, 2).expand(copies, 1, 2, 2))
    out = tnn.MaxPool2d(2, stochastic=True)(x)
    for i in range(4):
        drawn = out.mean == mean[i]
        error = math.sqrt(chances[i] * (1 - chances[i]) / copies)
        assert abs(drawn.double().mean() - chances[i]) < 6 * error
        assert (out.var[drawn] == std[i].square()).all()


def test_stochastic_pooling_sends_the_message_to_the_entry_it_drew() -> None:
    torch.manual_seed(1)
    x = random_gaussian(2, 2, 4, 4).requires_grad_()
    out = tnn.MaxPool2d(2, stochastic=True)(x)
    dmean, dvar = torch.randn(2, *out.shape, dtype=torch.float64)
    torch.autograd.backward([out.mean, out.var], [dmean, dvar])
    picked = x.mean.unsqueeze(-1) == out.mean.repeat_interleave(2, 2).repeat_interleave(2, 3).unsqueeze(-1)
    picked = picked.squeeze(-1)
    assert picked.sum() == out.mean.numel()
    spread = dmean.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(x.mean.grad, torch.where(picked, spread, 0.0))
    spread = dvar.repeat_interleave(2, 2).repeat_interleave(2, 3)
    torch.testing.assert_close(x.var.grad, torch.where(picked, spread, 0.0))


def test_stochastic_pooling_differs_between_passes_only_in_training() -> None:
    torch.manual_seed(2)
    layer, x = tnn.MaxPool2d(2, stochastic=True), random_gaussian(4, 4, 8, 8)
    assert not torch.equal(layer(x).mean, layer(x).mean)
    layer.eval()
    assert torch.equal(layer(x).mean, layer(x).mean)


def test_eval_takes_the_likeliest_entry_not_the_largest_mean() -> None:
    """Two nearly certain entries share their chance; a wide one of smaller mean has more than either."""
    mean = torch.tensor([[0.2, 0.0], [0.2, -3.0]], dtype=torch.float64).view(1, 1, 2, 2)
    std = torch.tensor([[0.05, 2.0], [0.05, 0.1]], dtype=torch.float64).view(1, 1, 2, 2)
    assert chance_of_largest(mean.flatten(), std.flatten()).argmax() == 1
    out = tnn.MaxPool2d(2, stochastic=True).eval()(Gaussian(mean, std.square()))
    assert out.mean.item() == 0.0
    assert out.var.item() == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("behind_relu", "widest", "regret_bound"),
    [
        (False, 2.0, 0.01),
        # a quadrature of twelve nodes loses accuracy where standard deviations differ by much
        (False, 10.0, 0.15),
        (True, 2.0, 0.1),
    ],
)
def test_evals_choice_is_among_the_likeliest(behind_relu: bool, widest: float, regret_bound: float) -> None:
    """Its chance of being the largest, by a fine integral, is nearly the window's greatest."""
    generator = torch.Generator().manual_seed(5)
    mean = torch.randn(300, 4, generator=generator, dtype=torch.float64)
    span = math.log(widest)
    std = torch.exp(span * (2 * torch.rand(300, 4, generator=generator, dtype=torch.float64) - 1))
    if behind_relu:
        mean, std = mean.clamp_min(0), torch.where(mean < 0, 0.0, std)
    x = Gaussian(mean, std.square()).map(lambda t: t.view(300, 1, 2, 2))
    out = tnn.MaxPool2d(2, stochastic=True).eval()(x)
    chances = chance_of_largest(mean, std.clamp_min(1e-9), points=4001)
    chosen = (mean == out.mean.view(300, 1)).double().argmax(1, keepdim=True)
    regret = chances.amax(1) - chances.gather(1, chosen)[:, 0]
    assert regret.max() < regret_bound
    assert (regret < 1e-6).double().mean() > 0.8


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (3, 2), "stride": (1, 2), "padding": (1, 0)},
        {"kernel_size": 2, "dilation": (2, 3)},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        {"kernel_size": (2, 3), "stride": (3, 2), "padding": (1, 1), "dilation": (2, 1), "ceil_mode": True},
    ],
    ids=str,
)
def test_likeliest_entry_is_the_largest_when_variances_vanish(options: dict[str, object]) -> None:
    """The limit in which stochastic pooling is torch's own, for every geometry."""
    x = random_gaussian(2, 3, 7, 8)
    nearly_certain = Gaussian(x.mean, x.var * 1e-12)
    out = tnn.MaxPool2d(stochastic=True, **options).eval()(nearly_certain)
    torch.testing.assert_close(out.mean, F.max_pool2d(x.mean, **options), rtol=0, atol=0)
    certain = tnn.MaxPool2d(stochastic=True, **options)(Gaussian(x.mean))
    torch.testing.assert_close(certain.mean, out.mean, rtol=0, atol=0)
