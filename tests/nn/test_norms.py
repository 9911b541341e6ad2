"""Options of norm layers, each against a computation by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from random_gaussians import random_gaussian
from torchtagi import Gaussian, distributed
from torchtagi import nn as tnn


def batch_statistics(x: Gaussian, correction: int) -> tuple[Tensor, Tensor]:
    """Each channel's mixture mean and variance, one channel at a time."""
    means, variances = [], []
    for channel in range(x.shape[1]):
        m, v = x.mean[:, channel].flatten(), x.variance[:, channel].flatten()
        means.append(m.mean())
        variances.append(((m - m.mean()).square().sum() + v.sum()) / (len(m) - correction))
    return torch.stack(means), torch.stack(variances)


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("momentum", [0.1, 0.3])
def test_running_statistics_copy_the_first_batch_and_mix_in_the_others(correction: int, momentum: float) -> None:
    layer = tnn.BatchNorm2d(2, momentum=momentum, correction=correction, dtype=torch.float64)
    first, second = random_gaussian(4, 2, 3, 3, shift=2.0), random_gaussian(4, 2, 3, 3, seed=1)
    layer(first)
    mean, var = batch_statistics(first, correction)
    torch.testing.assert_close(layer.running_mean, mean)
    torch.testing.assert_close(layer.running_var, var)
    layer(second)
    next_mean, next_var = batch_statistics(second, correction)
    torch.testing.assert_close(layer.running_mean, (1 - momentum) * mean + momentum * next_mean)
    torch.testing.assert_close(layer.running_var, (1 - momentum) * var + momentum * next_var)
    assert layer.num_batches_tracked == 2


def test_running_statistics_without_momentum_are_those_of_all_batches() -> None:
    """torch's momentum=None."""
    layer = tnn.BatchNorm1d(2, momentum=None, dtype=torch.float64)
    batches = [random_gaussian(4, 2, seed=seed, shift=seed) for seed in range(3)]
    for batch in batches:
        layer(batch)
    means, variances = zip(*(batch_statistics(batch, 0) for batch in batches), strict=True)
    torch.testing.assert_close(layer.running_mean, torch.stack(means).mean(0))
    torch.testing.assert_close(layer.running_var, torch.stack(variances).mean(0))


def test_running_statistics_survive_in_the_state_dict() -> None:
    layer = tnn.BatchNorm1d(3, dtype=torch.float64)
    layer(random_gaussian(6, 3, shift=1.0))
    other = tnn.BatchNorm1d(3, dtype=torch.float64)
    other.load_state_dict(copy.deepcopy(layer.state_dict()))
    x = random_gaussian(6, 3, seed=1)
    assert torch.equal(other.eval()(x).mean, layer.eval()(x).mean)
    other.train()(x)
    mean, _ = batch_statistics(x, 0)
    torch.testing.assert_close(
        other.running_mean, 0.9 * layer.running_mean + 0.1 * mean, msg="the count of batches was not restored"
    )


def test_eval_uses_running_statistics_and_leaves_them() -> None:
    layer = tnn.BatchNorm2d(2, affine=False, dtype=torch.float64)
    layer(random_gaussian(4, 2, 3, 3, shift=2.0))
    kept = copy.deepcopy(layer.state_dict())
    x = random_gaussian(5, 2, 3, 3, seed=1)
    out = layer.eval()(x)
    std = (kept["running_var"] + 1e-5).sqrt().view(2, 1, 1)
    torch.testing.assert_close(out.mean, (x.mean - kept["running_mean"].view(2, 1, 1)) / std)
    torch.testing.assert_close(out.var, x.var / std.square())
    assert all(torch.equal(tensor, kept[name]) for name, tensor in layer.state_dict().items())


def test_train_uses_the_batch_and_eval_does_not() -> None:
    """In training each batch is centred on itself, whatever came before."""
    layer = tnn.BatchNorm2d(2, affine=False, dtype=torch.float64)
    layer(random_gaussian(4, 2, 3, 3, shift=5.0))
    out = layer(random_gaussian(4, 2, 3, 3, seed=1))
    torch.testing.assert_close(out.mean.mean((0, 2, 3)), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)
    total = (out.mean.square() + out.var).mean((0, 2, 3))
    torch.testing.assert_close(total, torch.ones(2, dtype=torch.float64), rtol=1e-4, atol=0)


def test_use_running_normalises_by_the_running_statistics_in_training_too() -> None:
    """After this batch is mixed in; the first batch is therefore normalised by itself."""
    layer = tnn.BatchNorm2d(2, affine=False, use_running=True, dtype=torch.float64)
    usual = tnn.BatchNorm2d(2, affine=False, dtype=torch.float64)
    first, second = random_gaussian(4, 2, 3, 3, shift=2.0), random_gaussian(4, 2, 3, 3, seed=1)
    torch.testing.assert_close(layer(first).mean, usual(first).mean)
    out = layer(second)
    usual(second)
    running_mean, running_var = usual.running_mean.view(2, 1, 1), usual.running_var.view(2, 1, 1)
    torch.testing.assert_close(out.mean, (second.mean - running_mean) / (running_var + 1e-5).sqrt())
    torch.testing.assert_close(out.var, second.var / (running_var + 1e-5))
    assert torch.equal(layer.running_mean, usual.running_mean)


