"""The loop of a GAN: it goes on exactly where it stopped, and keeps what it drew."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

import small_runs
from torchtagi.experiments import data
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.evaluation import load_model
from torchtagi.experiments.data.cifar import CIFAR10_PREPROCESSING
from torchtagi.experiments.gan import drawing
from torchtagi.experiments.gan.config import build_gan, configure_gan, open_gan
from torchtagi.experiments.gan.drawing import as_png, sheet
from torchtagi.experiments.gan.evaluation import MEASURE_SEED, evaluate_gan
from torchtagi.experiments.gan.latent import LatentSpace
from torchtagi.experiments.gan.measures import frechet_distance
from torchtagi.experiments.gan.networks import scale_prior
from torchtagi.experiments.gan.training import GanTraining
from torchtagi.experiments.runs.folder import Run, RunError, result_rows

TIMES = ("seconds", "samples_per_second")


def small(task="infogan-mnist", **changes):
    base = {"epochs": 2, "samples": 24, "test_samples": 20, "judge": None, "threads": 1}
    return configure_gan(task, **{**base, **changes})


@pytest.fixture(scope="module")
def faces():
    generator = torch.Generator().manual_seed(5)

    def pictures(n):
        return data.ImageSet(
            name="celeba",
            images=torch.randn(n, 3, 32, 32, generator=generator),
            labels=None,
            classes=(),
            preprocessing=data.Preprocessing((0.5,) * 3, (0.25,) * 3),
        )

    return data.TrainTest(pictures(40), pictures(20))


def finished(folder, config, sets):
    run = Run.create(folder, config.as_json())
    for _ in GanTraining(config, run, sets).events():
        pass
    return run


def untimed(run):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in run.metrics()]


@pytest.mark.parametrize(
    "config",
    [small(), small(method="adam"), small("gan-mnist", paper=True), small("infogan-celeba")],
    ids=["infogan", "adam", "paper", "celeba"],
)
def test_stopped_anywhere_and_resumed_is_bit_identical(tmp_path, digits, faces, config):
    sets = faces if config.task == "infogan-celeba" else digits
    whole = finished(tmp_path / "whole", config, sets)
    run = Run.create(tmp_path / "parts", config.as_json())
    training = GanTraining(config, run, sets)
    for events in (1, 3):  # inside the first epoch, then inside the second
        for event in itertools.islice(training.events(), events):
            assert event
        training.save()
        torch.manual_seed(99)  # whatever happens in between
        training = GanTraining.resume(Run.open(run.folder), config, sets)
    for _ in training.events():
        pass
    assert run.checkpoint.read_bytes() == whole.checkpoint.read_bytes()
    assert untimed(run) == untimed(whole)
    files = sorted(path.relative_to(whole.folder) for path in (whole.folder / "plots").rglob("*.png"))
    assert len(files) == 2 + 1, "sheets and the strip"
    for file in files:
        assert (run.folder / file).read_bytes() == (whole.folder / file).read_bytes(), file


def test_rows_say_what_was_measured_and_evaluation_says_it_again(tmp_path, digits, monkeypatch):
    config = small(epochs=1, judge="quick", test_samples=60)
    run = finished(tmp_path / "run", config, digits)
    (row,) = result_rows([run])
    assert (row["task"], row["network"], row["setting"]) == ("infogan-mnist", "infogan", config.setting)
    assert row["error"] == pytest.approx(100 * (1 - row["accuracy"]), abs=1e-3)
    for name in ("own_codes", "read_error", "frechet", "c1_slant", "c2_width", "fake_as_fake", "train_fooled"):
        assert name in row, name
    assert sorted(run.metrics()[0]["digit_of_code"]) == list(range(10))
    monkeypatch.setattr(data, "load_train_test", lambda name: digits)
    state = torch.get_rng_state()
    found = evaluate_gan(run)
    assert torch.equal(state, torch.get_rng_state())
    assert (found["accuracy"], found["frechet"]) == (row["accuracy"], row["frechet"])
    assert found["neighbour_ratio"] > 0
    assert run.evaluation()["drawn"] == 60


def test_faces_are_compared_by_their_own_dnet_or_a_classifier(tmp_path, colours, faces, trained, monkeypatch):
    run = finished(tmp_path / "run", small("infogan-celeba", epochs=1), faces)
    classifier = small_runs.finished(
        tmp_path / "classifier", configure("cifar10", "3conv", epochs=1, samples=32, test_samples=16), colours
    )
    monkeypatch.setattr(data, "load_train_test", lambda name: faces)
    own, other = evaluate_gan(run), evaluate_gan(run, str(classifier.folder))
    assert own["judge"] == "its own Dnet"
    assert other["judge"] == f"classifier of {classifier.folder}"

    # by hand: the layer before the last, of the images as CIFAR-10's networks see them
    gan, _ = open_gan(run)
    drawn = gan.draw(gan.space.sample(20, MEASURE_SEED))
    net = load_model(classifier).predicting
    with torch.no_grad():
        features = [
            net[:-1](CIFAR10_PREPROCESSING.apply(faces.test.to_uint8(images))).mean
            for images in (faces.test.images, drawn)
        ]
    assert other["frechet"] == pytest.approx(frechet_distance(*features), rel=1e-3)
    with pytest.raises(RunError, match="was trained on mnist: the judge here needs a cifar10 run"):
        evaluate_gan(run, str(trained.folder))


def test_a_deep_prior_makes_the_first_faces_differ():
    """Each transposed convolution of stride 2 would halve what they differ by."""

    def spread(gan):
        return gan.draw(gan.space.sample(16, seed=0)).std(0).mean().item()

    ours, papers = (build_gan(small("infogan-celeba", paper=paper)) for paper in (False, True))
    scale_prior(papers.networks, papers.space.noise, code_gain=2.0, deep=False)
    assert spread(ours) > 20 * spread(papers)


def test_resume_refuses_another_setting(tmp_path, digits):
    run = Run.create(tmp_path / "run", small().as_json())
    with pytest.raises(RunError, match="was started with paper False, not True"):
        GanTraining.resume(run, dataclasses.replace(small(), paper=True), digits)


def test_more_epochs_may_be_asked_for(tmp_path, digits):
    run = finished(tmp_path / "run", small(epochs=1, samples=16), digits)
    training = GanTraining.resume(run, dataclasses.replace(small(epochs=1, samples=16), epochs=2), digits)
    for _ in training.events():
        pass
    assert [row["epoch"] for row in Run.open(run.folder).metrics()] == [1, 2]
    assert Run.open(run.folder).config["epochs"] == 2


def test_opened_gans_draw_what_they_drew(tmp_path, digits):
    config = small(epochs=1, samples=16)
    run = Run.create(tmp_path / "run", config.as_json())
    training = GanTraining(config, run, digits)
    list(training.events())
    points = training.gan.space.sample(3, seed=0)
    gan, pixels = open_gan(Run.open(run.folder))
    assert torch.equal(gan.draw(points), training.gan.draw(points))
    assert pixels == digits.train.preprocessing
    run.checkpoint.unlink()
    with pytest.raises(RunError, match="no checkpoint"):
        open_gan(run)


@pytest.mark.parametrize("method", ["tagi", "adam"])
def test_evaluation_is_by_the_average_and_leaves_no_trace(method, digits):
    training = GanTraining(small(method=method, samples=32, epochs=1), sets=digits)
    list(training.events())
    gan = training.gan
    before = {key: value.clone() for key, value in gan.networks.state_dict().items()}
    random = torch.get_rng_state()
    points = gan.space.sample(3, seed=0)
    gan.classify(digits.test.images[:7])
    gan.features(digits.test.images[:7])
    averaged = gan.draw(points)
    assert all(torch.equal(before[key], value) for key, value in gan.networks.state_dict().items())
    assert all(part.training for part in gan.networks.modules())
    assert torch.equal(random, torch.get_rng_state())
    assert gan.average.count == 2
    gan.average = None
    assert not torch.equal(averaged, gan.draw(points))


def test_gans_in_bfloat16_keep_float32_parameters(digits):
    training = GanTraining(small(samples=16, epochs=1, precision="bfloat16"), sets=digits)
    plain = GanTraining(small(samples=16, epochs=1), sets=digits)
    for each in (training, plain):
        list(each.events())
    mine, its = (next(each.gan.networks.generator[3].parameters()) for each in (training, plain))
    assert mine.dtype == torch.float32
    assert not torch.equal(mine, its)
    assert torch.allclose(mine, its, atol=0.02)


# ---- the baseline --------------------------------------------------------------------------------------------


def test_backprops_generator_step_leaves_its_discriminator_alone(digits):
    gan = build_gan(small(method="adam"))
    gan.begin_epoch(0)
    discriminator, generator = gan.networks.discriminator, gan.networks.generator
    before = {key: value.clone() for key, value in discriminator.state_dict().items()}
    drawing_before = {key: value.clone() for key, value in generator.state_dict().items()}
    latents = gan.space.sample(8)
    gan.generator_step(digits.train.images[:8], generator(gan.space.encode(latents)), latents)
    assert all(torch.equal(before[key], value) for key, value in discriminator.state_dict().items())
    assert any(not torch.equal(drawing_before[key], value) for key, value in generator.state_dict().items())


def test_backprops_generator_has_norms_and_bounded_pixels():
    kinds = [type(layer).__name__ for layer in build_gan(small(method="adam")).networks.generator]
    assert kinds[:3] == ["Linear", "BatchNorm1d", "ReLU"]
    assert kinds[-1] == "Tanh"
    places = [place for place, kind in enumerate(kinds) if kind == "ReLU"]
    assert all(kinds[place - 1].startswith("BatchNorm") for place in places)
    assert len(places) == 3


def test_backprops_discriminator_normalises_both_kinds_of_images_as_one_batch(digits):
    gan = build_gan(small(method="adam"))
    gan.constants = dataclasses.replace(gan.constants, instance_noise=0.0)
    gan.begin_epoch(0)
    real, images = digits.train.images[:8], torch.randn(8, 1, 28, 28)
    of_real, of_images, codes = gan.discriminate(real, images)
    both = gan.networks.discriminator(torch.cat([real, images]))
    assert torch.equal(torch.cat([of_real, of_images]), both.labels)
    assert torch.allclose(codes, both.codes[8:], atol=1e-6)


# ---- drawings ------------------------------------------------------------------------------------------------


def read_png(path):
    """A sheet (C, H, W) back from a file of scale 1."""
    with Image.open(path) as image:
        pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_strip_has_an_epoch_a_column_and_lines_between(tmp_path, channels):
    run = Run.create(tmp_path / "run", {"task": "x", "network": "x", "setting": "x", "seed": 0})
    first = torch.arange(20).view(-1, 1, 1, 1) % 10 == 0  # in its row
    for epoch, value in ((1, 10), (2, 20), (4, 200), (3, 30)):  # the fourth is of before a resume
        drawing.draw_epoch(run, epoch, (first * value).expand(20, channels, 4, 5).byte())
    strip = read_png(run.folder / drawing.STRIP)[:, ::2, ::2]
    assert strip.shape == (channels, 2 * 6 + 2, 3 * 7 + 2)
    for number in range(3):
        left = 7 * number
        assert strip[:, 2:6, left : left + 2].eq(128).all()
        assert strip[:, 2:6, left + 2 : left + 7].eq(10 * (number + 1)).all()
    assert strip[..., -2:].eq(128).all()


def test_sheets():
    images = torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 1, 4, 5)
    page = sheet(images, 2)
    assert page.shape == (1, 2 * 6 + 2, 2 * 7 + 2)
    assert page[0, 2:6, 2:7].eq(0).all()
    assert page[0, 2:6, 9:14].eq(1).all()
    assert page[0, 8:12, 2:7].eq(2).all()
    assert page[0, 8:12, 9:14].eq(128).all(), "an empty place"


@pytest.mark.parametrize("channels", [1, 3])
def test_png_round_trip(tmp_path, channels):
    page = torch.randint(0, 256, (channels, 7, 9), dtype=torch.uint8)
    (tmp_path / "page.png").write_bytes(as_png(page, scale=1))
    assert torch.equal(read_png(tmp_path / "page.png"), page)


def test_sheets_show_the_same_points_every_time():
    space = LatentSpace(5, (10, 10), 2)
    a, b = drawing.sample_sheet_latents(space), drawing.sample_sheet_latents(space)
    assert torch.equal(a.noise, b.noise)
    assert a.categories[:, 0].tolist() == [c for c in range(10) for _ in range(10)]
