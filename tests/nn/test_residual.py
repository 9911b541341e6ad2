"""A body beside a shortcut: the moments of a sum, and messages that reach both branches and their input."""

import pytest
import torch
from torch import nn

from oracles import assert_moments_of_draws
from random_gaussians import random_gaussian
from torchtagi import Gaussian
from torchtagi import nn as tnn


def linear(seed: int) -> tnn.Linear:
    torch.manual_seed(seed)
    return tnn.Linear(4, 4, dtype=torch.float64)


@pytest.mark.parametrize("own_shortcut", [False, True], ids=["straight", "own"])
def test_moments_are_those_of_a_sum_of_independent_branches(own_shortcut: bool) -> None:
    body, shortcut = linear(0), linear(1) if own_shortcut else None
    x = random_gaussian(3, 4)
    out = tnn.Residual(body, shortcut)(x)
    one, other = body(x), x if shortcut is None else shortcut(x)
    torch.testing.assert_close(out.mean, one.mean + other.mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(out.var, one.var + other.var, rtol=1e-12, atol=0)
    draws = [
        part.detach().sample(40_000, generator=torch.Generator().manual_seed(seed))
        for seed, part in enumerate((one, other))
    ]
    assert_moments_of_draws(out.detach(), draws[0] + draws[1])


def test_messages_reach_both_branches_and_add_up_at_the_input() -> None:
    body, shortcut = linear(0), linear(1)
    x = random_gaussian(3, 4).requires_grad_()
    out = tnn.Residual(body, shortcut)(x)
    dmean, dvar = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.autograd.backward([out.mean, out.var], [dmean, dvar])
    for branch in (body, shortcut):
        torch.testing.assert_close(branch.weight.mean.grad, dmean.t() @ x.mean.detach())
        torch.testing.assert_close(branch.weight.var.grad, dvar.t() @ x.mean.detach().square())
        torch.testing.assert_close(branch.bias.mean.grad, dmean.sum(0))
        torch.testing.assert_close(branch.bias.var.grad, dvar.sum(0))
    weights = [branch.weight.mean.detach() for branch in (body, shortcut)]
    torch.testing.assert_close(x.mean.grad, sum(dmean @ weight for weight in weights))
    torch.testing.assert_close(x.var.grad, sum(dvar @ weight.square() for weight in weights))


def test_the_straight_shortcut_passes_the_message_on() -> None:
    body = linear(0)
    x = random_gaussian(3, 4).requires_grad_()
    out = tnn.Residual(body)(x)
    dmean, dvar = torch.randn(2, 3, 4, dtype=torch.float64)
    torch.autograd.backward([out.mean, out.var], [dmean, dvar])
    weight = body.weight.mean.detach()
    torch.testing.assert_close(x.mean.grad, dmean + dmean @ weight)
    torch.testing.assert_close(x.var.grad, dvar + dvar @ weight.square())


def test_a_tensor_is_a_certain_input_of_both_branches() -> None:
    body, x = linear(0), random_gaussian(3, 4).mean
    plain, certain = tnn.Residual(body)(x), tnn.Residual(body)(Gaussian(x))
    assert torch.equal(plain.mean, certain.mean)
    assert torch.equal(plain.var, certain.var)


def test_ordinary_layers_make_an_ordinary_block() -> None:
    torch.manual_seed(0)
    body, x = nn.Linear(4, 4), torch.randn(3, 4)
    block = tnn.Residual(body, nn.Identity())
    assert torch.equal(block(x), body(x) + x)
