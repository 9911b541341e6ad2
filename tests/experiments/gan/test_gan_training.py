"""The loop of a game: it goes on exactly where it stopped, decays its noise, and keeps what it drew."""

import dataclasses
import itertools

import pytest
import torch

import small_runs
from torchtagi.experiments import data
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.evaluation import load_model
from torchtagi.experiments.classify.train import EpochEnd
from torchtagi.experiments.data.cifar import CIFAR10_PREPROCESSING
from torchtagi.experiments.gan import filmstrip
from torchtagi.experiments.gan.config import configure_gan
from torchtagi.experiments.gan.drawing import as_png, read_png, reference_latents, sample_sheet_latents, sheet
from torchtagi.experiments.gan.evaluation import evaluate_gan
from torchtagi.experiments.gan.filmstrip import frame_after
from torchtagi.experiments.gan.frechet import frechet_distance
from torchtagi.experiments.gan.latent import LatentSpace
from torchtagi.experiments.gan.measuring import MEASURE_SEED
from torchtagi.experiments.gan.training import GanTraining, open_engine
from torchtagi.experiments.runs.folder import Run, RunError, result_rows

TIMES = ("seconds", "images_per_second")


def small(task="infogan-mnist", **changes):
    base = {"epochs": 2, "samples": 40, "test_samples": 20, "judge": None, "threads": 1}
    return configure_gan(task, **{**base, **changes})


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
    [
        small(continuous_noise="learned", label_noise=0.1, lead=0.3, grain=0.1, memory=200),
        small(method="adam", label_noise=0.1, grain=0.1),
        small("gan-mnist", joint=False),
        small("infogan-celeba", generator_steps=2, discriminator_every=2),
    ],
    ids=["infogan", "adam", "gan", "celeba"],
)
def test_stopped_anywhere_and_resumed_is_bit_identical(tmp_path, digits, config):
    sets = faces() if config.task == "infogan-celeba" else digits
    whole = finished(tmp_path / "whole", config, sets)
    run = Run.create(tmp_path / "parts", config.as_json())
    training = GanTraining(config, run, sets)
    for events in (2, 3):  # inside the first epoch, then inside the second
        for event in itertools.islice(training.events(), events):
            assert event
        training.save()
        torch.manual_seed(99)  # whatever happens in between
        training = GanTraining.resume(Run.open(run.folder), sets=sets)
    for _ in training.events():
        pass
    assert run.checkpoint.read_bytes() == whole.checkpoint.read_bytes()
    assert untimed(run) == untimed(whole)
    files = sorted(path.relative_to(whole.folder) for path in (whole.folder / "plots").rglob("*.png"))
    assert len(files) == 2 + 1 + 1 + 2 * 3, "sheets, the strip, and frames: the prior and one each batch"
    for file in files:
        assert (run.folder / file).read_bytes() == (whole.folder / file).read_bytes(), file


def test_rows_say_what_was_measured(tmp_path, digits):
    config = small(epochs=1, judge="quick", test_samples=60)
    run = finished(tmp_path / "run", config, digits)
    (row,) = result_rows([run])
    assert (row["task"], row["network"], row["setting"]) == ("infogan-mnist", "infogan", config.setting)
    assert row["error"] == pytest.approx(100 * (1 - row["accuracy"]), abs=1e-3)
    for name in ("own_codes", "digits_drawn", "read_error", "frechet", "c1_slant", "c2_width", "fake_as_fake"):
        assert name in row, name
    assert sorted(run.metrics()[0]["digit_of_code"]) == list(range(10))
    found = evaluate_gan_here(run, digits)
    assert found["accuracy"] == row["accuracy"]
    assert found["neighbour_ratio"] > 0
    assert run.evaluation()["drawn"] == 60


def evaluate_gan_here(run, digits):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load_train_test", lambda name: digits)
        state = torch.get_rng_state()
        found = evaluate_gan(run)
        assert torch.equal(state, torch.get_rng_state())
    return found


