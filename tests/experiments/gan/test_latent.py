"""Latent points, their encoding, how codes are read back, and what a user asks to be drawn."""

import pytest
import torch

import torchtagi as tagi
from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.gan.model import likeliest
from torchtagi.experiments.gan.request import latent_grid, parse_classes, parse_numbers
from torchtagi.experiments.gan.step import Heads
from torchtagi.experiments.gan.tasks import Noises
from torchtagi.likelihoods import class_tree

MNIST, CELEBA = LatentSpace(62, (10,), 2), LatentSpace(128, (10,) * 10)
SPACE = LatentSpace(4, (10,), 2)


def test_sizes_of_the_papers_latent_spaces():
    assert MNIST.size == 75
    assert CELEBA.size == 238
    assert LatentSpace(62, (10,), 2, "one-hot").size == 74
    assert LatentSpace(62).size == 62
    assert not LatentSpace(62).has_codes


def test_samples_have_the_right_distributions():
    drawn = MNIST.sample(20_000, seed=0)
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


def outputs(space, points, confidence=3.0):
    """What a perfect Qnet would say."""
    parts = [confidence * class_tree(c)[points.categories[:, i]] for i, c in enumerate(space.categories)]
    mean = torch.cat([*parts, points.continuous], 1)
    return tagi.Gaussian(mean, torch.full_like(mean, 0.1))


@pytest.mark.parametrize("space", [MNIST, CELEBA])
def test_codes_are_read_back(space):
    points = space.sample(200, seed=1)
    heads = Heads(space, Noises(1.0, 1.0, 1.0))
    assert torch.equal(likeliest(heads.class_log_probs(outputs(space, points))), points.categories)


def test_the_loss_is_the_sum_over_the_codes():
    points = MNIST.sample(20, seed=1)
    z = outputs(MNIST, points, 0.5)
    ours = Heads(MNIST, Noises(1.0, 0.8, 0.3)).code_loss(z, points)
    theirs = (
        tagi.HierarchicalClassification(10, 0.8)(z[:, :11], points.categories[:, 0])
        + tagi.Regression(0.3)(z[:, 11:12], points.continuous[:, :1])
        + tagi.Regression(0.3)(z[:, 12:], points.continuous[:, 1:])
    )
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)


# ---- what a user asks for ------------------------------------------------------------------------------------


def test_numbers():
    assert parse_numbers("--c1", "-1:1:5") == [-1, -0.5, 0, 0.5, 1]
    assert parse_numbers("--c1", "0.25") == [0.25]
    assert parse_numbers("--c1", "-1,0,2") == [-1, 0, 2]


@pytest.mark.parametrize("text", ["", "a", "1:2", "1:2:1", "1:2:x", "1,,2", "nan", "inf", "0:1:2:3"])
def test_numbers_that_are_none(text):
    with pytest.raises(ValueError, match="--c1 must be"):
        parse_numbers("--c1", text)


def test_classes():
    assert parse_classes("--digit", "all", 3) == [0, 1, 2]
    assert parse_classes("--digit", "7", 10) == [7]
    assert parse_classes("--digit", "2,0", 3) == [2, 0]
    for text in ("10", "-1", "x", "1.5", ""):
        with pytest.raises(ValueError, match="--digit must"):
            parse_classes("--digit", text, 10)


def test_a_sweep_changes_one_code_and_nothing_else():
    points, columns = latent_grid(SPACE, {0: [-1, 0, 1]}, {0: [4]})
    assert columns == len(points) == 3
    assert points.continuous[:, 0].tolist() == [-1, 0, 1]
    assert points.continuous[:, 1].tolist() == [0, 0, 0]
    assert points.categories[:, 0].tolist() == [4, 4, 4]
    assert (points.noise == points.noise[0]).all()


def test_two_axes_columns_then_rows():
    points, columns = latent_grid(SPACE, {1: [-1, 1]}, {0: [3, 5, 7]})
    assert columns == 2
    assert points.continuous[:, 1].tolist() == [-1, 1] * 3
    assert points.categories[:, 0].tolist() == [3, 3, 5, 5, 7, 7]


def test_samples_vary_the_noise_down_the_rows():
    points, columns = latent_grid(SPACE, {0: [-1, 1]}, {0: [3]}, samples=4, seed=5)
    assert columns == 2
    rows = points.noise.view(4, 2, 4)
    assert torch.equal(rows[:, 0], rows[:, 1])
    assert len(rows[:, 0].unique(dim=0)) == 4
    again, _ = latent_grid(SPACE, {0: [-1, 1]}, {0: [3]}, samples=4, seed=5)
    other, _ = latent_grid(SPACE, {0: [-1, 1]}, {0: [3]}, samples=4, seed=6)
    assert torch.equal(points.noise, again.noise)
    assert not torch.equal(points.noise, other.noise)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (({0: [0, 1], 1: [0, 1]}, {0: [1, 2]}), "vary c1, c2, category 1"),
        (({0: [0, 1]}, {0: [1, 2]}, 2), "category 1, samples"),
        (({2: [0]}, {}), "no c3"),
        (({0: [0.0] * 60, 1: [0.0] * 60}, {}), "fit a sheet"),
    ],
)
def test_requests_that_cannot_be_drawn(request_, message):
    with pytest.raises(ValueError, match=message):
        latent_grid(SPACE, *request_)
