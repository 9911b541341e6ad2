"""Classes, each against the rest: brute force, draws of the outputs, and what happens far out."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import softmax
from torch import Tensor

import torchtagi as tagi
from torchtagi.likelihoods.link import CANDIDATES, SCALES
from torchtagi.likelihoods.one_vs_rest import POWERS, WIDTH, log_share


def outputs(classes: int, n: int = 40, largest_var: float = 1.0, seed: int = 0) -> tagi.Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return tagi.Gaussian(mean, largest_var * torch.rand(n, classes, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize(("classes", "rest"), [(2, 1.0), (3, 1.0), (4, 1.0), (10, 3.0)])
def test_messages_are_those_of_plus_and_minus_one(classes: int, rest: float) -> None:
    """At no more than three times the weight for all outputs of −1 together."""
    likelihood, z = tagi.OneVsRest(classes, 0.6).double(), outputs(classes).requires_grad_()
    labels = torch.arange(40) % classes
    likelihood(z, labels).backward()
    own = torch.nn.functional.one_hot(labels, classes).bool()
    var = z.var.detach() + likelihood.noise_var * torch.where(own, 1.0, rest)
    torch.testing.assert_close(z.mean.grad, (z.mean.detach() - torch.where(own, 1.0, -1.0)) / var)
    torch.testing.assert_close(z.var.grad, 1 / var)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_probabilities_follow_from_the_margins_by_scipy(classes: int) -> None:
    likelihood, z = tagi.OneVsRest(classes, 0.7).double(), outputs(classes)
    twice = 2 * z.mean.numpy() / np.sqrt(z.variance.numpy() + likelihood.noise_var.item())
    expected = softmax(0.25 * (stats.norm.logcdf(twice) - stats.norm.logsf(twice)), axis=1)
    predicted = likelihood.predict(z)
    np.testing.assert_allclose(predicted.probs.numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(likelihood.log_probs(z).exp().numpy(), expected, rtol=1e-9)
    for label in (0, classes - 1):
        log_prob = likelihood.log_prob(z, torch.full((len(z),), label))
        np.testing.assert_allclose(log_prob.numpy(), np.log(expected[:, label]), rtol=1e-9)


def test_the_link_scores_all_candidates_as_fixed_noises_would() -> None:
    likelihood = tagi.OneVsRest(10, 0.01, learn_noise=True).double()
    z, labels = outputs(10), torch.arange(40) % 10
    likelihood.score_link(z, labels)
    of_margins, of_shares = likelihood.link_scores.split([len(SCALES) * len(CANDIDATES), len(POWERS)])
    for row, scale in zip(of_margins.view(len(SCALES), -1).tolist(), SCALES, strict=True):
        for score, noise_std in zip(row, CANDIDATES, strict=True):
            fixed = tagi.OneVsRest(10, noise_std).double()
            scaled = tagi.Gaussian(z.mean, scale * z.var)
            assert score == pytest.approx(-fixed.log_prob(scaled, labels).mean().item(), rel=1e-5)
    for score, power in zip(of_shares.tolist(), POWERS, strict=True):
        probs = powers_of_shares(z, power)[range(40), labels]
        assert score == pytest.approx(-np.log(probs).mean(), rel=1e-9)


def powers_of_shares(z: tagi.Gaussian, power: float) -> np.ndarray:
    """The link's second form by numpy: each output's share of the whole, to a power."""
    width = np.sqrt(z.variance.numpy() + WIDTH**2)
    share = width * np.log1p(np.exp((1 + z.mean.numpy()) / width)) * np.exp(z.mean.numpy() / 2)
    return share**power / (share**power).sum(1, keepdims=True)


def by_shares(classes: int, n: int = 40, largest_var: float = 1.0) -> tuple[tagi.OneVsRest, tagi.Gaussian]:
    """A likelihood whose labels were drawn from shares to the power of 1.8, and more outputs."""
    likelihood = tagi.OneVsRest(classes, 0.01, learn_noise=True).double()
    for seed in range(30):
        z = outputs(classes, 400, largest_var, seed)
        probs = torch.from_numpy(powers_of_shares(z, 1.8))
        likelihood.score_link(
            z, torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(1000 + seed))[:, 0]
        )
    return likelihood, outputs(classes, n, largest_var, seed=99)


@pytest.mark.parametrize("classes", [3, 10])
def test_labels_drawn_by_shares_are_predicted_by_them(classes: int) -> None:
    likelihood, z = by_shares(classes)
    assert likelihood.power == pytest.approx(1.8, rel=0.1)
    expected = powers_of_shares(z, likelihood.power)
    np.testing.assert_allclose(likelihood.predict(z).probs.numpy(), expected, rtol=1e-9)
    log_prob = likelihood.log_prob(z, torch.arange(40) % classes)
    np.testing.assert_allclose(log_prob.numpy(), np.log(expected[range(40), np.arange(40) % classes]), rtol=1e-9)


def test_labels_drawn_by_margins_are_predicted_by_them() -> None:
    truth, likelihood = tagi.OneVsRest(10, 0.3).double(), tagi.OneVsRest(10, 0.01, learn_noise=True).double()
    for seed in range(30):
        z = outputs(10, 400, 0.1, seed)
        probs = truth.predict(z).probs
        likelihood.score_link(
            z, torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(1000 + seed))[:, 0]
        )
    assert likelihood.power is None
    assert likelihood.predictive_noise_var.sqrt().item() == pytest.approx(0.3, rel=0.15)


def test_of_labels_that_were_known_shares_are_not_chosen() -> None:
    likelihood = tagi.OneVsRest(3, 0.01, learn_noise=True).double()
    mean = torch.full((6, 3), -1.0, dtype=torch.float64).scatter_(1, (torch.arange(6) % 3)[:, None], 1.0)
    z = tagi.Gaussian(mean, torch.full_like(mean, 1e-3))
    likelihood.score_link(z, torch.arange(6) % 3, new=False)
    assert likelihood.power is None


def test_epistemic_variance_by_shares_is_that_of_autograds_jacobian() -> None:
    likelihood, z = by_shares(4, n=10, largest_var=1e-6)
    width = z.variance.add(WIDTH**2).sqrt()  # as wide whatever the outputs are
    assert likelihood.power is not None

    def probs(mean: Tensor) -> Tensor:
        share = torch.log1p(((1 + mean) / width).exp()).log() + mean / 2
        return (likelihood.power * share).softmax(-1)

    jacobian = torch.autograd.functional.jacobian(probs, z.mean)
    rows = torch.arange(10)
    expected = (jacobian[rows, :, rows].square() * z.var[:, None]).sum(-1)
    torch.testing.assert_close(likelihood.predict(z).epistemic, expected, rtol=1e-3, atol=1e-15)


def test_shares_far_out_stay_finite_in_float32() -> None:
    mean = torch.tensor([[-40.0, 40.0, -1.0], [-300.0, -290.0, -1e4]])
    assert bool(log_share(tagi.Gaussian(mean, torch.zeros_like(mean))).isfinite().all())
    likelihood, _ = by_shares(3)
    predicted = likelihood.float().predict(tagi.Gaussian(mean, torch.full_like(mean, 1e-8)))
    for part in (predicted.probs, predicted.epistemic, predicted.aleatoric):
        assert bool(part.isfinite().all())


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_epistemic_variance_of_nearly_certain_outputs_is_that_of_autograds_jacobian(classes: int) -> None:
    likelihood, z = tagi.OneVsRest(classes, 0.7).double(), outputs(classes, n=10, largest_var=1e-6)

    def probs(mean: Tensor) -> Tensor:
        return likelihood.log_probs(tagi.Gaussian.trusted(mean[None], None)).exp()[0]

    found = likelihood.predict(z).epistemic
    for row in range(10):
        jacobian = torch.autograd.functional.jacobian(probs, z.mean[row])
        expected = jacobian.square() @ z.variance[row]
        torch.testing.assert_close(found[row], expected, rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize(("largest_var", "tolerance"), [(0.02, 0.05), (0.5, 0.45)])
def test_epistemic_variance_is_that_of_the_probabilities_of_drawn_outputs(
    classes: int, largest_var: float, tolerance: float
) -> None:
    """Added up over samples, with a noise of variance 0.49; for uncertain outputs of about the right size."""
    likelihood, z = tagi.OneVsRest(classes, 0.7).double(), outputs(classes, n=200, largest_var=largest_var)
    draws = z.sample(2000, generator=torch.Generator().manual_seed(0))
    drawn = torch.stack([likelihood.log_probs(tagi.Gaussian(draw)).exp() for draw in draws]).var(0)
    assert likelihood.predict(z).epistemic.sum().item() == pytest.approx(drawn.sum().item(), rel=tolerance)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_both_variances_make_up_the_whole(classes: int) -> None:
    predicted = tagi.OneVsRest(classes, 0.3).double().predict(outputs(classes))
    whole = predicted.probs * (1 - predicted.probs)
    torch.testing.assert_close(predicted.epistemic + predicted.aleatoric, whole, rtol=1e-12, atol=1e-15)
    assert bool((predicted.epistemic >= 0).all())
    assert predicted.epistemic.sum() > 0.1
    assert bool((predicted.aleatoric >= 0).all())


@pytest.mark.parametrize("certain", ["none", "zero"])
def test_a_certain_output_has_no_epistemic_variance(certain: str) -> None:
    z = outputs(10)
    z = tagi.Gaussian(z.mean, None if certain == "none" else torch.zeros_like(z.mean))
    predicted = tagi.OneVsRest(10, 0.7).double().predict(z)
    assert float(predicted.epistemic.max()) < 1e-12
    assert float(predicted.aleatoric.max()) > 0.05


def test_predictions_far_out_stay_finite_in_float32() -> None:
    likelihood = tagi.OneVsRest(10, 0.1)
    mean = torch.linspace(-60, 60, 20).reshape(2, 10)
    z = tagi.Gaussian(mean, torch.full_like(mean, 1e-3))
    predicted = likelihood.predict(z)
    for part in (predicted.probs, predicted.epistemic, predicted.aleatoric, predicted.entropy):
        assert bool(torch.isfinite(part).all())
        assert bool((part >= 0).all())
    torch.testing.assert_close(predicted.probs.sum(1), torch.ones(2))
    assert bool(torch.isfinite(likelihood.log_prob(z, torch.tensor([0, 9]))).all())


def test_many_classes_take_memory_in_proportion() -> None:
    likelihood = tagi.OneVsRest(30_000, 0.5)
    z = tagi.Gaussian(torch.zeros(2, 30_000), torch.ones(2, 30_000))
    predicted = likelihood.predict(z)
    torch.testing.assert_close(predicted.probs, torch.full((2, 30_000), 1 / 30_000), rtol=1e-3, atol=0)
    assert likelihood(z, torch.tensor([0, 29_999])).isfinite()


@pytest.mark.parametrize("classes", [1, 0, -3, 2.0, "10"])
def test_what_is_no_number_of_classes_is_named(classes: object) -> None:
    with pytest.raises(ValueError, match=f"at least 2, got {classes!r}"):
        tagi.OneVsRest(classes)


def test_outputs_and_labels_that_do_not_fit_are_named() -> None:
    likelihood, z = tagi.OneVsRest(3), tagi.Gaussian(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"z must have shape \(N, 3\), got \(2, 2\)"):
        likelihood.predict(z[:, :2])
    with pytest.raises(ValueError, match="3"):
        likelihood(z, torch.tensor([0, 3]))
