"""Mean passes between full ones: when they come, what they move, and what the next full pass makes of them."""

import copy
import json
import math
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small_nets import NETS, PATHS, Wrapped, assert_same, normal, snapshot, update_of
from torch import Tensor, nn
from torch.nn import functional as F

import torchtagi as tagi
from cases import CASES, Case
from torchtagi import checkpoint as files
from torchtagi.inference import conditioning, passes, update
from torchtagi.inference.direct import joins
from torchtagi.inference.passes import GROWTH, LONGEST, OFTEN, SMALL, Passes, allows_mean_passes
from torchtagi.likelihoods.observation import Message, Observer
from torchtagi.parameter import gaussian_parameters

NOISE_VAR = 0.25
NET = pytest.mark.parametrize("name", NETS)


PATH = pytest.mark.parametrize("path", PATHS)


def variances(net: nn.Module) -> list[Tensor]:
    return [part.var.detach().clone() for part in gaussian_parameters([net])]


class Learner:
    """A network that learns batch after batch, and tells the full passes among its steps by the variances."""

    def __init__(self, net: nn.Module, likelihood: nn.Module | None = None, **options: Any) -> None:
        self.net = net
        self.likelihood = tagi.Regression(math.sqrt(NOISE_VAR)).double() if likelihood is None else likelihood
        self.update = update_of(net, **options)
        self.outputs: list[tagi.Gaussian] = []

    def learn(self, x: Any, y: Tensor) -> bool:
        """One step; whether it was a full pass."""
        before = variances(self.net)
        tagi.condition(
            *(self.net, self.likelihood, self.update, x, y, len(x)),
            before=lambda _, z, __: self.outputs.append(z.detach()),
        )
        return not all(map(torch.equal, before, variances(self.net)))


