"""The measures on data whose answers are known."""

import math

import pytest
import scipy.linalg
import torch

from torchtagi.experiments.classify.evaluation import load_model
from torchtagi.experiments.gan.evaluation import judge_from_run, quick_judge
from torchtagi.experiments.gan.latent import LatentSpace
from torchtagi.experiments.gan.measures import (
    code_effects,
    code_measures,
    copying,
    correlation,
    frechet_distance,
    nearest_distance,
    slant,
    stroke_width,
)


def bar(slope=0.0, width=3.0, side=28, height=20):
    """A straight stroke through the middle, its edges grey where a pixel is partly covered. `width` is across the
    stroke, `slope` how far it leans to the right for each unit of height."""
    fine = 8
    y, x = torch.meshgrid(*[(torch.arange(side * fine) + 0.5) / fine - side / 2] * 2, indexing="ij")
    distance = (x + slope * y).abs() / math.sqrt(1 + slope**2)
    mark = ((distance < width / 2) & (y.abs() < height / 2)).float()
    return torch.nn.functional.avg_pool2d(mark[None, None], fine)


# ---- strokes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [-0.6, -0.2, 0.0, 0.3, 0.6])
def test_slant_of_sheared_bars(slope):
    assert slant(bar(slope)).item() == pytest.approx(slope, abs=0.02)


@pytest.mark.parametrize("width", [2.0, 2.5, 3.0, 4.0, 5.0])
@pytest.mark.parametrize("slope", [0.0, 0.4])
def test_width_of_bars(width, slope):
    assert stroke_width(bar(slope, width)).item() == pytest.approx(width, rel=0.16)


def test_width_grows_with_the_stroke_and_does_not_mind_its_brightness():
    widths = stroke_width(torch.cat([bar(width=w) for w in (2, 2.5, 3, 3.5, 4)]))
    assert (widths.diff() > 0.2).all()
    assert stroke_width(0.3 * bar()).item() == pytest.approx(stroke_width(bar()).item())


def test_ink_up_to_the_border_has_an_edge_there():
    assert stroke_width(torch.ones(1, 1, 28, 28)).item() < 28


def test_an_empty_field_has_neither():
    empty = torch.zeros(2, 1, 28, 28)
    empty[1] = bar()[0]
    assert slant(empty).isnan().tolist() == [True, False]
    assert stroke_width(empty).isnan().tolist() == [True, False]


def test_correlation_within_groups():
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(10).repeat(100)
    code = torch.rand(1000, generator=generator) * 2 - 1
    noise = torch.randn(1000, generator=generator)
    measure = 100.0 * group + code + noise  # groups differ far more than the code does
    expected = math.sqrt((1 / 3) / (1 / 3 + 1))
    assert correlation(code, measure, group) == pytest.approx(expected, abs=0.06)
    assert correlation(code, -code + 7.0 * group, group) == pytest.approx(-1)
    assert math.isnan(correlation(code, torch.zeros(1000), group))
    holes = torch.where(torch.arange(1000) < 50, torch.nan, code)
    assert correlation(code, holes, group) == pytest.approx(1)


def test_code_effects_find_who_shears_and_who_thickens():
    points = LatentSpace(1, (10,), 2).sample(150, seed=3)
    images = torch.cat([bar(0.5 * c1.item(), 3 + c2.item()) for c1, c2 in points.continuous])
    found = code_effects(points, images)
    assert found["c1_slant"] > 0.98
    assert found["c2_width"] > 0.95
    assert abs(found["c1_width"]) < 0.25
    assert abs(found["c2_slant"]) < 0.25


# ---- assignment ----------------------------------------------------------------------------------------------


def test_permuted_codes_are_assigned_back():
    generator = torch.Generator().manual_seed(0)
    digits = torch.randint(0, 10, (3000,), generator=generator)
    code_of = torch.randperm(10, generator=generator)
    codes = code_of[digits]
    wrong = torch.rand(3000, generator=generator) < 0.2
    codes[wrong] = (codes[wrong] + 1) % 10
    found = code_measures(codes, digits, codes, None)
    assert [found["digit_of_code"][code] for code in code_of.tolist()] == list(range(10))
    assert found["accuracy"] == pytest.approx(1 - wrong.float().mean().item())
    assert found["own_codes"] == 10


def test_two_digits_that_share_a_code_have_none_of_their_own():
    digits = torch.arange(10).repeat(50)
    codes = digits.clone()
    codes[digits == 9] = 4  # every 9 is read as a 4
    found = code_measures(codes, digits, codes, None)
    assert found["accuracy"] == pytest.approx(0.9)
    assert found["own_codes"] == 8, "code 4 is half fours, half nines"