def test_faces_are_seen_by_their_own_dnet_another_games_or_a_classifiers(tmp_path, colours, trained):
    sets = faces()
    config = small("infogan-celeba", epochs=1)
    run = finished(tmp_path / "run", config, sets)
    other = finished(tmp_path / "other", dataclasses.replace(config, seed=1), sets)
    classifier = small_runs.finished(
        tmp_path / "classifier", configure("cifar10", "3conv", epochs=1, samples=32, test_samples=16), colours
    )

    def seen_by(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data, "load_train_test", lambda name: sets)
            return evaluate_gan(run, folder)

    found = [seen_by(folder and str(folder)) for folder in (None, run.folder, other.folder, classifier.folder)]
    assert found[0]["judge"] == "its own Dnet"
    assert found[0]["frechet"] == pytest.approx(found[1]["frechet"], rel=1e-4)
    assert len({round(each["frechet"], 3) for each in found}) == 3
    assert found[2]["judge"] == f"Dnet of {other.folder}"
    assert found[3]["judge"] == f"classifier of {classifier.folder}"

    # by hand: the layer before the last, of the images as CIFAR-10's networks see them
    engine, _ = open_engine(run)
    drawn = engine.draw(engine.space.sample(20, torch.Generator().manual_seed(MEASURE_SEED)))
    net, _ = load_model(classifier)
    with torch.no_grad():
        features = [
            net[:-1](CIFAR10_PREPROCESSING.apply(sets.test.to_uint8(images))).mean
            for images in (sets.test.images, drawn)
        ]
    assert found[3]["frechet"] == pytest.approx(frechet_distance(*features), rel=1e-3)

    with pytest.raises(RunError, match="trained on mnist: a judge of infogan-celeba is another such game"):
        seen_by(str(trained.folder))


def test_noise_decays_each_epoch_for_both_parts(digits):
    noises = {"reality_noise_std": 3.0, "code_noise_std": 3.0, "generator_reality_noise_std": 4.0}
    config = small(noise_decay=0.5, noise_floor=1.0, epochs=3, samples=16, **noises)
    training = GanTraining(config, sets=digits)
    seen = []
    for event in training.events():
        if not isinstance(event, EpochEnd):
            engine = training.engine
            seen.append(
                (
                    engine.heads.reality.noise_std.item(),
                    engine.heads.codes.categories[0].noise_std.item(),
                    engine.generator_heads.reality.noise_std.item(),
                )
            )
    assert [n for noises in seen for n in noises] == pytest.approx([3, 3, 4, 1.5, 1.5, 2, 1, 1, 1])


@pytest.mark.parametrize(
    ("own", "heard"),
    [
        ({"generator_code_noise_std": 0.5}, {"code_noise_std": 0.5}),
        (
            {"generator_code_noise_std": None, "generator_continuous_noise_std": 2.0},
            {"c1_noise_std": 2.0, "c2_noise_std": 2.0},
        ),
    ],
)
def test_the_generator_may_hear_codes_with_noises_of_its_own(digits, own, heard):
    config = small(continuous_noise="learned", continuous_noise_std=0.05, samples=16, epochs=1, **own)
    training = GanTraining(config, sets=digits)
    list(training.events())
    engine = training.engine
    noises = engine.heads.codes.noise_stds
    assert noises["c1_noise_std"] != config.continuous_noise_std  # it was learned
    assert engine.generator_heads.codes.noise_stds == pytest.approx({**noises, **heard})


def test_predicted_noise_trains(digits):
    training = GanTraining(small(continuous_noise="predicted", epochs=1, samples=32), sets=digits)
    assert training.engine.players.discriminator.codes[-1].out_features == 15
    rows = [event.row for event in training.events() if isinstance(event, EpochEnd)]
    assert rows[0]["pixel_largest"] < 30


def test_prior_gains(digits):
    plain = GanTraining(small(), sets=digits).engine.players
    scaled = GanTraining(small(output_gain=0.5, var_gain=2.0, relu_prior=True), sets=digits).engine.players
    assert torch.allclose(scaled.generator[-1].weight.mean, 0.5 * plain.generator[-1].weight.mean)
    assert torch.allclose(scaled.generator[-1].weight.var, 0.25 * 4 * plain.generator[-1].weight.var)
    assert torch.allclose(scaled.generator[0].weight.var, 4 * plain.generator[0].weight.var)
    assert torch.allclose(scaled.generator[0].weight.mean, 2**0.5 * plain.generator[0].weight.mean)
    trunk, other = scaled.discriminator.trunk, plain.discriminator.trunk
    assert torch.allclose(trunk[0].weight.mean, 2**0.5 * other[0].weight.mean)


def test_code_gain_makes_codes_louder_beside_the_noise(digits):
    plain = GanTraining(small(code_gain=1.0), sets=digits).engine.players.generator[0].weight
    loud = GanTraining(small(code_gain=4.0), sets=digits).engine.players.generator[0].weight
    assert torch.equal(loud.mean[:, :62], plain.mean[:, :62])
    assert torch.equal(loud.mean[:, 62:], 4 * plain.mean[:, 62:])
    assert torch.equal(loud.var[:, 62:], 16 * plain.var[:, 62:])


