"""Padding by hand, and as torch has it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from random_gaussians import random_gaussian
from torchtagi import nn as tnn


def test_zero_pad_is_certain_zeros_on_the_sides_named() -> None:
    """(left, right, top, bottom), as in torch."""
    x = random_gaussian(1, 1, 2, 3)
    out = tnn.ZeroPad2d((1, 2, 3, 0))(x)
    assert out.shape == (1, 1, 5, 6)
    for padded, inner in ((out.mean, x.mean), (out.var, x.var)):
        assert torch.equal(padded[:, :, 3:, 1:4], inner)
        assert padded.count_nonzero() == 6
    assert tnn.ZeroPad2d(1)(x).shape == (1, 1, 4, 5)
    assert tnn.ZeroPad2d(1).padding == (1, 1, 1, 1)


def test_negative_padding_crops() -> None:
    x = random_gaussian(1, 2, 4, 5).requires_grad_()
    out = tnn.ZeroPad2d((0, -1, -2, 0))(x)
    assert torch.equal(out.mean, x.mean[:, :, 2:, :-1])
    assert torch.equal(out.var, x.var[:, :, 2:, :-1])
    torch.autograd.backward([out.mean, out.var], [torch.ones_like(out.mean), -torch.ones_like(out.var)])
    assert x.mean.grad[:, :, :2].count_nonzero() == x.mean.grad[..., -1].count_nonzero() == 0
    assert (x.var.grad[:, :, 2:, :-1] == -1).all()


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), ((5, 3), 1), (3, (2, 1)), (2, 2)])
def test_same_padding_keeps_the_size_as_torch_does(kernel: object, dilation: object) -> None:
    ours = tnn.Conv2d(2, 3, kernel, padding="same", dilation=dilation)
    theirs = torch_twin(ours, nn.Conv2d(2, 3, kernel, padding="same", dilation=dilation))
    x = torch.randn(2, 2, 6, 7)
    torch.testing.assert_close(ours(x).mean, theirs(x))
    assert ours(x).shape[2:] == x.shape[2:]


def test_valid_padding_is_none() -> None:
    assert tnn.Conv2d(1, 1, 3, padding="valid").padding == (0, 0)
    assert tnn.Conv2d(1, 1, 3, padding="valid")(torch.ones(1, 1, 5, 4)).shape == (1, 1, 3, 2)


def torch_twin(ours: nn.Module, theirs: nn.Module) -> nn.Module:
    """torch's own layer with our weights' means."""
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.mean)
        theirs.bias.copy_(ours.bias.mean)
    return theirs
