"""The link's learned noise against labels drawn through a noise that is known."""

import math

import pytest
import torch
from torch import Tensor

import torchtagi as tagi
from torchtagi.likelihoods import class_tree
from torchtagi.likelihoods.link import CANDIDATES, KNOWN, SCALES, lowest


def outputs(n: int, width: int, seed: int = 0) -> tagi.Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, width, generator=generator)
    return tagi.Gaussian(mean, torch.full_like(mean, 0.01))


def drawn_labels(z: tagi.Gaussian, noise_std: float, likelihood: tagi.HierarchicalClassification) -> Tensor:
    """Labels as the tree draws them: at each node the sign of the output plus its noise."""
    signs = z.sample() + noise_std * torch.randn(z.shape)
    code = class_tree(likelihood.classes)[None]
    agrees = (code * signs[:, None]).masked_fill(code == 0, 1.0) > 0
    return agrees.all(2).float().argmax(1)  # of 2^L classes exactly one path agrees everywhere


@pytest.mark.parametrize("noise_std", [0.3, 0.5, 1.0])
def test_the_link_finds_the_noise_through_which_labels_were_drawn(noise_std: float) -> None:
    torch.manual_seed(0)
    likelihood = tagi.HierarchicalClassification(8, 0.01, learn_noise=True)
    for step in range(300):
        z = outputs(64, likelihood.outputs, step)
        likelihood(z, drawn_labels(z, noise_std, likelihood))
    assert math.sqrt(likelihood.predictive_noise_var.item()) == pytest.approx(noise_std, rel=0.1)


def test_the_link_of_binary_labels_likewise() -> None:
    torch.manual_seed(0)
    likelihood = tagi.Binary(0.01, learn_noise=True)
    for step in range(300):
        z = outputs(64, 2, step)
        likelihood(z, (z.sample() + 0.4 * torch.randn(z.shape)).sign())
    assert math.sqrt(likelihood.predictive_noise_var.item()) == pytest.approx(0.4, rel=0.1)


def test_scores_are_the_mean_negative_log_probabilities_of_the_labels() -> None:
    likelihood = tagi.HierarchicalClassification(10, 0.01, learn_noise=True)
    z, labels = outputs(50, likelihood.outputs), torch.arange(50) % 10
    likelihood.score_link(z, labels)
    for row, scale in zip(likelihood.link_scores.view(len(SCALES), -1).tolist(), SCALES, strict=True):
        scaled = tagi.Gaussian(z.mean, scale * z.var)
        for score, noise_std in zip(row, CANDIDATES, strict=True):
            fixed = tagi.HierarchicalClassification(10, noise_std)
            assert score == pytest.approx(-fixed.log_prob(scaled, labels).mean().item(), rel=1e-5)


@pytest.mark.parametrize("excess", [1.0, 4.0, 16.0])
def test_the_link_finds_how_much_too_large_a_variance_is(excess: float) -> None:
    """Outputs are as uncertain as they say, but for a factor; every second one is nearly certain, so that no noise
    could take the variance's place."""
    torch.manual_seed(0)
    likelihood = tagi.HierarchicalClassification(8, 0.01, learn_noise=True)
    for step in range(300):
        z = outputs(64, likelihood.outputs, step)
        z = tagi.Gaussian(z.mean, torch.where(torch.arange(64) % 2 == 0, 0.25, 1e-4)[:, None].expand_as(z.mean))
        labels = drawn_labels(z, 0.05, likelihood)
        likelihood.score_link(tagi.Gaussian(z.mean, excess * z.var), labels)
    assert likelihood.predictive_scale == 1 / excess
    known = tagi.HierarchicalClassification(8, math.sqrt(likelihood.predictive_noise_var.item()))
    torch.testing.assert_close(likelihood.log_probs(tagi.Gaussian(z.mean, excess * z.var)), known.log_probs(z))


@pytest.mark.parametrize("var", [4.0, 1.0, 1e-3])
def test_labels_that_were_learned_before_make_neither_variance_nor_noise_as_small_as_can_be(var: float) -> None:
    likelihood = tagi.Binary(0.01, learn_noise=True)
    z = tagi.Gaussian(torch.ones(64, 1), torch.full((64, 1), var))
    likelihood.score_link(z, torch.ones(64, 1), new=False)
    total = likelihood.predictive_scale * var + likelihood.predictive_noise_var.item()
    assert KNOWN**2 <= total < max((1.3 * KNOWN) ** 2, 1.1 * SCALES[-1] * var)
    for _ in range(3):
        likelihood.score_link(z, torch.ones(64, 1))
    assert likelihood.predictive_noise_var.item() == pytest.approx(CANDIDATES[0] ** 2)
    assert likelihood.predictive_scale == SCALES[-1] or var < 1


def test_the_messages_noise_is_not_the_links() -> None:
    one, other = (tagi.HierarchicalClassification(10, 0.01, learn_noise=True) for _ in range(2))
    z, labels = outputs(50, one.outputs), torch.arange(50) % 10
    other.link_scores.copy_(torch.linspace(1, 0, other.candidates))
    assert one(z, labels).item() == other(z, labels).item()
    assert one.learned_noise_var.item() == other.learned_noise_var.item()


def test_the_link_learns_in_training_only_and_keeps_a_floor() -> None:
    likelihood = tagi.HierarchicalClassification(10, 3.0, learn_noise=True)
    z, labels = outputs(50, likelihood.outputs), torch.arange(50) % 10
    likelihood.eval()
    likelihood(z, labels)
    assert likelihood.labels_seen.item() == 0
    likelihood.train()
    likelihood(z, labels)
    assert likelihood.labels_seen.item() == 50
    assert likelihood.predictive_noise_var.item() == pytest.approx(9.0), "noise_std is the floor"


def test_a_given_noise_serves_messages_and_predictions() -> None:
    likelihood = tagi.HierarchicalClassification(10, 0.3)
    likelihood(outputs(50, likelihood.outputs), torch.arange(50) % 10)
    assert likelihood.predictive_noise_var.item() == pytest.approx(0.09)


def test_an_output_out_of_range_says_nothing_of_the_noise() -> None:
    likelihood = tagi.Binary(0.1, learn_noise=True)
    likelihood(tagi.Gaussian(torch.full((4, 1), -1e30), torch.ones(4, 1)), torch.ones(4, 1))
    assert likelihood.labels_seen.item() == 0


def test_the_ladder_is_read_between_its_rungs() -> None:
    logs = [math.log(c) for c in CANDIDATES]
    aim = math.log(0.23)
    assert lowest([(x - aim) ** 2 for x in logs], CANDIDATES) == pytest.approx(0.23)
    assert lowest([-x for x in logs], CANDIDATES) == CANDIDATES[-1]
    assert lowest([0.0] * len(logs), CANDIDATES) == CANDIDATES[0]