def test_stride_prior_makes_the_first_faces_differ():
    def spread(**changes):
        training = GanTraining(small("infogan-celeba", **changes), sets=faces())
        points = training.engine.space.sample(32, torch.Generator().manual_seed(0))
        return training.engine.draw(points).std(0).mean().item()

    plain = spread(relu_prior=False, stride_prior=False)
    strides = spread(relu_prior=False, stride_prior=True)
    assert strides > 4 * plain, "three layers of stride 2"
    assert spread() > 4 * strides


def test_resume_refuses_another_setting(tmp_path, digits):
    run = Run.create(tmp_path / "run", small().as_json())
    with pytest.raises(RunError, match="was started with joint True, not False"):
        GanTraining.resume(run, dataclasses.replace(small(), joint=False), digits)


def test_more_epochs_may_be_asked_for(tmp_path, digits):
    run = finished(tmp_path / "run", small(epochs=1, samples=16), digits)
    training = GanTraining.resume(run, dataclasses.replace(small(epochs=1, samples=16), epochs=2), digits)
    for _ in training.events():
        pass
    assert [row["epoch"] for row in Run.open(run.folder).metrics()] == [1, 2]
    assert Run.open(run.folder).config["epochs"] == 2


def test_opened_games_draw_what_they_drew(tmp_path, digits):
    config = small(epochs=1, samples=16)
    run = Run.create(tmp_path / "run", config.as_json())
    training = GanTraining(config, run, digits)
    list(training.events())
    points = training.engine.space.sample(3, torch.Generator().manual_seed(0))
    engine, pixels = open_engine(Run.open(run.folder))
    assert torch.equal(engine.draw(points), training.engine.draw(points))
    assert pixels == digits.train.preprocessing
    run.checkpoint.unlink()
    with pytest.raises(RunError, match="no checkpoint"):
        open_engine(run)


def test_looking_leaves_the_game_as_it_is(digits):
    training = GanTraining(small(samples=16, epochs=1), sets=digits)
    list(training.steps())
    engine = training.engine
    before = {key: value.clone() for key, value in engine.players.state_dict().items()}
    random = torch.get_rng_state()
    engine.opinions(digits.test.images[:7])
    engine.features(digits.test.images[:7])
    engine.draw(engine.space.sample(3, torch.Generator().manual_seed(0)))
    assert all(torch.equal(before[key], value) for key, value in engine.players.state_dict().items())
    assert all(part.training for part in engine.players.modules())
    assert torch.equal(random, torch.get_rng_state())


def test_the_rival_leaves_its_discriminator_alone_in_the_generators_part(digits):
    training = GanTraining(small(method="adam", discriminator_every=2), sets=digits)
    engine = training.engine
    engine.begin_epoch(0)
    engine.step(digits.train.images[:8], 0)
    before = {key: value.clone() for key, value in engine.players.discriminator.state_dict().items()}
    drawn = {key: value.clone() for key, value in engine.players.generator.state_dict().items()}
    engine.step(digits.train.images[:8], 1)
    assert all(torch.equal(before[k], v) for k, v in engine.players.discriminator.state_dict().items())
    assert any(not torch.equal(drawn[k], v) for k, v in engine.players.generator.state_dict().items())


