"""From what a user asks for to latent points."""

import pytest
import torch

from torchtagi.experiments.gan.latent import LatentSpace
from torchtagi.experiments.gan.request import Request, parse_classes, parse_numbers

SPACE = LatentSpace(4, (10,), 2)


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
    points, columns = Request({0: [-1, 0, 1]}, {0: [4]}).latents(SPACE)
    assert columns == len(points) == 3
    assert points.continuous[:, 0].tolist() == [-1, 0, 1]
    assert points.continuous[:, 1].tolist() == [0, 0, 0]
    assert points.categories[:, 0].tolist() == [4, 4, 4]
    assert (points.noise == points.noise[0]).all()


def test_two_axes_columns_then_rows():
    points, columns = Request({1: [-1, 1]}, {0: [3, 5, 7]}).latents(SPACE)
    assert columns == 2
    assert points.continuous[:, 1].tolist() == [-1, 1] * 3
    assert points.categories[:, 0].tolist() == [3, 3, 5, 5, 7, 7]


def test_samples_vary_the_noise_down_the_rows():
    points, columns = Request({0: [-1, 1]}, {0: [3]}, samples=4, seed=5).latents(SPACE)
    assert columns == 2
    rows = points.noise.view(4, 2, 4)
    assert torch.equal(rows[:, 0], rows[:, 1])
    assert len(rows[:, 0].unique(dim=0)) == 4
    again, _ = Request({0: [-1, 1]}, {0: [3]}, samples=4, seed=5).latents(SPACE)
    other, _ = Request({0: [-1, 1]}, {0: [3]}, samples=4, seed=6).latents(SPACE)
    assert torch.equal(points.noise, again.noise)
    assert not torch.equal(points.noise, other.noise)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request({0: [0, 1], 1: [0, 1]}, {0: [1, 2]}), "vary c1, c2, category 1"),
        (Request({0: [0, 1]}, {0: [1, 2]}, samples=2), "category 1, samples"),
        (Request({2: [0]}), "no c3"),
        (Request({}, {1: [0]}), "no category 2"),
        (Request(samples=0), "samples"),
        (Request(seed=-1), "seed"),
        (Request({0: [0.0] * 60, 1: [0.0] * 60}), "fit a sheet"),
    ],
)
def test_requests_that_cannot_be_drawn(request_, message):
    with pytest.raises(ValueError, match=message):
        request_.latents(SPACE)
