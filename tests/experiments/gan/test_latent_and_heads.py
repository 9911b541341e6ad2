"""Latent points, their encoding, and how codes are read back."""

import math

import pytest
import torch

import torchtagi as tagi
from torchtagi.experiments.gan.heads import CodeLikelihood
from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.likelihoods import class_tree

MNIST, CELEBA = LatentSpace(62, (10,), 2), LatentSpace(128, (10,) * 10)


def test_sizes_of_the_papers_latent_spaces():
    assert MNIST.size == 75
    assert CELEBA.size == 238
    assert LatentSpace(62, (10,), 2, "one-hot").size == 74
    assert LatentSpace(62).size == 62
    assert not LatentSpace(62).has_codes


def test_samples_have_the_right_distributions():
    drawn = MNIST.sample(20_000, torch.Generator().manual_seed(0))
    assert drawn.noise.mean().abs() < 0.01
    assert drawn.noise.std() == pytest.approx(1, abs=0.01)
    assert drawn.continuous.abs().max() <= 1
    assert drawn.continuous.var().item() == pytest.approx(1 / 3, abs=0.01)
    shares = torch.bincount(drawn.categories[:, 0], minlength=10) / 20_000
    assert (shares - 0.1).abs().max() < 0.01


def test_encoding_is_noise_then_tree_paths_then_continuous_codes():
    points = Latents(torch.zeros(1, 62) + 5, torch.tensor([[7]]), torch.tensor([[0.25, -0.5]]))
    encoded = MNIST.encode(points)
    assert encoded[0, :62].eq(5).all()
    assert torch.equal(encoded[0, 62:73], class_tree(10)[7])
    assert encoded[0, 62:73].abs().sum() == 4, "the four nodes of a path"
    assert encoded[0, 73:].tolist() == [0.25, -0.5]
    one_hot = LatentSpace(62, (10,), 2, "one-hot").encode(points)
    assert one_hot[0, 62:72].tolist() == [0.0] * 7 + [1.0] + [0.0] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "at least one dimension"),
        ((-1, (10,)), "cannot have"),
        ((1, (1,)), "at least 2"),
        ((1, (10,), 2, "binary"), "coding"),
    ],
)
def test_bad_spaces_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LatentSpace(*arguments)


def test_bad_points_are_refused():
    points = MNIST.sample(3)
    with pytest.raises(ValueError, match=r"between 0 and 9, got 10"):
        MNIST.encode(Latents(points.noise, torch.tensor([[1], [10], [2]]), points.continuous))
    with pytest.raises(ValueError, match=r"noise must have shape \(3, 62\)"):
        MNIST.encode(Latents(torch.zeros(3, 61), points.categories, points.continuous))


def outputs(space, points, confidence=3.0):
    """What a perfect Qnet would say."""
    parts = [confidence * class_tree(c)[points.categories[:, i]] for i, c in enumerate(space.categories)]
    mean = torch.cat([*parts, points.continuous], 1)
    return tagi.Gaussian(mean, torch.full_like(mean, 0.1))


@pytest.mark.parametrize("space", [MNIST, CELEBA])
def test_codes_are_read_back(space):
    points = space.sample(200, torch.Generator().manual_seed(1))
    likelihood = CodeLikelihood(space)
    assert likelihood.outputs == {75: 13, 238: 110}[space.size]
    assert torch.equal(likelihood.read(outputs(space, points)), points.categories)


def test_evidence_is_the_sum_over_the_codes():
    points = MNIST.sample(20, torch.Generator().manual_seed(1))
    z = outputs(MNIST, points, 0.5)
    ours = CodeLikelihood(MNIST, 0.8, 0.3)(z, points)
    theirs = (
        tagi.HierarchicalClassification(10, 0.8)(z[:, :11], points.categories[:, 0])
        + tagi.Regression(0.3)(z[:, 11:12], points.continuous[:, :1])
        + tagi.Regression(0.3)(z[:, 12:], points.continuous[:, 1:])
    )
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)


def test_learned_noise_is_one_for_each_code():
    likelihood = CodeLikelihood(MNIST, 1.0, 0.01, "learned")
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        points = MNIST.sample(256, generator)
        z = outputs(MNIST, points)
        z.mean[:, 11] += 0.2 * torch.randn(256, generator=generator)
        z.mean[:, 12] += 0.7 * torch.randn(256, generator=generator)
        likelihood(tagi.Gaussian(z.mean, torch.full_like(z.mean, 1e-4)), points)
    noises = likelihood.noise_stds
    assert noises["c1_noise_std"] == pytest.approx(0.2, rel=0.1)
    assert noises["c2_noise_std"] == pytest.approx(0.7, rel=0.1)
    likelihood.eval()
    before = noises["c1_noise_std"]
    likelihood(outputs(MNIST, points), points)
    assert likelihood.noise_stds["c1_noise_std"] == before, "in evaluation nothing is learned"


def test_predicted_noise_takes_two_outputs_a_code_and_hears_both():
    likelihood = CodeLikelihood(MNIST, 1.0, continuous_noise="predicted")
    assert likelihood.outputs == 15
    points = MNIST.sample(8, torch.Generator().manual_seed(2))
    z = tagi.Gaussian(torch.zeros(8, 15), torch.full((8, 15), 0.5)).requires_grad_()
    evidence = likelihood(z, points)
    evidence.backward()
    assert math.isfinite(evidence.item())
    assert (z.mean.grad[:, 11:].abs() > 0).all()


def test_decay_reaches_every_likelihood():
    likelihood = CodeLikelihood(MNIST, 3.0, 3.0)
    likelihood.set_noise(0.5, 0.25)
    assert likelihood.noise_stds == pytest.approx(
        {"c1_noise_std": 0.25, "c2_noise_std": 0.25, "code_noise_std": 0.5}
    )


def test_bad_heads_are_refused():
    with pytest.raises(ValueError, match="continuous_noise"):
        CodeLikelihood(MNIST, continuous_noise="guessed")
    with pytest.raises(ValueError, match="coding='tree'"):
        CodeLikelihood(LatentSpace(62, (10,), 2, "one-hot"))
    with pytest.raises(ValueError, match="13 outputs"):
        CodeLikelihood(MNIST)(tagi.Gaussian(torch.zeros(2, 12), torch.ones(2, 12)), MNIST.sample(2))
