"""A mean pass is the ordinary torch network of the means: its outputs, its gradients, its running statistics."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchtagi as tagi
from cases import CASES, FUNCTIONS, NORMS, Case, gaussian_parameters
from torchtagi import Gaussian
from torchtagi.nn.affine import multiply_in
from torchtagi.nn.mean_pass import mean_pass, state
from torchtagi.nn.norm import LARGEST_SHARE, BatchNorm, Norm

EXACT = {"MixtureReLU", "MixtureTanh", "MixtureSigmoid", "Exp", "EvenExp", "Remax", "ClosedFormSoftmax"}
STOCHASTIC = {"MaxPool2d-stochastic-eval"}
HELD = {case.id for case in NORMS if "-held" in case.id}  # messages that torch's own norms do not send
ALLOWED = [case for case in CASES.values() if case.id not in EXACT | STOCHASTIC | HELD]
ALLOWED_NORMS = [case for case in ALLOWED if case in NORMS]
OTHERS = [case for case in CASES.values() if case not in NORMS]
BATCH_NORMS = [case for case in ALLOWED_NORMS if case.batch_coupled and case.training]
MOMENTA = pytest.mark.parametrize("momentum", [0.1, None])


def each(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[case.id for case in cases])


def assert_close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-12)


def gradients(z: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Of a random message's product with z."""
    message = torch.randn(z.shape, generator=torch.Generator().manual_seed(3), dtype=z.dtype)
    return list(torch.autograd.grad(z, inputs, message))


