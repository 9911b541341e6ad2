"""Bad targets and bad noise: an error that names argument and value, before anything changes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchtagi as tagi

N = 4
LABELS = torch.tensor([0, 1, 2, 3])


def whole(*values: int) -> Tensor:
    return torch.tensor(values)


def target(width: int, entry: float) -> Tensor:
    """Good targets but for one entry."""
    y = torch.ones(N, width)
    y[2, -1] = entry
    return y


def classes() -> tagi.HierarchicalClassification:
    return tagi.HierarchicalClassification(4, 0.5)


Case = tuple[Callable[[], torch.nn.Module], int, Any, type[Exception], str]

CASES: dict[str, Case] = {
    "label too large": (classes, 3, whole(0, 1, 2, 4), ValueError, r"labels.*0\.\.3.*4"),
    "label negative": (classes, 3, whole(0, -1, 2, 3), ValueError, r"labels.*0\.\.3.*-1"),
    "label float": (classes, 3, LABELS.float(), TypeError, r"labels.*integer.*float32"),
    "label bool": (classes, 3, LABELS > 0, TypeError, r"labels.*integer.*bool"),
    "label list": (classes, 3, [0, 1, 2, 3], TypeError, r"labels.*tensor.*list"),
    "label shape": (classes, 3, LABELS[:, None], ValueError, r"labels.*\(4,\).*\(4, 1\)"),
    "label count": (classes, 3, LABELS[:3], ValueError, r"labels.*\(4,\).*\(3,\)"),
    "outputs are not nodes": (classes, 4, LABELS, ValueError, r"z.*\(N, 3\).*\(4, 4\)"),
    "y infinite": (tagi.Regression, 2, target(2, math.inf), ValueError, r"y.*finite.*inf"),
    "y minus infinite": (tagi.Regression, 2, target(2, -math.inf), ValueError, r"y.*finite.*inf"),
    "y too wide": (tagi.Regression, 2, torch.ones(N, 3), ValueError, r"y.*\(4, 2\).*\(4, 3\)"),
    "y would broadcast": (tagi.Regression, 2, torch.ones(N, 1), ValueError, r"y.*\(4, 2\).*\(4, 1\)"),
    "y without its last dimension": (tagi.Regression, 1, torch.ones(N), ValueError, r"y.*\(4, 1\).*\(4,\)"),
    "y whole numbers": (tagi.Regression, 1, torch.ones(N, 1).long(), TypeError, r"y.*floating.*int64"),
    "y a list": (tagi.Regression, 1, [[1.0]] * N, TypeError, r"y.*tensor.*list"),
    "sign zero": (tagi.Binary, 1, target(1, 0.0), ValueError, r"y.*-1 or \+1.*0\.0"),
    "sign half": (tagi.Binary, 1, target(1, 0.5), ValueError, r"y.*-1 or \+1.*0\.5"),
    "sign missing": (tagi.Binary, 1, target(1, math.nan), ValueError, r"y.*-1 or \+1.*nan"),
    "sign bool": (tagi.Binary, 1, torch.ones(N, 1) > torch.tensor([[1.0]]), ValueError, r"y.*-1 or \+1.*0\.0"),
    "sign shape": (tagi.Binary, 2, torch.ones(N, 1), ValueError, r"y.*\(4, 2\).*\(4, 1\)"),
    "sign list": (tagi.Binary, 1, [1.0] * N, ValueError, r"y.*\(4, 1\).*list"),
    "pair target infinite": (tagi.HeteroscedasticRegression, 2, target(1, math.inf), ValueError, r"y.*finite.*inf"),
    "pair target too wide": (
        tagi.HeteroscedasticRegression,
        2,
        torch.ones(N, 2),
        ValueError,
        r"y.*\(4, 1\).*\(4, 2\)",
    ),
    "pairs odd": (tagi.HeteroscedasticRegression, 3, torch.ones(N, 1), ValueError, r"z.*even.*\(4, 3\)"),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def network(width: int) -> torch.nn.Module:
    """Its noise outputs, if it has any, are positive."""
    net = torch.nn.Sequential(tagi.nn.Linear(2, width))
    if width % 2 == 0:
        net.append(tagi.nn.EvenExp())
    return net


def snapshot(module: torch.nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def assert_untouched(net: torch.nn.Module, before: dict[str, Tensor]) -> None:
    after = net.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_loss_refuses_a_bad_target_and_changes_nothing(case: Case) -> None:
    kind, width, y, error, message = case
    net, likelihood = network(width), kind()
    posterior = tagi.Update(net)
    before = snapshot(net)
    with pytest.raises(error, match=message):
        likelihood(net(torch.ones(N, 2)), y).backward()
    with pytest.raises(RuntimeError, match="no messages"):
        posterior.step()
    assert_untouched(net, before)


def test_log_prob_refuses_a_bad_target(case: Case) -> None:
    kind, width, y, error, message = case
    with torch.no_grad(), pytest.raises(error, match=message):
        kind().log_prob(network(width)(torch.ones(N, 2)), y)


LIKELIHOODS = [tagi.Regression, tagi.Binary, classes, tagi.HeteroscedasticRegression]


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_an_output_that_is_no_gaussian_is_refused(kind: Callable[[], Any]) -> None:
    y = torch.ones(N, 3)
    for call in (lambda z: kind()(z, y), lambda z: kind().predict(z), lambda z: kind().log_prob(z, y)):
        with pytest.raises(TypeError, match=r"z must be.*Gaussian.*Tensor"):
            call(torch.ones(N, 3))


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_an_empty_batch_is_refused(kind: Callable[[], Any]) -> None:
    z = tagi.Gaussian.trusted(torch.ones(0, 2), torch.ones(0, 2))
    with pytest.raises(ValueError, match=r"z is empty.*\(0, 2\)|y is empty"):
        kind()(z, torch.ones(0, 1))
    with pytest.raises(ValueError, match=r"z is empty.*\(0, 2\)"):
        kind().predict(z)


@pytest.mark.parametrize("noise", [-0.5, 0.0, math.nan])
def test_noise_outputs_that_are_not_positive_are_refused(noise: float) -> None:
    net = tagi.nn.Linear(2, 2)
    posterior = tagi.Update(net)
    z = net(torch.ones(N, 2))
    values = z.mean.detach().clone()
    values[:, 1] = 1.0
    values[1, 1] = noise
    output = tagi.Gaussian.trusted(z.mean - z.mean.detach() + values, z.var)
    before = snapshot(net)
    likelihood = tagi.HeteroscedasticRegression()
    with pytest.raises(ValueError, match=rf"noise variance.*positive.*{noise}.*EvenExp"):
        likelihood(output, torch.ones(N, 1)).backward()
    with pytest.raises(ValueError, match=rf"noise variance.*positive.*{noise}.*EvenExp"):
        likelihood.log_prob(output, torch.ones(N, 1))
    with pytest.raises(RuntimeError, match="no messages"):
        posterior.step()
    assert_untouched(net, before)


# ---- noise ---------------------------------------------------------------------------------------------------

BAD_NOISE = [0.0, -0.5, math.nan, math.inf]


@pytest.mark.parametrize(
    "kind", [tagi.Regression, tagi.Binary, lambda std: tagi.HierarchicalClassification(4, std)]
)
@pytest.mark.parametrize("bad", BAD_NOISE)
def test_noise_must_be_positive_and_finite(kind: Callable[[Any], Any], bad: float) -> None:
    for noise_std in (bad, [1.0, bad, 2.0], torch.tensor([1.0, bad, 2.0])):
        with pytest.raises(ValueError, match=rf"noise_std.*positive.*{bad}"):
            kind(noise_std)


@pytest.mark.parametrize("bad", BAD_NOISE)
def test_a_bad_noise_cannot_be_assigned(bad: float) -> None:
    likelihood = tagi.Regression([0.5, 0.5])
    for value in (bad, torch.tensor([1.0, bad])):
        with pytest.raises(ValueError, match=rf"noise_std.*positive.*{bad}"):
            likelihood.noise_std = value
        assert likelihood.noise_std.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("kind", [tagi.Regression, tagi.Binary])
def test_a_noise_for_each_output_must_fit_the_outputs(kind: Callable[[Any], Any], width: int) -> None:
    net, likelihood = tagi.nn.Linear(2, width), kind([0.5, 0.6, 0.7])
    before = snapshot(net)
    with pytest.raises(ValueError, match="noise_std"):
        likelihood(net(torch.ones(N, 2)), torch.ones(N, width)).backward()
    assert_untouched(net, before)


@pytest.mark.parametrize("classes", [1, 0, -3, 2.0, "10", None])
def test_the_number_of_classes_must_be_whole_and_at_least_two(classes: Any) -> None:
    with pytest.raises(ValueError, match=rf"classes.*{classes!r}"):
        tagi.HierarchicalClassification(classes)