def test_messages_with_use_running_hold_the_statistics_constant() -> None:
    layer = tnn.BatchNorm1d(2, use_running=True, affine=False, dtype=torch.float64)
    layer(random_gaussian(4, 2, shift=2.0))
    x = random_gaussian(4, 2, seed=1).requires_grad_()
    out = layer(x)
    dmean, dvar = torch.randn(2, 4, 2, dtype=torch.float64)
    torch.autograd.backward([out.mean, out.var], [dmean, dvar])
    torch.testing.assert_close(x.mean.grad, dmean / (layer.running_var + 1e-5).sqrt())
    torch.testing.assert_close(x.var.grad, dvar / (layer.running_var + 1e-5))


def test_untracked_batch_norm_has_no_statistics() -> None:
    layer = tnn.BatchNorm2d(2, affine=False, track_running_stats=False)
    assert list(layer.state_dict()) == ["variance_share"]
    x = random_gaussian(3, 2, 2, 2).to(torch.float32)
    assert torch.equal(layer(x).mean, layer.eval()(x).mean)


def test_a_single_unit_does_not_divide_by_zero() -> None:
    """One sample of one pixel with correction 1 has no degrees of freedom left; its own variance remains."""
    layer = tnn.BatchNorm1d(2, affine=False, correction=1, use_running=True, dtype=torch.float64)
    out = layer(random_gaussian(1, 2))
    torch.testing.assert_close(out.mean, torch.zeros(1, 2, dtype=torch.float64))
    torch.testing.assert_close(out.var, torch.ones(1, 2, dtype=torch.float64), rtol=1e-4, atol=0)
    certain = layer(Gaussian(torch.ones(1, 2, dtype=torch.float64)))
    assert certain.mean.isfinite().all()


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 2), (6, 3, 2, 2)])
@pytest.mark.parametrize("correction", [0, 1])
def test_sync_shares_the_statistics_of_all_processes(
    shape: tuple[int, ...], correction: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two unequal halves of a batch, gathered, have the whole batch's statistics."""
    whole = random_gaussian(*shape)
    kind = tnn.BatchNorm2d if len(shape) == 4 else tnn.BatchNorm1d
    halves = [whole[:2], whole[2:]]
    sent: list[Tensor] = []

    class Two(distributed.Group):
        def stacked(self, mine: Tensor) -> Tensor:
            sent.append(mine.clone())
            return torch.stack(sent if len(sent) == 2 else [mine, mine])

    monkeypatch.setattr(distributed, "everybody", lambda: Two(None, 1, 2, torch.device("cpu")))
    layer = kind(3, affine=False, sync=True, correction=correction, dtype=torch.float64)
    layer(halves[0])
    layer.num_batches_tracked.zero_()
    second = layer(halves[1])
    mean, var = batch_statistics(whole, correction)
    torch.testing.assert_close(layer.running_mean, mean)
    torch.testing.assert_close(layer.running_var, var)
    alone = kind(3, affine=False, correction=correction, dtype=torch.float64)(whole)
    torch.testing.assert_close(second.mean, alone.mean[2:])
    torch.testing.assert_close(second.var, alone.var[2:])


@pytest.mark.parametrize(
    ("layer", "units"),
    [
        (lambda: tnn.LayerNorm(5), 5),
        (lambda: tnn.LayerNorm((2, 3)), 6),
        (lambda: tnn.BatchNorm1d(7), 7),
        (lambda: tnn.BatchNorm2d(4), 4),
    ],
)
def test_prior_of_a_norms_affine_part(layer: object, units: int) -> None:
    """γ ~ N(1, 1/units), β ~ N(0, 1/units): the authors' prior, as recorded in the vectors."""
    built = layer()
    assert torch.equal(built.weight.mean, torch.ones_like(built.weight.mean))
    assert torch.equal(built.bias.mean, torch.zeros_like(built.bias.mean))
    for part in (built.weight, built.bias):
        torch.testing.assert_close(part.var.detach(), torch.full_like(part.var, 1 / units))


@pytest.mark.parametrize("correction", [0, 1])
def test_layer_norm_divisor(correction: int) -> None:
    """Each sample by itself: (Σ v + Σ (m − μ)²)/(A − correction) becomes 1 − eps/σ²."""
    x = random_gaussian(3, 4)
    out = tnn.LayerNorm(4, 1e-12, False, correction=correction, dtype=torch.float64)(x)
    torch.testing.assert_close(out.mean.sum(1), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)
    total = (out.mean.square() + out.var).sum(1) / (4 - correction)
    torch.testing.assert_close(total, torch.ones(3, dtype=torch.float64))