def passed(function: Callable[[Gaussian], Any], mean: Tensor, means: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """A mean pass: its output, and its gradients to the input and to the parameters' means."""
    mean = mean.clone().requires_grad_()
    with mean_pass():
        z = function(Gaussian.trusted(mean, None))
    assert z.var is None
    return z.mean.detach(), gradients(z.mean, [mean, *means])


def ordinary(function: Callable[..., Tensor], mean: Tensor, means: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The same of a function of plain tensors, by autograd."""
    leaves = [one.detach().clone().requires_grad_() for one in (mean, *means)]
    z = function(*leaves)
    return z.detach(), gradients(z, leaves)


def means_of(layer: nn.Module) -> list[Tensor]:
    return [part.mean for part in gaussian_parameters(layer).values()]


# ---- layers and functions ------------------------------------------------------------------------------------


@each(list(CASES.values()))
def test_which_layers_say_that_their_means_need_variances(case: Case) -> None:
    layer = case.layer()
    assert layer.mean_needs_var() == (case not in ALLOWED)


@each(OTHERS)
def test_means_depend_on_variances_just_where_a_layer_says_so(case: Case) -> None:
    """Means close to each other let variances decide which of them is likely to be the largest."""
    layer, x = case.layer(), case.input()
    mean = x.mean / 10
    with torch.no_grad():
        assert torch.equal(layer(Gaussian(mean, x.var)).mean, layer(Gaussian(mean)).mean) != layer.mean_needs_var()


@each([case for case in ALLOWED if case not in NORMS])
def test_a_layer_is_the_ordinary_one_of_its_means(case: Case) -> None:
    layer, x = case.layer(), case.input()
    names = list(gaussian_parameters(layer))

    def function(mean: Tensor, *parameters: Tensor) -> Tensor:
        return case.mean_map()(dict(zip(names, parameters, strict=True)), mean, x)

    outcome = passed(layer, x.mean, means_of(layer))
    assert_close(outcome, ordinary(function, x.mean, means_of(layer)))
    with torch.no_grad():
        assert_close(outcome[0], layer(Gaussian(x.mean)).mean)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_torchs_functions_are_their_own(name: str) -> None:
    case = FUNCTIONS[name]
    mean = torch.randn(case.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert_close(passed(case.function, mean, []), ordinary(case.function, mean, []))


def test_products_in_a_lower_precision() -> None:
    """Operands are rounded; the message on the parameters has their precision."""
    layer = CASES["Conv2d"].layer(torch.float32)
    x = CASES["Conv2d"].input(torch.float32).mean
    exact = passed(layer, x, means_of(layer))
    multiply_in(layer, torch.bfloat16)
    rounded = passed(layer, x, means_of(layer))
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.05)
    assert not torch.equal(rounded[0], exact[0])
    with torch.no_grad():
        assert torch.equal(rounded[0], layer(Gaussian(x)).mean)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh())

    def forward(self, x: Any) -> Any:
        return torch.relu(x + self.body(x))


@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
def test_a_network_is_the_one_that_it_was_converted_from(training: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), Block(), nn.MaxPool2d(2), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 3)
    )
    net.double().train(training)
    converted = tagi.convert(net, from_weights=True)
    x = torch.randn(5, 2, 6, 6, dtype=torch.float64)
    trained = dict(net.named_parameters())
    same = [converted.get_parameter(f"{name}.mean") for name in trained]
    outcome = passed(converted, x, same)
    expected = ordinary(
        lambda x, *means: torch.func.functional_call(net, dict(zip(trained, means, strict=True)), (x,)),
        *(x, list(trained.values())),
    )
    assert_close(outcome, expected)


# ---- norms ---------------------------------------------------------------------------------------------------


def shared_dims(norm: Norm, rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank)) if isinstance(norm, BatchNorm) else tuple(range(-len(norm.normalized_shape), 0))


def normalised_by_hand(norm: Norm, mean: Tensor, share: Tensor, eps: float = 0.0) -> Tensor:
    """(m − μ)/√((1 + ρ)(Σ (m − μ)²/A + ε) A/(A − correction))"""
    dims = shared_dims(norm, mean.ndim)
    centre = mean.mean(dims, keepdim=True)
    count = mean.numel() // centre.numel()
    square = (mean - centre).square().sum(dims, keepdim=True) / count + eps
    share = share.view(-1, *(1,) * (mean.ndim - 2)) if isinstance(norm, BatchNorm) else share
    return (mean - centre) / ((1 + share) * square * count / (count - norm.correction)).sqrt()


def affine_by_hand(norm: Norm, unit: Tensor, *affine: Tensor) -> Tensor:
    shape = (-1, *(1,) * (unit.ndim - 2)) if isinstance(norm, BatchNorm) else norm.normalized_shape
    for number, part in enumerate(affine):
        unit = unit * part.view(shape) if number == 0 else unit + part.view(shape)
    return unit


def with_share(case: Case) -> Norm:
    """A norm that remembers variances, a different share in each channel."""
    norm = case.layer()
    norm.variance_share.copy_(torch.linspace(0.3, 2.0, norm.variance_share.numel()).view_as(norm.variance_share))
    return norm


@each(ALLOWED_NORMS)
def test_a_norm_adds_the_share_that_it_remembers(case: Case) -> None:
    norm, x = with_share(case), case.input()
    running = not case.training and not case.batch_coupled and isinstance(norm, BatchNorm)

    def function(mean: Tensor, *affine: Tensor) -> Tensor:
        if running:  # which hold what variances add already
            return case.mean_map()(dict(zip(("weight", "bias"), affine, strict=True)), mean, x)
        return affine_by_hand(norm, normalised_by_hand(norm, mean, norm.variance_share, norm.eps), *affine)

    share = norm.variance_share.clone()
    assert_close(passed(norm, x.mean, means_of(norm)), ordinary(function, x.mean, means_of(norm)))
    assert torch.equal(norm.variance_share, share), "a mean pass says nothing of variances"


@each(ALLOWED_NORMS)
def test_a_full_pass_in_training_says_what_the_share_is(case: Case) -> None:
    norm, x = with_share(case), case.input()
    before = norm.variance_share.clone()
    with torch.no_grad():
        norm(Gaussian(x.mean))
        assert torch.equal(norm.variance_share, before), "certain units say nothing of it"
        norm(x)
    dims = shared_dims(norm, x.ndim)
    spread = (x.mean - x.mean.mean(dims, keepdim=True)).square()
    over = dims if isinstance(norm, BatchNorm) else None
    expected = x.var.sum(over) / spread.sum(over)
    assert_close(norm.variance_share, expected if case.training else before)


@each(BATCH_NORMS)
def test_the_same_units_again_are_normalised_as_in_the_full_pass(case: Case) -> None:
    """But for ε, which torch adds to the means' spread alone."""
    norm, x = case.layer(), case.input()
    norm.eps = 0.0
    expected = norm(x).mean.detach()
    assert_close(passed(norm, x.mean, means_of(norm))[0], expected)
    assert not torch.allclose(norm(Gaussian(x.mean)).mean, expected, rtol=0.05), "variances count"


def test_a_channel_of_equal_means_has_the_largest_share() -> None:
    norm = tagi.nn.BatchNorm1d(2).double()
    x = torch.tensor([[1.0, 3.0], [2.0, 3.0], [3.0, 3.0]], dtype=torch.float64)
    norm(Gaussian(x, torch.full_like(x, 0.5)))
    assert norm.variance_share.tolist() == [0.75, LARGEST_SHARE]
    z, (to_input, *_) = passed(norm, x, means_of(norm))
    assert torch.isfinite(to_input).all()
    assert_close(z[:, 1], norm.bias.mean[1].expand(3))


@MOMENTA
@pytest.mark.parametrize("options", [{}, {"use_running": True}, {"correction": 1}], ids=str)
@pytest.mark.parametrize("first", [True, False], ids=["first batch", "later batch"])
def test_running_statistics_follow_as_in_a_full_pass(
    options: dict[str, Any], momentum: float | None, first: bool
) -> None:
    """With the share of a full pass, a mean pass on the same means moves them as that did: the first batch's are
    copied, later ones mixed in by momentum or averaged over all batches."""
    torch.manual_seed(0)
    norm = tagi.nn.BatchNorm2d(3, momentum=momentum, **options).double()
    x = Gaussian(torch.randn(4, 3, 2, 2).double(), torch.rand(4, 3, 2, 2).double())
    twin = copy.deepcopy(norm)
    with torch.no_grad():
        twin(x)
        norm.variance_share.copy_(twin.variance_share)
        if not first:
            for one in (norm, twin):
                one.running_mean.copy_(torch.tensor([1.0, -2.0, 0.5]))
                one.running_var.copy_(torch.tensor([3.0, 0.5, 1.5]))
                one.num_batches_tracked.fill_(4)
            twin(x)
    before = norm.running_var.clone()
    z, _ = passed(norm, x.mean, means_of(norm))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        torch.testing.assert_close(getattr(norm, name), getattr(twin, name), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(norm.running_var, before, rtol=0.01), "they moved"
    if norm.use_running:
        own = affine_by_hand(norm, x.mean.sub(norm.running_mean.view(3, 1, 1)), *means_of(norm)[:1])
        expected = own / (norm.running_var + norm.eps).sqrt().view(3, 1, 1)
        assert_close(z, expected + norm.bias.mean.detach().view(3, 1, 1))


@each([case for case in ALLOWED_NORMS if not case.training])
def test_running_statistics_stay_in_evaluation(case: Case) -> None:
    norm = case.layer()
    before = {name: value.clone() for name, value in norm.named_buffers()}
    passed(norm, case.input().mean, means_of(norm))
    assert all(torch.equal(value, before[name]) for name, value in norm.named_buffers())


def test_one_value_in_each_channel_is_refused() -> None:
    with mean_pass(), pytest.raises(ValueError, match="one value in each channel has no spread"):
        tagi.nn.BatchNorm1d(2)(torch.randn(1, 2))


# ---- the flag ------------------------------------------------------------------------------------------------


def is_full(layer: nn.Module) -> bool:
    return layer(torch.ones(1, 4)).var is not None


def test_another_thread_makes_full_passes() -> None:
    layer = tagi.nn.Linear(4, 3)
    seen: list[bool] = []
    with mean_pass():
        thread = threading.Thread(target=lambda: seen.append(is_full(layer)))
        thread.start()
        thread.join()
        assert seen == [True]
        assert not is_full(layer)
    assert is_full(layer)


def test_passes_are_full_again_after_an_error() -> None:
    layer = tagi.nn.Linear(4, 3)
    with mean_pass():
        with pytest.raises(ValueError, match="4 features"), mean_pass():
            layer(torch.ones(1, 5))
        assert state.active, "the outer one goes on"
        assert not is_full(layer)
    with pytest.raises(ValueError, match="4 features"), mean_pass():
        layer(torch.ones(1, 5))
    assert not state.active
    assert is_full(layer)