def test_the_rivals_generator_hears_codes_with_a_weight_of_its_own(digits):
    after = []
    for changes in ({}, {"generator_code_weight": 3.0}, {"code_weight": 1.0}, {"generator_code_weight": None}):
        training = GanTraining(small(method="adam", **changes), sets=digits)
        next(training.events())
        after.append([list(player.parameters()) for player in training.engine.players.children()])
    (d, g), (d_louder_for_g, g_louder), (d_louder, _), (d_same, g_quiet) = after
    assert all(torch.equal(a, b) for a, b in zip(d, d_louder_for_g, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(d, d_same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(g, g_louder, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(g, g_quiet, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(d, d_louder, strict=True))


def test_the_rivals_generator_has_norms_and_bounded_pixels(digits):
    engine = GanTraining(small(method="adam"), sets=digits).engine
    kinds = [type(layer).__name__ for layer in engine.players.generator]
    assert kinds[:3] == ["Linear", "BatchNorm1d", "ReLU"]
    assert kinds[-1] == "Tanh"
    places = [place for place, kind in enumerate(kinds) if kind == "ReLU"]
    assert all(kinds[place - 1].startswith("BatchNorm") for place in places)
    assert len(places) == 3


def test_the_rivals_discriminator_normalises_both_kinds_of_images_as_one_batch(digits):
    engine = GanTraining(small(method="adam", grain=0.0), sets=digits).engine
    engine.begin_epoch(0)
    real, images = digits.train.images[:8], torch.randn(8, 1, 28, 28)
    truth, lie, codes = engine.verdict(real, images)
    both = engine.players.discriminator(torch.cat([real, images]))
    assert torch.equal(torch.cat([truth, lie]), both.reality)
    assert torch.allclose(codes, both.codes[8:], atol=1e-6)


def test_frames_are_due_at_quarters():
    assert [b for b in range(1, 101) if frame_after(b, 100)] == [25, 50, 75, 100]
    assert [frame_after(b, 3) for b in (1, 2, 3)] == [1, 2, 3], "of a short epoch each batch"
    assert frame_after(1, 1) == 1


def test_the_strip_has_a_frame_a_column_and_lines_between(tmp_path):
    run = Run.create(tmp_path / "run", {"task": "x", "network": "x", "setting": "x", "seed": 0})
    for number in range(3):
        filmstrip.add_frame(run, 0, number, torch.full((2, 1, 4, 5), 10 * number, dtype=torch.uint8))
    filmstrip.add_frame(run, 1, 1, torch.full((2, 1, 4, 5), 200, dtype=torch.uint8))
    filmstrip.write_strip(run, 1)
    strip = read_png(run.folder / filmstrip.STRIP)[0, ::2, ::2]
    assert strip.shape == (2 * 6 + 2, 3 * 7 + 2), "the frame of the second epoch is not yet history"
    for number in range(3):
        left = 7 * number
        assert strip[2:6, left : left + 2].eq(128).all()
        assert strip[2:6, left + 2 : left + 7].eq(10 * number).all()


def test_sheets():
    images = torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 1, 4, 5)
    page = sheet(images, 2)
    assert page.shape == (1, 2 * 6 + 2, 2 * 7 + 2)
    assert page[0, 2:6, 2:7].eq(0).all()
    assert page[0, 2:6, 9:14].eq(1).all()
    assert page[0, 8:12, 2:7].eq(2).all()
    assert page[0, 8:12, 9:14].eq(128).all(), "an empty place"
    with pytest.raises(ValueError, match="uint8"):
        sheet(torch.zeros(2, 1, 4, 4), 2)


@pytest.mark.parametrize("channels", [1, 3])
def test_png_round_trip(tmp_path, channels):
    page = torch.randint(0, 256, (channels, 7, 9), dtype=torch.uint8)
    (tmp_path / "page.png").write_bytes(as_png(page, scale=1))
    assert torch.equal(read_png(tmp_path / "page.png"), page)


def test_sheets_show_the_same_points_every_time():
    space = LatentSpace(5, (10, 10), 2)
    a, b = sample_sheet_latents(space), sample_sheet_latents(space)
    assert torch.equal(a.noise, b.noise)
    assert a.categories[:, 0].tolist() == [c for c in range(10) for _ in range(10)]
    one = reference_latents(space)
    assert one.categories[:, 0].tolist() == list(range(10))
    assert (one.noise == one.noise[0]).all()
    assert (one.categories[:, 1] == one.categories[0, 1]).all()


@pytest.mark.parametrize("method", ["tagi", "adam"])
def test_the_average_of_the_players_draws_and_the_game_knows_nothing_of_it(method, digits):
    def played(average):
        training = GanTraining(small(method=method, samples=48, epochs=1, average=average), sets=digits)
        list(training.steps())
        return training.engine

    averaged, plain = played(500), played(0)
    for key, value in plain.players.state_dict().items():
        assert torch.equal(value, averaged.players.state_dict()[key]), key
    assert plain.shown is plain.players
    assert averaged.average.count == 3
    latents = plain.space.sample(3, torch.Generator().manual_seed(0))
    assert not torch.equal(plain.draw(latents), averaged.draw(latents))


def test_games_in_bfloat16_keep_float32_parameters(digits):
    training = GanTraining(small(samples=16, epochs=1, precision="bfloat16"), sets=digits)
    plain = GanTraining(small(samples=16, epochs=1), sets=digits)
    for each in (training, plain):
        list(each.steps())
    mine, its = (next(each.engine.players.generator[3].parameters()) for each in (training, plain))
    assert mine.dtype == torch.float32
    assert not torch.equal(mine, its)
    assert torch.allclose(mine, its, atol=0.02)
    with pytest.raises(ValueError, match="precision must be one of float32, bfloat16, got 'float8'"):
        small(precision="float8")
    with pytest.raises(ValueError, match="method adam has no precision"):
        small(method="adam", precision="bfloat16")