def test_assignment_beats_greedy():
    """Code 0 fits digit 0 best, but giving it to digit 1 explains more in all."""
    digits = torch.tensor([0] * 10 + [1] * 9 + [0] * 9)
    codes = torch.tensor([0] * 10 + [0] * 9 + [1] * 9)
    found = code_measures(codes, digits, codes, None)
    assert found["digit_of_code"][:2] == [1, 0]
    assert found["accuracy"] == pytest.approx(18 / 28)


# ---- Fréchet -------------------------------------------------------------------------------------------------


def test_frechet_against_the_matrix_root():
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(400, 6, generator=generator, dtype=torch.float64) @ torch.randn(
        6, 6, generator=generator, dtype=torch.float64
    )
    b = torch.randn(300, 6, generator=generator, dtype=torch.float64) @ torch.randn(
        6, 6, generator=generator, dtype=torch.float64
    ) + torch.arange(6)
    root = scipy.linalg.sqrtm(a.t().cov().numpy() @ b.t().cov().numpy()).real
    expected = (a.mean(0) - b.mean(0)).square().sum() + a.t().cov().trace() + b.t().cov().trace() - 2 * root.trace()
    assert frechet_distance(a, b) == pytest.approx(expected.item(), rel=1e-6)


def test_frechet_of_shifted_and_scaled_clouds():
    a = torch.randn(5000, 4, generator=torch.Generator().manual_seed(1))
    assert frechet_distance(a, a) == pytest.approx(0, abs=1e-6)
    assert frechet_distance(a, a + torch.tensor([3.0, 0, 0, 4])) == pytest.approx(25, rel=1e-4)
    assert frechet_distance(a, 2 * a) == pytest.approx(4, rel=0.1), "each of four spreads grows by one"
    assert frechet_distance(a[:, :1], a[:, :1]) == pytest.approx(0, abs=1e-6), "one feature"


def test_fewer_images_than_features_are_no_obstacle():
    a = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    assert frechet_distance(a, a + 1) == pytest.approx(40, rel=1e-3)


# ---- the judge -----------------------------------------------------------------------------------------------


def test_the_judges_error_counts_what_the_code_did_not_mean():
    digits = torch.arange(10).repeat(3)
    digit_of = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 8, 7])
    drawn = torch.arange(10).repeat(10)
    read = digit_of[drawn]
    read[:7] = (read[:7] + 1) % 10
    found = code_measures(digit_of.argsort()[digits], digits, drawn, read)
    assert found["digit_of_code"] == digit_of.tolist()
    assert (found["accuracy"], found["error"]) == (1, 0)
    assert found["read_error"] == pytest.approx(7)
    assert "read_error" not in code_measures(digits, digits, drawn, None)


def test_quick_judge_reads_digits_and_disturbs_nobody(digits):
    few = digits.train.subset(slice(3000)).to("cpu", torch.channels_last)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    judge = quick_judge(few, batch_size=16)
    assert torch.equal(state, torch.get_rng_state())
    read, features = judge.predict(digits.test.images[:500]).labels, judge.features(digits.test.images[:500])
    assert (read == digits.test.labels[:500]).float().mean() > 0.85
    assert features.shape == (500, 150)


def test_a_run_can_be_the_judge(trained, digits):
    judge = judge_from_run(str(trained.folder), "mnist")
    read, features = judge.predict(digits.test.images[:200]).labels, judge.features(digits.test.images[:200])
    expected = load_model(trained).predict(digits.test.images[:200]).labels
    assert torch.equal(read, expected)
    assert features.shape == (200, 150)


# ---- copies --------------------------------------------------------------------------------------------------


def test_copies_are_found():
    generator = torch.Generator().manual_seed(0)
    training = torch.randn(300, 1, 4, 4, generator=generator)
    held_out = torch.randn(100, 1, 4, 4, generator=generator)
    copies = copying(training[:100] + 1e-3, training, held_out)
    assert copies["neighbour_ratio"] < 0.01
    assert copies["neighbour_closest_share"] == 1
    new = torch.randn(100, 1, 4, 4, generator=generator)
    fresh = copying(new, training, held_out)
    assert 0.9 < fresh["neighbour_ratio"] < 1.1
    assert fresh["neighbour_closest_share"] < 0.1
    assert nearest_distance(training[:5], training).abs().max() == 0
    by_hand = (new[:, None] - training).square().sum((2, 3, 4)).sqrt().amin(1)
    assert torch.allclose(nearest_distance(new, training), by_hand)


def test_grey_digits_of_the_data_set_have_sensible_strokes(digits):
    images = digits.test.to_uint8(digits.test.images[:300]).float() / 255
    widths, slants = stroke_width(images), slant(images)
    assert 1.5 < widths.median() < 4
    ones = slants[digits.test.labels[:300] == 1]
    assert 0 < ones.median() < 0.6, "people lean to the right"
