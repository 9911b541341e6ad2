"""What single options of layers do, each against a computation by hand or by brute force."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchtagi as tagi
from cases import CASES, Case, gaussian_parameters
from oracles import chance_of_largest, piecewise_moments
from torchtagi import Gaussian, GaussianParameter
from torchtagi import nn as tnn


def random_gaussian(*shape: int, seed: int = 0, shift: float = 0.0) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = shift + torch.randn(shape, generator=generator, dtype=torch.float64)
    return Gaussian(mean, 0.2 + torch.rand(shape, generator=generator, dtype=torch.float64))


def batch_statistics(x: Gaussian, correction: int) -> tuple[Tensor, Tensor]:
    """Each channel's mixture mean and variance, one channel at a time."""
    means, variances = [], []
    for channel in range(x.shape[1]):
        m, v = x.mean[:, channel].flatten(), x.variance[:, channel].flatten()
        means.append(m.mean())
        variances.append(((m - m.mean()).square().sum() + v.sum()) / (len(m) - correction))
    return torch.stack(means), torch.stack(variances)


# ---- batch norm ----------------------------------------------------------------------------------------------


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


def test_untracked_batch_norm_has_no_state() -> None:
    layer = tnn.BatchNorm2d(2, affine=False, track_running_stats=False)
    assert not layer.state_dict()
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

    def collect(everyones: list[Tensor], mine: Tensor) -> None:
        sent.append(mine.clone())
        for slot, statistics in zip(everyones, sent if len(sent) == 2 else [mine, mine], strict=True):
            slot.copy_(statistics)

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda *_: 2)
    monkeypatch.setattr(torch.distributed, "all_gather", collect)
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


# ---- layer norm ----------------------------------------------------------------------------------------------


def test_channel_affine_has_one_pair_for_each_channel() -> None:
    by_channel = tnn.LayerNorm((3, 4, 5), channel_affine=True)
    by_unit = tnn.LayerNorm((3, 4, 5))
    assert by_channel.weight.mean.numel() == by_channel.bias.var.numel() == 3
    assert by_unit.weight.mean.shape == by_unit.bias.var.shape == (3, 4, 5)
    x = random_gaussian(2, 3, 4, 5).to(torch.float32)
    with torch.no_grad():
        by_channel.weight.mean.copy_(torch.tensor([1.0, 2.0, 3.0]).view_as(by_channel.weight.mean))
        plain = tnn.LayerNorm((3, 4, 5), elementwise_affine=False)(x)
        ratio = by_channel(x).mean / plain.mean
    torch.testing.assert_close(ratio, torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1).expand_as(ratio))


