"""Every layer of the registry meets every oracle that applies to it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torchtagi as tagi
from cases import CASES, PROBABILITIES, Case, Parameters, gaussian_parameters
from oracles import assert_moments_of_draws, bilinear_moments, condition, jacobian_messages
from torchtagi import Gaussian
from torchtagi import checkpoint as files
from torchtagi import nn as tnn

DRAWS = 30_000


def cases(keep: Callable[[Case], bool] = lambda case: True) -> pytest.MarkDecorator:
    kept = [case for case in CASES.values() if keep(case)]
    return pytest.mark.parametrize("case", kept, ids=[case.id for case in kept])


def random_message(out: Gaussian, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Any numbers will do: a message is linear in what it comes from."""
    generator = torch.Generator().manual_seed(3000 + seed)
    dmean, dvar = torch.randn((2, *out.shape), generator=generator, dtype=torch.float64).to(out.dtype)
    return dmean, dvar


def send(out: Gaussian, dmean: Tensor, dvar: Tensor) -> None:
    if out.var is None:
        out.mean.backward(dmean)
    else:
        torch.autograd.backward([out.mean, out.var], [dmean, dvar])


def messages(layer: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    return {name: (part.mean.grad, part.var.grad) for name, part in gaussian_parameters(layer).items()}


def test_the_registry_has_every_layer() -> None:
    containers = {"Layer", "Module", "ModuleList", "Residual", "Sequential"}
    built = {type(case.build()).__name__ for case in CASES.values()}
    assert built == set(tnn.__all__) - containers


# ---- oracle 1: forward moments -------------------------------------------------------------------------------


@cases(lambda case: case.exact)
@pytest.mark.parametrize("certain", [False, True], ids=["uncertain", "certain"])
def test_forward_moments_match_monte_carlo(case: Case, certain: bool) -> None:
    """Oracle 1: inputs and parameters are sampled together."""
    layer, x = case.layer(), case.input()
    if certain:
        x = Gaussian(x.mean)
    generator = torch.Generator().manual_seed(7)
    drawn_x = x.sample(DRAWS, generator=generator)
    drawn = {
        name: Gaussian(p.mean.detach(), p.var.detach()).sample(DRAWS, generator=generator)
        for name, p in gaussian_parameters(layer).items()
    }
    draws = torch.func.vmap(lambda p, one: case.draw(p, one, x), chunk_size=3000)(drawn, drawn_x)
    with torch.no_grad():
        assert_moments_of_draws(layer(x), draws)


@cases(lambda case: case.bilinear)
def test_forward_moments_are_exact(case: Case) -> None:
    """The same without sampling error: second-order derivatives give the variance of a bilinear map exactly."""
    layer, x = case.layer(), case.input()
    parts = gaussian_parameters(layer)

    def split(flat: Tensor) -> Parameters:
        pieces = flat.split([part.mean.numel() for part in parts.values()])
        return {n: piece.view(part.mean.shape) for (n, part), piece in zip(parts.items(), pieces, strict=True)}

    def function(flat_x: Tensor, flat_parameters: Tensor) -> Tensor:
        parameters = split(flat_parameters) if parts else {}
        return case.draw(parameters, flat_x.view(case.shape), x).flatten()

    no_parameters = torch.zeros(1, dtype=torch.float64)
    means = torch.cat([p.mean.detach().flatten() for p in parts.values()]) if parts else no_parameters
    variances = torch.cat([p.var.detach().flatten() for p in parts.values()]) if parts else no_parameters
    expected = bilinear_moments(function, x.flatten(), Gaussian(means, variances))
    out = layer(x).detach()
    torch.testing.assert_close(out.mean.flatten(), expected.mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(out.var.flatten(), expected.var, rtol=1e-10, atol=1e-12)


@cases(lambda case: case.draw is not None and not case.exact)
def test_linearised_moments(case: Case) -> None:
    """f(m) and J² v with J from autograd, for what the paper linearises and for a maximum that passes on."""
    layer, x = case.layer(), case.input()
    mean = x.mean.clone().requires_grad_()
    value = case.draw({}, mean, x)
    jacobian = torch.autograd.functional.jacobian(lambda m: case.draw({}, m, x).flatten(), x.mean)
    var = jacobian.flatten(1).square() @ x.var.flatten()
    out = layer(x).detach()
    torch.testing.assert_close(out.mean, value.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(out.var.flatten(), var, rtol=1e-10, atol=1e-15)


# ---- oracle 2: messages --------------------------------------------------------------------------------------


@cases(lambda case: case.draw is not None)
@pytest.mark.parametrize("certain", [False, True], ids=["uncertain", "certain"])
def test_messages_are_jacobian_products(case: Case, certain: bool) -> None:
    """Oracle 2: Jᵀ dm and (J∘J)ᵀ dv, J of the mean map, for the input and for every parameter.

    Where a norm's message knows that its statistics move, Jᵀ dm to the input has them in J; (J∘J)ᵀ dv never has.
    """
    layer, x = case.layer(), case.input()
    if certain:
        x = Gaussian(x.mean)
    reference = x.detach()
    if certain and case.expected is not None:
        reference = Gaussian(x.mean, torch.full_like(x.mean, 1e-300))
    names = list(gaussian_parameters(layer))

    def function(mean: Tensor, *parameters: Tensor) -> Tensor:
        return case.mean_map()(dict(zip(names, parameters, strict=True)), mean, reference)

    def moving(mean: Tensor) -> Tensor:
        moved = Gaussian.trusted(mean, reference.var)
        return case.mean_map()(dict(zip(names, means, strict=True)), mean, moved)

    means = [part.mean.detach() for part in gaussian_parameters(layer).values()]
    x = x.detach().requires_grad_()
    out = layer(x)
    dmean, dvar = random_message(out)
    send(out, dmean, dvar)
    to_input, *to_parameters = jacobian_messages(function, [reference.mean, *means], dmean, dvar)
    if case.moves_statistics:
        ((with_statistics, _),) = jacobian_messages(moving, [reference.mean], dmean, dvar)
        assert not torch.allclose(with_statistics, to_input[0], rtol=0.01), "the statistics should matter"
        to_input = with_statistics, to_input[1]
    torch.testing.assert_close(x.mean.grad, to_input[0], rtol=1e-9, atol=1e-12)
    if x.var is not None:
        torch.testing.assert_close(x.var.grad, to_input[1], rtol=1e-9, atol=1e-12)
    for (name, (dm, dv)), (expected_dm, expected_dv) in zip(messages(layer).items(), to_parameters, strict=True):
        torch.testing.assert_close(dm, expected_dm, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}.mean: {m}")
        torch.testing.assert_close(dv, expected_dv, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}.var: {m}")


@cases()
def test_mean_and_variance_get_only_their_own_stream(case: Case) -> None:
    """A mean gets nothing from a variance's message, nor a variance from a mean's."""
    layer, x = case.layer(), case.input().requires_grad_()
    out = layer(x)
    dmean, dvar = random_message(out)
    parts = list(gaussian_parameters(layer).values())
    means = [x.mean, *(part.mean for part in parts)]
    variances = [x.var, *(part.var for part in parts)]
    for stream, others in ((out.mean, variances), (out.var, means)):
        arrived = torch.autograd.grad(stream, others, dmean, retain_graph=True, allow_unused=True)
        assert all(one is None or not one.any() for one in arrived)
    for stream, own in ((out.mean, means), (out.var, variances)):
        arrived = torch.autograd.grad(stream, own, dvar, retain_graph=True)
        assert all(one.any() for one in arrived)


@cases(lambda case: bool(gaussian_parameters(case.build())))
@pytest.mark.parametrize("learning", ["bias.mean bias.var", "weight.mean weight.var", "input", ""])
def test_frozen_parts_get_no_message_and_change_nothing_for_the_others(case: Case, learning: str) -> None:
    """`requires_grad_(False)` on some parts leaves the messages of the rest as they were."""
    free, x = case.layer(), case.input().requires_grad_()
    out = free(x)
    dmean, dvar = random_message(out)
    send(out, dmean, dvar)
    frozen = case.layer()
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_(name in learning.split())
    if not any(p.requires_grad for p in frozen.parameters()) and learning != "input":
        assert not frozen(x.detach()).mean.requires_grad
        return
    some_x = x.detach().map(torch.clone).requires_grad_(learning == "input")
    send(frozen(some_x), dmean, dvar)
    if learning == "input":
        torch.testing.assert_close(some_x.mean.grad, x.mean.grad, rtol=0, atol=0)
        torch.testing.assert_close(some_x.var.grad, x.var.grad, rtol=0, atol=0)
    for (name, one), other in zip(frozen.named_parameters(), free.parameters(), strict=True):
        if name in learning.split():
            torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0)
        else:
            assert one.grad is None


def test_branches_of_a_shared_input_add_their_messages() -> None:
    """x + f(x): the input gets both branches' messages, each squared by itself for the variance."""
    case = CASES["Linear"]
    square = tnn.Linear(4, 4, dtype=torch.float64)
    x = case.input().requires_grad_()
    out = x + square(x)
    dmean, dvar = random_message(out)
    send(out, dmean, dvar)
    weight = square.weight.mean.detach()
    torch.testing.assert_close(x.mean.grad, dmean + dmean @ weight)
    torch.testing.assert_close(x.var.grad, dvar + dvar @ weight.square())


# ---- oracle 3: dense conditioning ----------------------------------------------------------------------------

NOISE_STD = 0.75  # exact in float32 too

ONE_LAYER = ["Linear", "Linear-nobias", "Conv2d", "Conv2d-geometry", "Conv2d-groups", "ConvTranspose2d-geometry"]


@pytest.mark.parametrize("case_id", ONE_LAYER)
def test_one_affine_layer_equals_dense_conditioning(case_id: str) -> None:
    """Oracle 3: certain input, one sample, one observed output (the rest missing): exact in mean and variance."""
    case = CASES[case_id]
    layer = case.layer()
    x = case.input().mean[:1]
    parts = gaussian_parameters(layer)
    out = layer(x)
    target = torch.full_like(out.mean, torch.nan)
    index = tuple(size // 2 for size in out.shape)
    target[index] = 1.3
    prior_mean = np.concatenate([p.mean.detach().numpy().ravel() for p in parts.values()])
    prior_var = np.concatenate([p.var.detach().numpy().ravel() for p in parts.values()])
    jacobians = torch.autograd.functional.jacobian(
        lambda *means: case.draw(dict(zip(parts, means, strict=True)), x, Gaussian(x))[index],
        tuple(p.mean.detach() for p in parts.values()),
    )
    gain = np.concatenate([j.numpy().ravel() for j in jacobians])[None]
    covariance = gain @ np.diag(prior_var) @ gain.T + NOISE_STD**2
    mean, var = condition(prior_mean, prior_var, gain, gain @ prior_mean, covariance, np.array([1.3]))
    learn(layer, x, target)
    np.testing.assert_allclose(np.concatenate([p.mean.detach().numpy().ravel() for p in parts.values()]), mean)
    np.testing.assert_allclose(np.concatenate([p.var.detach().numpy().ravel() for p in parts.values()]), var)


def test_all_outputs_of_one_linear_layer_equal_dense_conditioning() -> None:
    """Oracle 3: outputs with weights of their own are independent, so all may be observed at once."""
    case = CASES["Linear"]
    layer, x = case.layer(), case.input().mean[:1]
    parts = gaussian_parameters(layer)
    prior_mean = np.concatenate([p.mean.detach().numpy().ravel() for p in parts.values()])
    prior_var = np.concatenate([p.var.detach().numpy().ravel() for p in parts.values()])
    gain = np.hstack([np.kron(np.eye(3), x.numpy()), np.eye(3)])
    target = np.array([0.4, -2.0, 1.1])
    covariance = gain @ np.diag(prior_var) @ gain.T + NOISE_STD**2 * np.eye(3)
    mean, var = condition(prior_mean, prior_var, gain, gain @ prior_mean, covariance, target)
    learn(layer, x, torch.tensor(target[None]))
    np.testing.assert_allclose(np.concatenate([p.mean.detach().numpy().ravel() for p in parts.values()]), mean)
    np.testing.assert_allclose(np.concatenate([p.var.detach().numpy().ravel() for p in parts.values()]), var)


def test_two_linear_layers_equal_dense_conditioning() -> None:
    """Oracle 3: one observed output of a two-layer net. All second moments of (weights, output) are exact."""
    torch.manual_seed(3)
    net = nn.Sequential(tnn.Linear(3, 4), tnn.Linear(4, 1)).double()
    parts = gaussian_parameters(net)
    x = torch.randn(1, 3, dtype=torch.float64)
    sizes = [part.mean.numel() for part in parts.values()]

    def output(first: Tensor, second: Tensor) -> Tensor:
        w1, b1 = first.split(sizes[:2])
        w2, b2 = second.split(sizes[2:])
        return ((x @ w1.view(4, 3).t() + b1) @ w2.view(1, 4).t() + b2).flatten()

    means = torch.cat([p.mean.detach().flatten() for p in parts.values()])
    variances = torch.cat([p.var.detach().flatten() for p in parts.values()])
    first, second = Gaussian(means, variances)[: sum(sizes[:2])], Gaussian(means, variances)[sum(sizes[:2]) :]
    predicted = bilinear_moments(output, first, second)
    out = net(x).detach()
    torch.testing.assert_close(out.mean.flatten(), predicted.mean)
    torch.testing.assert_close(out.var.flatten(), predicted.var)
    jacobians = torch.autograd.functional.jacobian(output, (first.mean, second.mean))
    mean, var = condition(
        means.numpy(),
        variances.numpy(),
        torch.cat(jacobians, 1).numpy(),
        predicted.mean.numpy(),
        predicted.var[:, None].numpy() + NOISE_STD**2,
        np.array([2.5]),
    )
    learn(net, x, torch.tensor([[2.5]], dtype=torch.float64))
    np.testing.assert_allclose(torch.cat([p.mean.detach().flatten() for p in parts.values()]).numpy(), mean)
    np.testing.assert_allclose(torch.cat([p.var.detach().flatten() for p in parts.values()]).numpy(), var)


def learn(net: nn.Module, x: Tensor, target: Tensor) -> None:
    posterior = tagi.Update(net, "paper")
    tagi.Regression(NOISE_STD).double()(net(x), target).backward()
    posterior.step()


@pytest.mark.parametrize("case_id", ["Linear", "Conv2d-geometry", "ConvTranspose2d-geometry", "AvgPool2d-overlap"])
def test_hidden_state_inference_equals_dense_conditioning(case_id: str) -> None:
    """Oracle 3 for units: an uncertain input, one observed output, uncertain weights."""
    case = CASES[case_id]
    layer, x = case.layer(), case.input()[:1].requires_grad_()
    parameters = {name: part.mean.detach() for name, part in gaussian_parameters(layer).items()}
    out = layer(x)
    index = tuple(size // 2 for size in out.shape)
    target = torch.full_like(out.mean, torch.nan)
    target[index] = -0.8
    tagi.Regression(NOISE_STD).double()(out, target).backward()
    gain = torch.autograd.functional.jacobian(
        lambda mean: case.draw(parameters, mean, x.detach())[index], x.mean.detach()
    )
    mean, var = condition(
        x.mean.detach().numpy().ravel(),
        x.var.detach().numpy().ravel(),
        gain.numpy().reshape(1, -1),
        out.mean.detach()[index].numpy()[None],
        out.var.detach()[index].numpy()[None, None] + NOISE_STD**2,
        np.array([-0.8]),
    )
    posterior = x.posterior()
    np.testing.assert_allclose(posterior.mean.numpy().ravel(), mean)
    np.testing.assert_allclose(posterior.var.numpy().ravel(), var)


# ---- oracle 4: batches ---------------------------------------------------------------------------------------


@cases(lambda case: not case.batch_coupled)
def test_batch_messages_are_sums_of_single_ones(case: Case) -> None:
    """Oracle 4: parameters get the sum over the samples, each sample's input its own part."""
    layer, x = case.layer(), case.input().requires_grad_()
    out = layer(x)
    dmean, dvar = random_message(out)
    send(out, dmean, dvar)
    one_by_one = case.layer()
    for i in range(len(x)):
        single = x.detach()[i : i + 1].map(torch.clone).requires_grad_()
        alone = one_by_one(single)
        torch.testing.assert_close(alone.mean, out.mean[i : i + 1], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(alone.var, out.var[i : i + 1], rtol=1e-10, atol=1e-12)
        send(alone, dmean[i : i + 1], dvar[i : i + 1])
        torch.testing.assert_close(single.mean.grad, x.mean.grad[i : i + 1], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(single.var.grad, x.var.grad[i : i + 1], rtol=1e-10, atol=1e-12)
    for (name, together), (_, summed) in zip(messages(layer).items(), messages(one_by_one).items(), strict=True):
        for one, other in zip(together, summed, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


# ---- oracle 5: variances, certain inputs, precision ----------------------------------------------------------


@cases()
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_variances_are_finite_and_not_negative(case: Case, scale: float, dtype: torch.dtype) -> None:
    """Oracle 5, over many magnitudes of the input (log-normal moments overflow beyond a variance of order 1)."""
    layer = case.layer(dtype)
    mean_scale = 3.0
    if "Exp" in case.id or "Softmax" in case.id:
        mean_scale, scale = 1.0, min(scale, 1.0)
    for seed in range(5):
        x = case.input(dtype, seed)
        x = Gaussian(x.mean * mean_scale, x.var * scale).requires_grad_()
        out = layer(x)
        assert out.mean.isfinite().all()
        assert out.var.isfinite().all()
        assert (out.var >= 0).all()
        if case.exact and "ZeroPad" not in case.id and "Mixture" not in case.id:
            assert (out.var > 0).all()
        x.mean.grad = x.var.grad = None
        send(out, *random_message(out, seed))
        assert x.mean.grad.isfinite().all()
        assert x.var.grad.isfinite().all()


@cases()
def test_zero_variance_is_no_variance(case: Case) -> None:
    """Oracle 5: an input with a variance of zeros and one without a variance say the same."""
    x = case.input()
    zero = Gaussian(x.mean.clone(), torch.zeros_like(x.mean)).requires_grad_()
    none = Gaussian(x.mean.clone()).requires_grad_()
    with_zeros, without = case.layer(), case.layer()
    out_zeros, out_none = with_zeros(zero), without(none)
    torch.testing.assert_close(out_none.mean, out_zeros.mean, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(out_none.variance, out_zeros.variance, rtol=1e-12, atol=1e-14)
    if gaussian_parameters(with_zeros):
        assert out_none.var is not None
    else:
        assert out_none.var is None, "a layer without parameters keeps a certain input certain"
    dmean, dvar = random_message(out_zeros)
    send(out_zeros, dmean, dvar)
    send(out_none, dmean, dvar)
    torch.testing.assert_close(none.mean.grad, zero.mean.grad, rtol=1e-12, atol=1e-14)
    for one, other in zip(messages(with_zeros).values(), messages(without).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@cases(lambda case: case in PROBABILITIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_zero_variance_gives_finite_moments_and_messages(case: Case, dtype: torch.dtype) -> None:
    """Oracle 5: one certain unit among uncertain ones (behind a dead ReLU, say) must not send NaN backward."""
    x = case.input(dtype)
    x.var[:, 1] = 0.0
    x.requires_grad_()
    out = case.layer(dtype)(x)
    assert out.mean.isfinite().all()
    assert out.var.isfinite().all()
    send(out, *random_message(out))
    assert x.mean.grad.isfinite().all()
    assert x.var.grad.isfinite().all()


@cases()
def test_a_plain_tensor_is_a_certain_input(case: Case) -> None:
    x = case.input().mean
    plain, certain = case.layer()(x), case.layer()(Gaussian(x))
    torch.testing.assert_close(plain.mean, certain.mean, rtol=0, atol=0)
    torch.testing.assert_close(plain.variance, certain.variance, rtol=0, atol=0)


@cases()
def test_float32_agrees_with_float64(case: Case) -> None:
    """Oracle 5: outputs and messages, to float32's precision; the dtype is kept."""
    results = []
    for dtype in (torch.float64, torch.float32):
        layer, x = case.layer(dtype), case.input(dtype).requires_grad_()
        out = layer(x)
        assert out.mean.dtype == out.var.dtype == dtype
        send(out, *random_message(out))
        sent = [tensor for pair in messages(layer).values() for tensor in pair]
        results.append([out.mean, out.var, x.mean.grad, x.var.grad, *sent])
    for precise, single in zip(*results, strict=True):
        scale = precise.abs().max().item()
        torch.testing.assert_close(single.double(), precise, rtol=2e-5, atol=2e-6 * scale)


@cases()
def test_forward_and_backward_leave_input_parameters_and_message_untouched(case: Case) -> None:
    layer, x = case.layer(), case.input().requires_grad_()
    before = [t.detach().clone() for t in (x.mean, x.var, *layer.parameters())]
    out = layer(x)
    kept = [out.mean.detach().clone(), out.var.detach().clone()]
    dmean, dvar = random_message(out)
    send(out, dmean, dvar)
    for now, then in zip((x.mean, x.var, *layer.parameters(), out.mean, out.var), before + kept, strict=True):
        torch.testing.assert_close(now.detach(), then, rtol=0, atol=0)
    for now, then in zip((dmean, dvar), random_message(out), strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0)


# ---- oracle 8: saving ----------------------------------------------------------------------------------------


@cases()
def test_saved_and_loaded_net_is_bit_equal(case: Case, tmp_path: Path) -> None:
    """Oracle 8: state, architecture and output of a net with this layer."""
    net = nn.Sequential(case.layer(torch.float32), tnn.Identity()).train(case.training)
    x = case.input(torch.float32)
    with torch.no_grad():
        net(x)
    files.save(tmp_path / "net.safetensors", net, extra={"case": case.id})
    saved = files.load(tmp_path / "net.safetensors")
    loaded = saved.net.train(case.training)
    assert saved.extra == {"case": case.id}
    assert repr(loaded) == repr(net)
    assert_bit_equal(loaded, net)
    with torch.no_grad():
        again, before = loaded(x), net(x)
    assert torch.equal(again.mean, before.mean)
    assert torch.equal(again.variance, before.variance)


def test_loaded_net_keeps_its_precision(tmp_path: Path) -> None:
    """Oracle 8 for a net that is not float32: bit-equal means the dtype too."""
    net = nn.Sequential(tnn.Linear(4, 3), tnn.BatchNorm1d(3)).double()
    files.save(tmp_path / "net.safetensors", net)
    assert_bit_equal(files.load(tmp_path / "net.safetensors").net, net)


def assert_bit_equal(loaded: nn.Module, net: nn.Module) -> None:
    state, loaded_state = net.state_dict(), loaded.state_dict()
    assert list(state) == list(loaded_state)
    for name, tensor in state.items():
        assert loaded_state[name].dtype == tensor.dtype, f"{name}: saved {tensor.dtype}"
        assert torch.equal(loaded_state[name], tensor), name


@cases(lambda case: bool(gaussian_parameters(case.build())))
def test_restoring_brings_back_a_net_that_went_on_learning(case: Case, tmp_path: Path) -> None:
    """Oracle 8: `restore` into a net that exists."""
    net = case.layer(torch.float32)
    files.save(tmp_path / "net.safetensors", net)
    kept = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.5)
    files.restore(tmp_path / "net.safetensors", net)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in net.state_dict().items())