def batches(features: int, sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    return [(normal(n, features, seed=i), normal(n, 2, seed=100 + i)) for i, n in enumerate(sizes)]


# ---- the schedule --------------------------------------------------------------------------------------------


def full_steps(schedule: Passes, steps: int, samples: float = 16, remembered: float = math.inf) -> list[int]:
    """Which of so many steps are full passes."""
    full = []
    z = tagi.Gaussian(torch.zeros(2, 3), torch.ones(2, 3))
    for step in range(steps):
        if schedule.mean_pass_is_due():
            schedule.end_mean_pass(samples, 0.0)
        else:
            schedule.remember(z)
            schedule.end_full_pass(samples, remembered)
            full.append(step)
    return full


def gaps(full: list[int]) -> list[int]:
    return [after - before for before, after in pairwise(full)]


def test_gaps_grow_with_the_steps_up_to_the_longest() -> None:
    full = full_steps(Passes(True), GROWTH * LONGEST * 2)
    assert full[: GROWTH + 1] == list(range(GROWTH + 1)), "all steps at first"
    assert gaps(full) == [min(1 + step // GROWTH, LONGEST) for step in full[:-1]]
    assert set(gaps(full)) == set(range(1, LONGEST + 1)), "one step longer each time"
    assert gaps(full)[-1] == LONGEST


@pytest.mark.parametrize("samples", [1, 5, 16])
@pytest.mark.parametrize("gap", [1, 3, LONGEST])
def test_full_passes_are_often_enough_for_what_is_remembered(samples: int, gap: int) -> None:
    remembered = OFTEN * samples * gap
    assert gaps(full_steps(Passes(True), GROWTH * LONGEST, samples, remembered))[-1] == gap
    shorter = gaps(full_steps(Passes(True), GROWTH * LONGEST, samples, remembered - 1))
    assert shorter[-1] == max(1, gap - 1)


def test_nothing_remembered_is_all_full_passes() -> None:
    assert full_steps(Passes(True), 1000, 16, remembered=1) == list(range(1000))


def test_a_schedule_that_may_not_is_all_full_passes() -> None:
    assert full_steps(Passes(False), GROWTH * 3) == list(range(GROWTH * 3))


def test_it_starts_again() -> None:
    schedule = Passes(True)
    first = full_steps(schedule, GROWTH * 4 + 1)
    schedule.end_mean_pass(16, 0.5)
    schedule.restart()
    assert (schedule.samples, schedule.pull, schedule.output_var) == (0.0, 0.0, None)
    assert full_steps(schedule, GROWTH * 4 + 1) == first


@pytest.mark.parametrize("option", ["horizon", "repeats"])
def test_an_update_tells_the_schedule_what_is_remembered(option: str, soon: None) -> None:
    build, features = NETS["fully connected"]
    learner = Learner(build(), **{option: 4 * OFTEN * 2})
    assert [learner.learn(x, y) for x, y in batches(features, [4] * 10)] == [True, *[True, False] * 4, True]


@PATH
def test_steps_of_an_update_follow_the_schedule(path: str, soon: None) -> None:
    build, features = NETS["fully connected"]
    learner = Learner(PATHS[path](build()))
    kinds = [learner.learn(x, y) for x, y in batches(features, [3] * 33)]
    assert [step for step, full in enumerate(kinds) if full] == [0, 1, 3, 7, 15, 23, 31]
    learner.update.passes.restart()
    assert [learner.learn(x, y) for x, y in batches(features, [3] * 4)] == [True, True, False, True]


# ---- what makes no mean passes -------------------------------------------------------------------------------


def large(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(tagi.nn.Linear(SMALL // 10, 10, bias=False), *more)


def test_small_networks_make_none() -> None:
    assert allows_mean_passes(large())
    assert not allows_mean_passes(nn.Sequential(tagi.nn.Linear(SMALL // 10 - 1, 10, bias=False)))
    assert allows_mean_passes(nn.Sequential(tagi.nn.Linear(SMALL // 10 - 1, 10))), "biases count"
    used_twice = tagi.nn.Linear(80, 80)
    assert not allows_mean_passes(nn.Sequential(used_twice, tagi.nn.ReLU(), used_twice)), "and once"


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.id)
def test_layers_whose_means_need_variances_make_none(case: Case) -> None:
    """Wherever they are; tests/nn/test_mean_pass.py says which."""
    layer = case.build()
    assert allows_mean_passes(large(Wrapped(layer))) != layer.mean_needs_var()


def test_ordinary_layers_that_learn_make_none() -> None:
    net = large(nn.Linear(3, 3))
    assert not allows_mean_passes(net)
    net[1].requires_grad_(False)
    assert allows_mean_passes(net)


UPDATES: dict[str, tuple[Callable[[nn.Sequential], dict[str, Any]], bool]] = {
    "as it comes": (lambda net: {}, True),
    "its own outputs": (lambda net: {"outputs": net}, True),
    "a horizon": (lambda net: {"horizon": 100}, True),
    "rule paper": (lambda net: {"rule": "paper"}, False),
    "rule capped": (lambda net: {"rule": "capped"}, False),
    "frozen parts": (lambda net: {"frozen": [tagi.nn.Linear(3, 2)]}, False),
    "outputs of another": (lambda net: {"outputs": nn.Sequential(net, tagi.nn.ReLU())}, False),
}


@pytest.mark.parametrize("name", UPDATES)
def test_updates_that_make_none(name: str) -> None:
    options, expected = UPDATES[name]
    net = large()
    assert tagi.Update(net, **options(net)).passes.possible == expected


def test_updates_of_several_processes_make_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update, "parallelism", lambda net: (object(), False, 2))
    assert not tagi.Update(large()).passes.possible


class Twice(tagi.Regression):
    def forward(self, z: tagi.Gaussian, y: Tensor) -> Tensor:
        return super().forward(z, y) + super().forward(z, y)


class Plain(nn.Module):
    def forward(self, z: tagi.Gaussian, y: Tensor) -> Tensor:
        return tagi.Regression(0.5).double()(z, y)


STEPS: dict[str, tuple[nn.Module | None, Callable[[Tensor], Any]]] = {
    "an uncertain input": (None, lambda x: tagi.Gaussian(x, torch.ones_like(x))),
    "an input that asks": (None, lambda x: x.requires_grad_()),
    "a likelihood with a forward of its own": (Twice(0.5).double(), lambda x: x),
    "a likelihood of a user's own": (Plain(), lambda x: x),
}


@pytest.mark.parametrize("name", STEPS)
def test_steps_that_are_always_full(name: str, soon: None) -> None:
    likelihood, given = STEPS[name]
    build, features = NETS["fully connected"]
    learner = Learner(build(), likelihood)
    assert all(learner.learn(given(x), y) for x, y in batches(features, [3] * 6))
    assert learner.update.passes.mean_pass_is_due(), "an ordinary step would be a mean pass"


# ---- a step by hand ------------------------------------------------------------------------------------------


class Search(NamedTuple):
    """The line search of the coherent rule at known outputs."""

    gradient: Tensor
    explained: float
    own: float

    @property
    def noise_share(self) -> float:
        return 1 - self.own / self.explained

    def alpha(self, q: float) -> float:
        innovation = self.explained / self.gradient.numel()
        noise = max(1.0, innovation) * self.explained - self.own
        return min(1.0, self.explained / (q + noise), 6.0 / math.sqrt(q))


def search(mean: Tensor, var: Tensor, y: Tensor, noise_var: float = NOISE_VAR) -> Search:
    """With error r, variance v and noise R ≥ κ v the message is r/(v + R)."""
    total = var + torch.clamp(0.3 * var, min=noise_var)
    gradient = (mean - y) / total
    return Search(gradient, float((gradient.square() * total).sum()), float((gradient.square() * var).sum()))


def ordinary_output(net: nn.Module, means: dict[str, Tensor], x: Tensor) -> Tensor:
    """The networks of `NETS` as torch's own functions of their means."""
    for name, layer in net.named_children():
        own = {key.split(".")[1]: value for key, value in means.items() if key.split(".")[0] == name}
        if isinstance(layer, tagi.nn.Linear):
            x = F.linear(x, own["weight"], own["bias"])
        elif isinstance(layer, tagi.nn.Conv2d):
            x = F.conv2d(x, own["weight"], own["bias"], padding=layer.padding)
        elif isinstance(layer, tagi.nn.LayerNorm):
            gain = own["weight"] / (1 + layer.variance_share).sqrt()
            x = F.layer_norm(x, layer.normalized_shape, gain, own["bias"])
        else:
            x = getattr(nn, type(layer).__name__)(**layer.config())(x)
    return x


@PATH
@NET
@pytest.mark.parametrize("lr", [1.0, 0.5])
def test_a_mean_pass_moves_the_means_alone(name: str, path: str, lr: float, soon: None) -> None:
    """By −α s g, g the gradient of an ordinary network and v what the last full passes said of each output."""
    build, features = NETS[name]
    net = build()
    learner = Learner(PATHS[path](net), lr=lr)
    *first, (x, y) = batches(features, [5, 4, 3])
    assert all(learner.learn(*batch) for batch in first)
    var = sum(z.variance.mean(0) for z in learner.outputs) / 2
    before = snapshot(net)
    assert not learner.learn(x, y)

    means = {key.removesuffix(".mean"): value.requires_grad_() for key, value in before.items() if "mean" in key}
    z = ordinary_output(net, means, x)
    found = search(z.detach(), var, y)
    gradients = dict(zip(means, torch.autograd.grad(z, list(means.values()), found.gradient), strict=True))
    q = sum(float((before[f"{key}.var"] * g.square()).sum()) for key, g in gradients.items())
    alpha = lr * found.alpha(q)
    after = snapshot(net)
    for key, gradient in gradients.items():
        s = before[f"{key}.var"]
        step = torch.clamp(alpha * s * gradient, -s.sqrt(), s.sqrt())
        torch.testing.assert_close(after[f"{key}.mean"], means[key].detach() - step, rtol=1e-11, atol=1e-13)
        assert not torch.equal(after[f"{key}.mean"], means[key])
        assert torch.equal(after[f"{key}.var"], s)
    assert learner.update.report["alpha"] == pytest.approx(alpha, rel=1e-10)
    assert learner.update.report["innovation"] == pytest.approx(found.explained / y.numel(), rel=1e-10)
    seen = learner.outputs[-1]
    torch.testing.assert_close(seen.mean, z.detach())
    torch.testing.assert_close(seen.var, var.expand_as(z))
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.fixture
def by_autograd(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the mean passes that autograd has made since."""
    sizes: list[int] = []
    learn_means = conditioning.learn_means

    def noted(net: Any, likelihood: Any, update: Any, x: Tensor, *rest: Any) -> Tensor:
        sizes.append(len(x))
        return learn_means(net, likelihood, update, x, *rest)

    monkeypatch.setattr(conditioning, "learn_means", noted)
    return sizes


def assert_same_by_both_paths(
    net: nn.Module, likelihood: nn.Module, x: Tensor, y: Tensor, by_autograd: list[int], direct: bool = True
) -> None:
    """Ten steps, six of them mean passes, of the plain network and of the one whose steps are autograd's."""
    outcomes = []
    for path, wrap in PATHS.items():
        by_autograd.clear()
        own = copy.deepcopy(net)
        learner = Learner(wrap(own), copy.deepcopy(likelihood))
        kinds = [learner.learn(x, y) for _ in range(10)]
        assert kinds == [True, True, False, True, False, False, False, True, False, False]
        assert len(by_autograd) == (0 if direct and path == "direct" else 6)
        outcomes.append(({**own.state_dict(), **learner.likelihood.state_dict()}, learner.update.report))
    (one, report), (other, expected) = outcomes
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    assert report == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if not case.build().mean_needs_var()], ids=lambda case: case.id
)
def test_every_layer_without_autograd(case: Case, soon: None, by_autograd: list[int]) -> None:
    """Behind an affine layer, so that gradients pass through it."""
    torch.manual_seed(1)
    size = case.shape[1] if len(case.shape) == 4 else case.shape[-1]
    first = tagi.nn.Conv2d(size, size, 1) if len(case.shape) == 4 else tagi.nn.Linear(size, size)
    net = tagi.nn.Sequential(first.double(), case.layer())
    x = normal(*case.shape)
    with torch.no_grad():
        y = copy.deepcopy(net)(x).mean + 0.3 * normal(1, seed=1)
    assert_same_by_both_paths(net, tagi.Regression(0.5).double(), x, y, by_autograd, joins(net[1]))


LIKELIHOODS: dict[str, tuple[nn.Module, Tensor]] = {
    "regression": (tagi.Regression([0.3, 0.5]), normal(6, 2)),
    "learned noise": (tagi.Regression(0.01, learn_noise=True), normal(6, 2)),
    "missing targets": (tagi.Regression(0.3), torch.where(normal(6, 2) > 0.5, torch.nan, normal(6, 2))),
    "binary": (tagi.Binary(0.1, learn_noise=True), normal(6, 2).sign()),
    "classes": (tagi.HierarchicalClassification(3, 0.1, learn_noise=True), torch.arange(6) % 3),
}


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_every_likelihood_without_autograd(likelihood: str, soon: None, by_autograd: list[int]) -> None:
    kind, y = LIKELIHOODS[likelihood]
    torch.manual_seed(0)
    net = tagi.nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 3 if y.ndim == 1 else 2))
    assert_same_by_both_paths(net.double(), copy.deepcopy(kind).double(), normal(6, 3), y, by_autograd)


def test_frozen_and_shared_layers_without_autograd(soon: None, by_autograd: list[int]) -> None:
    torch.manual_seed(0)
    shared, frozen = tagi.nn.Linear(3, 3), tagi.nn.Linear(3, 3).requires_grad_(False)
    net = tagi.nn.Sequential(shared, tagi.nn.Tanh(), frozen, tagi.nn.Tanh(), shared).double()
    x, y = normal(6, 3), normal(6, 3, seed=1)
    assert_same_by_both_paths(net, tagi.Regression(0.3).double(), x, y, by_autograd)
    learner, before = Learner(net), snapshot(frozen)
    for _ in range(3):
        learner.learn(x, y)
    assert_same(before, snapshot(frozen))


# ---- the next full pass --------------------------------------------------------------------------------------


class Gap(NamedTuple):
    """A network after a full pass that followed three mean passes."""

    learner: Learner
    prior: dict[str, Tensor]
    before: dict[str, Tensor]  # the full pass
    once: dict[str, Tensor]  # what its message alone would leave
    alphas: list[float]  # of the four steps
    batches: list[tuple[Tensor, Tensor]]

    @property
    def folds(self) -> float:
        """How often the message counts."""
        return sum(len(y) for _, y in self.batches) / len(self.batches[-1][1])

    def many_times(self, key: str) -> Tensor:
        s, once = self.before[key], self.once[key]
        return 1 / (1 / s + self.folds * (1 / once - 1 / s))


def gap(
    net: nn.Module,
    features: int,
    sizes: tuple[int, ...] = (4, 6, 2, 4),
    likelihood: nn.Module | None = None,
    settling: bool = False,
    last_repeats: float | None = None,
    **options: Any,
) -> Gap:
    """Eight steps; the last closes a gap of these sizes, and may be the first that repeats what was seen."""
    learner, prior, alphas = Learner(net, likelihood, **options), snapshot(net), []
    learner.update.settling = settling
    everything = batches(features, [4, 4, 4, 4, *sizes])
    for step, batch in enumerate(everything):
        if step == 7:
            before = snapshot(net)
            own = {name: value for name, value in options.items() if name in ("lr", "floor")}
            alone = Learner(copy.deepcopy(net), likelihood, **own)
            assert alone.learn(*batch)
            learner.update.repeats = last_repeats or learner.update.repeats
        assert learner.learn(*batch) == (step in (0, 1, 3, 7))
        alphas.append(learner.update.report["alpha"])
    assert learner.update.report == alone.update.report
    return Gap(learner, prior, before, snapshot(alone.net), alphas[4:], everything[4:])


def assert_precisions_grow(outcome: Gap) -> None:
    """1/s⁺ = 1/s + k (1/s′ − 1/s); the means move once."""
    for key, value in snapshot(outcome.learner.net).items():
        if key.endswith("mean"):
            assert torch.equal(value, outcome.once[key])
        else:
            torch.testing.assert_close(value, outcome.many_times(key), rtol=1e-11, atol=0.0)
            assert not torch.allclose(value, outcome.once[key], rtol=1e-3)


@PATH
@NET
@pytest.mark.parametrize("sizes", [(4, 6, 2, 4), (3, 3, 3, 1), (1, 1, 1, 6)], ids=str)
def test_it_counts_for_all_samples_since_the_last_one(
    name: str, path: str, sizes: tuple[int, ...], soon: None
) -> None:
    build, features = NETS[name]
    outcome = gap(PATHS[path](build()), features, sizes)
    assert outcome.folds == sum(sizes) / sizes[-1]
    assert_precisions_grow(outcome)
    schedule = outcome.learner.update.passes
    assert (schedule.samples, schedule.pull) == (0.0, 0.0)


def test_what_the_floor_holds_back_counts_as_often(soon: None) -> None:
    build, features = NETS["linear"]
    outcome = gap(build(), features, floor=0.95)
    assert outcome.learner.update.report["floored"] > 0
    assert_precisions_grow(outcome)


LEARNING_RATE = "the samples of mean passes are noted times lr, and the shrinkage that they multiply has lr already"


@pytest.mark.xfail(strict=True, reason=LEARNING_RATE)
def test_a_fraction_of_the_messages_counts_as_often(soon: None) -> None:
    build, features = NETS["fully connected"]
    assert_precisions_grow(gap(build(), features, lr=0.5))


MEMORY = 4 * OFTEN * LONGEST  # samples: allows the longest gaps in batches of four


@NET
def test_a_horizon_takes_all_shares_at_once(name: str, soon: None) -> None:
    """1/s⁺ = (1 − f)/s + f/s₀ with f of all samples in the gap, after they have been learned."""
    build, features = NETS[name]
    outcome = gap(build(), features, horizon=MEMORY)
    share = 16 / MEMORY
    for key, value in snapshot(outcome.learner.net).items():
        if key.endswith("mean"):
            assert torch.equal(value, outcome.once[key])
        else:
            expected = 1 / ((1 - share) / outcome.many_times(key) + share / outcome.prior[key])
            torch.testing.assert_close(value, expected, rtol=1e-11, atol=0.0)


@NET
@pytest.mark.parametrize("settling", [False, True])
def test_repeats_take_all_shares_at_once(name: str, settling: bool, soon: None) -> None:
    """m⁺ = m + Σ α κ n/M (s⁺/s₀)(m₀ − m) over the steps of the gap; while it settles, variances take nothing."""
    build, features = NETS[name]
    outcome = gap(build(), features, repeats=MEMORY, settling=settling)
    share = 0.0 if settling else 16 / MEMORY
    outputs = outcome.learner.outputs[4:]
    pull = sum(
        alpha * search(z.mean, z.variance, y).noise_share * len(y) / MEMORY
        for alpha, z, (_, y) in zip(outcome.alphas, outputs, outcome.batches, strict=True)
    )
    after = snapshot(outcome.learner.net)
    for key in (key for key in after if key.endswith("var")):
        s = 1 / ((1 - share) / outcome.many_times(key) + share / outcome.prior[key])
        torch.testing.assert_close(after[key], s, rtol=1e-11, atol=0.0)
        own = key.removesuffix("var") + "mean"
        away = outcome.prior[own] - outcome.once[own]
        expected = outcome.once[own] + pull * s / outcome.prior[key] * away
        torch.testing.assert_close(after[own], expected, rtol=1e-11, atol=1e-13)
        assert not torch.equal(after[own], outcome.once[own])


BOUNDARY = "samples are added up, not their shares: those that were new in the gap are taken back as repeats"


@pytest.mark.xfail(strict=True, reason=BOUNDARY)
def test_only_what_repeats_is_taken_back(soon: None) -> None:
    build, features = NETS["fully connected"]
    outcome = gap(build(), features, repeats=math.inf, last_repeats=MEMORY)
    share = 4 / MEMORY
    for key, value in snapshot(outcome.learner.net).items():
        if key.endswith("var"):
            expected = 1 / ((1 - share) / outcome.many_times(key) + share / outcome.prior[key])
            torch.testing.assert_close(value, expected, rtol=1e-11, atol=0.0)


WIDENING = "1 + (k − 1) x is below zero where a message widens by more than 1/(k − 1)"


class Widens(Observer):
    """As errors do that are larger than a network's own guess of the noise (`HeteroscedasticRegression`)."""

    def message(self, z: tagi.Gaussian, y: Tensor) -> Message:
        return Message(y.square().sum(), 0.1 * (z.mean - y), torch.full_like(y, -0.5))


@pytest.mark.xfail(strict=True, reason=WIDENING)
def test_variances_stay_positive_where_messages_widen(soon: None) -> None:
    build, features = NETS["linear"]
    outcome = gap(build(), features, likelihood=Widens())
    for key, value in snapshot(outcome.learner.net).items():
        if key.endswith("var"):
            assert (outcome.once[key] > outcome.before[key]).all(), "it widened"
            assert (value >= outcome.before[key]).all()


# ---- what mean passes must not do ----------------------------------------------------------------------------


ERRORS: dict[str, tuple[Callable[[], Tensor], type[Exception], str]] = {
    "targets of another shape": (lambda: normal(4, 3), ValueError, "outputs' shape"),
    "infinite targets": (lambda: normal(4, 2) / 0, ValueError, "must be finite"),
    "targets far out of range": (lambda: normal(4, 2) * 1e300, FloatingPointError, "no parameter was changed"),
}


@PATH
@pytest.mark.parametrize("name", ERRORS)
def test_errors_change_nothing_and_leave_no_message(name: str, path: str, soon: None) -> None:
    targets, error, message = ERRORS[name]
    build, features = NETS["fully connected"]
    learner = Learner(PATHS[path](build()))
    for batch in batches(features, [4, 4]):
        learner.learn(*batch)
    before, schedule = snapshot(learner.net), learner.update.passes.as_json()
    with pytest.raises(error, match=message):
        learner.learn(normal(4, features), targets())
    assert_same(before, snapshot(learner.net))
    assert learner.update.passes.as_json() == schedule
    assert all(parameter.grad is None for parameter in learner.net.parameters())
    assert not learner.update.record.entries
    assert not learner.learn(normal(4, features), normal(4, 2)), "the mean pass that was due"


@PATH
def test_a_network_that_was_frozen_is_named(path: str, soon: None) -> None:
    build, features = NETS["fully connected"]
    learner = Learner(PATHS[path](build()))
    first, second, third = batches(features, [4, 4, 4])
    learner.learn(*first)
    learner.learn(*second)
    learner.net.requires_grad_(False)
    with pytest.raises(RuntimeError, match="all parameters of this update have requires_grad=False"):
        learner.learn(*third)


SHAPES = "the outputs' remembered variance is expanded to outputs of another shape"


@pytest.mark.xfail(strict=True, raises=RuntimeError, reason=SHAPES)
def test_outputs_of_another_shape_are_learned_from(soon: None) -> None:
    """Sequences of any length, each with an output at each of its positions."""
    build, features = NETS["fully connected"]
    learner = Learner(build())
    for length in (5, 5, 2, 3):
        learner.learn(normal(4, length, features), normal(4, length, 2, seed=1))


AROUND = "the update looks at its own network; nobody looks at the one around it"


@pytest.mark.xfail(strict=True, reason=AROUND)
@pytest.mark.parametrize("part", ["a trunk that learns", "a layer whose means need variances"])
def test_a_network_around_the_updates_own_is_looked_at_too(part: str, soon: None) -> None:
    build, features = NETS["fully connected"]
    torch.manual_seed(1)
    body = build()
    trunk = nn.Linear(features, features, dtype=torch.float64)
    net = (
        nn.Sequential(trunk, body) if part == "a trunk that learns" else nn.Sequential(body, tagi.nn.MixtureReLU())
    )
    learner = Learner(body)
    learner.net = net
    for batch in batches(features, [4] * 5):
        trunk.weight.grad = None
        assert learner.learn(*batch)
        assert net[0] is body or bool(trunk.weight.grad.any())


# ---- models and files ----------------------------------------------------------------------------------------


def model_of(kind: str) -> tagi.Classifier | tagi.Regressor:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 3))
    model = tagi.Classifier(net, classes=3) if kind == "classifier" else tagi.Regressor(net, noise=0.5)
    assert model.posterior.passes.possible
    return model


def data_of(kind: str) -> tuple[Tensor, Tensor]:
    """As many as leave room for mean passes where real numbers are repeats."""
    x = normal(16 * OFTEN * 2, 4).float()
    y = x[:, :3] + 0.5 * normal(len(x), 3, seed=1).float()
    return (x[:192], y.argmax(1)[:192]) if kind == "classifier" else (x, y)


@pytest.fixture
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "GROWTH", 3)


def fit(model: Any, kind: str, path: Path, stop_after: int | None = None, resume: bool = False) -> list[Any]:
    learn, batches = model.learn, 0

    def limited(*batch: Any, **known: Any) -> Any:
        nonlocal batches
        batches += 1
        if batches == stop_after:
            signal.raise_signal(signal.SIGINT)  # waits for the end of the step
        return learn(*batch, **known)

    model.learn = limited
    rows = model.fit(data_of(kind), epochs=2, checkpoint=path, resume=resume, seed=3)
    return [{key: value for key, value in row.items() if "second" not in key} for row in rows]


def everything_of(model: Any) -> dict[str, Any]:
    parts = {"net": model.net, "predicting": model.predicting, "likelihood": model.likelihood, "link": model.link}
    tensors = {
        f"{part}.{key}": value.tolist()
        for part, module in parts.items()
        for key, value in module.state_dict().items()
    }
    return {**tensors, "passes": model.posterior.passes.as_json()}


@pytest.mark.parametrize(
    ("kind", "stop_after"),
    [("classifier", 9), ("classifier", 18), ("classifier", 23), ("regressor", 22), ("regressor", 36)],
)
def test_a_fit_that_stops_between_full_passes_goes_on_to_the_bit(
    kind: str, stop_after: int, tmp_path: Path, sooner: None
) -> None:
    whole, stopped, resumed = (model_of(kind) for _ in range(3))
    expected = fit(whole, kind, tmp_path / "whole.safetensors")
    path = tmp_path / "stopped.safetensors"
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, kind, path, stop_after)
    schedule = files.read(path)[0]["extra"]["passes"]
    assert schedule["samples"] > 0
    assert (schedule["pull"] > 0) == (kind == "regressor" and stop_after > 32), "in its second epoch"
    assert fit(resumed, kind, path, resume=True) == expected
    assert everything_of(resumed) == everything_of(whole)


def learned_fully(model: Any, data: tuple[Tensor, Tensor]) -> bool:
    """Whether an update with one chunk of these was a full pass."""
    before = variances(model.net)
    model.update(data[0][:16], data[1][:16])
    return not all(map(torch.equal, before, variances(model.net)))


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_an_update_after_epochs_begins_with_full_passes(kind: str, tmp_path: Path, sooner: None) -> None:
    model, data = model_of(kind), data_of(kind)
    fit(model, kind, tmp_path / "model.safetensors")
    assert model.posterior.passes.steps == 2 * len(data[0]) // 16
    full = [learned_fully(model, data) for _ in range(9)]
    assert [step for step, was_full in enumerate(full) if was_full] == [0, 1, 2, 3, 5, 7]
    assert model.posterior.passes.steps == 9


def test_an_update_after_one_epoch_goes_on_with_the_stream(sooner: None) -> None:
    model, data = model_of("classifier"), data_of("classifier")
    model.fit(data, epochs=1, seed=3)
    steps = model.posterior.passes.steps
    learned_fully(model, data)
    assert model.posterior.passes.steps == steps + 1


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_model_from_a_file_goes_on_as_the_one_that_was_saved(epochs: int, tmp_path: Path, sooner: None) -> None:
    model, data = model_of("classifier"), data_of("classifier")
    model.fit(data, epochs=epochs, seed=3)
    model.save(tmp_path / "model.safetensors")
    loaded = tagi.load(tmp_path / "model.safetensors")
    for one in (model, loaded):
        one.update(*data)
    assert everything_of(loaded) == everything_of(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [0, 1, GROWTH * 3 + 2])
def test_a_schedule_as_json(steps: int, dtype: torch.dtype) -> None:
    """JSON's numbers hold all digits of both precisions."""
    kept, read = Passes(True), Passes(True)
    full_steps(kept, steps, samples=7)
    kept.end_mean_pass(3, 1 / 3)
    if steps:
        kept.remember(tagi.Gaussian(torch.zeros(2, 3, dtype=dtype), torch.rand(2, 3, dtype=dtype)))
    full_steps(read, 5)
    content = json.loads(json.dumps(kept.as_json()))
    read.read_json(content, torch.zeros(1, dtype=dtype))
    assert read.as_json() == kept.as_json() == content
    if kept.output_var is not None:
        assert read.output_var is not None
        assert read.output_var.dtype == dtype
        assert torch.equal(read.output_var, kept.output_var)
    assert full_steps(read, GROWTH) == full_steps(kept, GROWTH)


MALFORMED: dict[str, Any] = {
    "nothing": None,
    "a list": [1, 2],
    "a number": 3,
    "no entries": {},
    "no steps": {"steps": ...},
    "no variance": {"output_var": ...},
    "steps in words": {"steps": "many"},
    "no number of steps": {"next_full": None},
    "samples in words": {"samples": "many"},
    "a pull that is a list": {"pull": [0.0]},
    "steps that are no number": {"steps": math.nan},
    "a ragged variance": {"output_var": [[1.0], [1.0, 2.0]]},
    "a variance in words": {"output_var": ["wide"]},
    "a variance that is a dictionary": {"output_var": {"0": 1.0}},
    "a missing variance": {"output_var": [None, 1.0, 1.0]},
}
UNNOTICED: dict[str, Any] = {
    "endless steps": {"steps": math.inf},
    "a negative variance": {"output_var": [-1.0, 1.0, 1.0]},
    "a variance that is no number": {"output_var": [math.nan, 1.0, 1.0]},
    "a variance of other outputs": {"output_var": [1.0, 1.0]},
}


def assert_refused(change: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose schedule is changed in its file."""
    model, data = model_of("classifier"), data_of("classifier")
    model.update(*data)
    good = model.posterior.passes.as_json()
    changed = {**good, **change} if isinstance(change, dict) and change else change
    if isinstance(changed, dict):
        changed = {key: value for key, value in changed.items() if value is not ...}
    monkeypatch.setattr(model.posterior.passes, "as_json", lambda: changed)
    model.save(path)
    with pytest.raises(tagi.CheckpointError, match="holds a network, but not a model like this one") as caught:
        tagi.load(path)
    assert path.name in str(caught.value)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_schedule_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(MALFORMED[name], tmp_path / "model.safetensors", monkeypatch)


@pytest.mark.xfail(strict=True, reason="Passes.read_json takes it, or raises an OverflowError")
@pytest.mark.parametrize("name", UNNOTICED)
def test_an_impossible_schedule_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_refused(UNNOTICED[name], tmp_path / "model.safetensors", monkeypatch)