@pytest.mark.parametrize(
    ("layer", "units"),
    [
        (lambda: tnn.LayerNorm(5), 5),
        (lambda: tnn.LayerNorm((2, 3)), 6),
        (lambda: tnn.LayerNorm((2, 3, 4), channel_affine=True), 2),
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


# ---- stochastic max pooling ----------------------------------------------------------------------------------


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


# ---- padding -------------------------------------------------------------------------------------------------


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


# ---- priors --------------------------------------------------------------------------------------------------

LARGE = {
    "linear": (lambda **options: tnn.Linear(300, 200, **options), 300, 200),
    "conv": (lambda **options: tnn.Conv2d(24, 40, (5, 3), **options), 24 * 15, 40 * 15),
    "conv-groups": (lambda **options: tnn.Conv2d(32, 64, 5, groups=4, **options), 8 * 25, 16 * 25),
    "transposed": (lambda **options: tnn.ConvTranspose2d(24, 40, (3, 4), **options), 24 * 12, 40 * 12),
    "transposed-groups": (lambda **options: tnn.ConvTranspose2d(32, 64, 5, groups=4, **options), 8 * 25, 16 * 25),
}
PRIOR_VARIANCE = {
    "he": lambda fan_in, fan_out: 1 / fan_in,
    "kaiming": lambda fan_in, fan_out: 2 / fan_in,
    "xavier": lambda fan_in, fan_out: 2 / (fan_in + fan_out),
}


@pytest.mark.parametrize("prior", PRIOR_VARIANCE)
@pytest.mark.parametrize("kind", LARGE)
@pytest.mark.parametrize(("mean_gain", "var_gain"), [(1.0, 1.0), (0.5, 3.0)])
def test_prior_scales(prior: str, kind: str, mean_gain: float, var_gain: float) -> None:
    """Variances exactly, means by their spread; gains multiply standard deviations, not the bias's."""
    torch.manual_seed(0)
    build, fan_in, fan_out = LARGE[kind]
    layer = build(prior=prior, mean_gain=mean_gain, var_gain=var_gain)
    variance = PRIOR_VARIANCE[prior](fan_in, fan_out)
    torch.testing.assert_close(layer.weight.var.detach(), torch.full_like(layer.weight.var, var_gain**2 * variance))
    torch.testing.assert_close(layer.bias.var.detach(), torch.full_like(layer.bias.var, variance))
    means = layer.weight.mean.detach().double()
    spread = mean_gain**2 * variance
    assert means.square().mean().item() == pytest.approx(spread, rel=6 * math.sqrt(2 / means.numel()))
    assert abs(means.mean().item()) < 6 * math.sqrt(spread / means.numel())
    assert layer.bias.mean.detach().square().mean().item() == pytest.approx(variance, rel=1.2)


def test_default_prior_is_the_authors_he() -> None:
    layer = tnn.Linear(8, 2)
    assert layer.prior == "he"
    torch.testing.assert_close(layer.weight.var.detach(), torch.full((2, 8), 1 / 8))


def test_zero_mean_gain_starts_at_zero() -> None:
    layer = tnn.Linear(4, 3, mean_gain=0.0)
    assert not layer.weight.mean.any()
    assert (layer.weight.var > 0).all()


def test_parameter_set_and_reset() -> None:
    torch.manual_seed(0)
    parameter = GaussianParameter((50, 40), 0.5, var_gain=2.0)
    torch.testing.assert_close(parameter.var.detach(), torch.ones(50, 40))
    before = parameter.mean
    assert parameter.set_(3.0, torch.full((50, 40), 0.25)) is parameter
    assert parameter.mean is before
    assert torch.equal(parameter.mean, torch.full((50, 40), 3.0))
    assert torch.equal(parameter.var, torch.full((50, 40), 0.25))
    parameter.reset(0.2, mean_gain=0.5)
    torch.testing.assert_close(parameter.var.detach(), torch.full((50, 40), 0.04))
    assert parameter.mean.detach().std().item() == pytest.approx(0.1, rel=0.1)
    assert set(dict(parameter.named_parameters())) == {"mean", "var"}


@pytest.mark.parametrize(
    "layer", [tnn.Linear, lambda i, o, **k: tnn.Conv2d(i, o, 1, **k), lambda i, o, **k: tnn.LayerNorm(i, **k)]
)
def test_dtype_argument(layer: object) -> None:
    built = layer(3, 3, dtype=torch.float64)
    assert {parameter.dtype for parameter in built.parameters()} == {torch.float64}


# ---- config --------------------------------------------------------------------------------------------------

CONFIGURED = [
    *(case.build for case in CASES.values()),
    lambda: tnn.Linear(3, 2, prior="xavier", mean_gain=0.5, var_gain=2.0),
    lambda: tnn.Conv2d(2, 2, 3, prior="kaiming", mean_gain=0.5, var_gain=2.0),
    lambda: tnn.ConvTranspose2d(2, 2, 3, 2, 1, 1, prior="xavier", mean_gain=0.5, var_gain=2.0, dilation=2),
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
        code = type(layer).__init__.__code__
        names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        expected = set(names) - {"device", "dtype"} if type(layer).__init__ is not nn.Module.__init__ else set()
        assert set(layer.config()) == expected, case.id


# ---- memory format -------------------------------------------------------------------------------------------

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


# ---- activations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "function", "corners"),
    [
        (tnn.MixtureReLU(), lambda z: np.maximum(z, 0), [0.0]),
        (tnn.MixtureTanh(), lambda z: np.clip(z, -1, 1), [-1.0, 1.0]),
        (tnn.MixtureSigmoid(), lambda z: (np.clip(z, -1, 1) + 1) / 2, [-1.0, 1.0]),
        (tnn.LeakyReLU(1.0), lambda z: z, []),
        (tnn.Exp(), np.exp, []),
    ],
    ids=["MixtureReLU", "MixtureTanh", "MixtureSigmoid", "identity", "Exp"],
)
def test_exact_activations_match_quadrature(layer: nn.Module, function: object, corners: list[float]) -> None:
    """Means and standard deviations from a thousandth to three, on both sides of every corner."""
    for std in (1e-3, 0.3, 1.0, 3.0):
        for mean in (-6.0, -3.0, -1.0, -0.5, 0.0, 0.4, 1.0, 2.0, 5.0):
            if isinstance(layer, tnn.Exp) and std > 1:
                continue
            expected_mean, expected_var = piecewise_moments(function, corners, mean, std)
            x = Gaussian(torch.tensor([mean], dtype=torch.float64), torch.tensor([std**2], dtype=torch.float64))
            out = layer(x)
            assert out.mean.item() == pytest.approx(expected_mean, rel=1e-9, abs=1e-8 * std)
            assert out.var.item() == pytest.approx(expected_var, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize(
    ("dtype", "rel_mean", "rel_var"), [(torch.float64, 1e-6, 1e-5), (torch.float32, 1e-3, 1e-2)]
)
def test_mixture_relu_keeps_relative_accuracy_far_below_zero(
    dtype: torch.dtype, rel_mean: float, rel_var: float
) -> None:
    """A nearly dead unit's moments are tiny, not wrong: Remax takes their logarithms."""
    for ratio in (-1.0, -2.0, -3.0, -4.0, -4.9, -5.1, -6.0, -7.0):
        expected_mean, expected_var = piecewise_moments(lambda z: np.maximum(z, 0), [0.0], ratio, 1.0)
        out = tnn.MixtureReLU()(Gaussian(torch.tensor([ratio], dtype=dtype), torch.ones(1, dtype=dtype)))
        assert out.mean.item() == pytest.approx(expected_mean, rel=rel_mean), f"mean at m/σ = {ratio}"
        assert out.var.item() == pytest.approx(expected_var, rel=rel_var), f"variance at m/σ = {ratio}"


def test_mixture_relu_mean_grows_with_the_input() -> None:
    """E[max(0, z)] is increasing in m."""
    mean = torch.linspace(-9, 3, 2401, dtype=torch.float64)
    out = tnn.MixtureReLU()(Gaussian(mean, torch.ones_like(mean)))
    assert (out.mean.diff() > 0).all()


def test_mixture_tanh_is_odd_and_sigmoid_its_half() -> None:
    x = random_gaussian(4, 5)
    tanh, mirrored = tnn.MixtureTanh()(x), tnn.MixtureTanh()(x * -1.0)
    torch.testing.assert_close(mirrored.mean, -tanh.mean)
    torch.testing.assert_close(mirrored.var, tanh.var)
    sigmoid = tnn.MixtureSigmoid()(x)
    torch.testing.assert_close(sigmoid.mean, (1 + tanh.mean) / 2)
    torch.testing.assert_close(sigmoid.var, tanh.var / 4)


def test_even_exp_needs_pairs_and_acts_on_the_second_of_each() -> None:
    x = random_gaussian(3, 6)
    out = tnn.EvenExp()(x)
    assert torch.equal(out.mean[:, 0::2], x.mean[:, 0::2])
    assert torch.equal(out.var[:, 0::2], x.var[:, 0::2])
    log_normal = torch.distributions.LogNormal(x.mean[:, 1::2], x.var[:, 1::2].sqrt())
    torch.testing.assert_close(out.mean[:, 1::2], log_normal.mean)
    torch.testing.assert_close(out.var[:, 1::2], log_normal.variance)


# ---- probabilities -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "function", "shift"),
    [
        (tnn.ClosedFormSoftmax(), lambda z: z.softmax(-1), 0.0),
        (tnn.Remax(), lambda z: z / z.sum(-1, keepdim=True), 4.0),
    ],
    ids=["softmax", "remax"],
)
def test_class_probabilities_tend_to_the_delta_method(layer: nn.Module, function: object, shift: float) -> None:
    """For small variances: f(m), Σ (∂f/∂z)² v, and the gain ∂a_i/∂z_i, with f's Jacobian from autograd."""
    x = random_gaussian(1, 4, shift=shift)
    x = Gaussian(x.mean, x.var * 1e-6).requires_grad_()
    out = layer(x)
    jacobian = torch.autograd.functional.jacobian(function, x.mean.detach())[0, :, 0]
    torch.testing.assert_close(out.mean, function(x.mean), rtol=1e-5, atol=0)
    torch.testing.assert_close(out.var[0], jacobian.square() @ x.var[0], rtol=1e-5, atol=0)
    torch.autograd.backward([out.mean, out.var], [torch.ones_like(out.mean), torch.ones_like(out.var)])
    torch.testing.assert_close(x.mean.grad[0], jacobian.diag(), rtol=1e-5, atol=0)
    torch.testing.assert_close(x.var.grad[0], jacobian.diag().square(), rtol=1e-5, atol=0)


def test_remax_probabilities_sum_to_one_and_the_largest_logit_wins() -> None:
    x = random_gaussian(5, 6)
    out = tnn.Remax()(x)
    torch.testing.assert_close(out.mean.sum(1), torch.ones(5, dtype=torch.float64))
    equal_var = tnn.Remax()(Gaussian(x.mean, torch.ones_like(x.mean)))
    assert torch.equal(equal_var.mean.argmax(1), x.mean.argmax(1))


def test_softmax_does_not_change_under_a_common_shift() -> None:
    """Also far outside the range of exp."""
    x = random_gaussian(3, 4)
    out = tnn.ClosedFormSoftmax()(x)
    for shift in (1.0, 300.0, 1e4, -1e4):
        moved = tnn.ClosedFormSoftmax()(x + shift)
        torch.testing.assert_close(moved.mean, out.mean, rtol=1e-9, atol=0)
        torch.testing.assert_close(moved.var, out.var, rtol=1e-9, atol=0)


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
