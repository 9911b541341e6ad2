"""Every baseline in the loop: it learns, predicts with honest parts, and goes on exactly where it stopped."""

import dataclasses
import itertools
import json

import pytest
import torch
from torch import nn

from torchtagi.checkpoint import CheckpointError
from torchtagi.experiments.baselines import baseline
from torchtagi.experiments.baselines.baseline import from_draws
from torchtagi.experiments.baselines.methods import METHODS, configure_baseline, load_baseline
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.evaluation import evaluate
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.report.page import write_report
from torchtagi.experiments.runs.folder import Run, RunError
from torchtagi.fitting import EpochEnd, Step, epoch_order

FEW = {"draws": 3, "members": 2}


def tiny(method, changes=None, **settings):
    """Seconds at most: few images, few draws."""
    few = {name: value for name, value in FEW.items() if name in METHODS[method].defaults}
    return configure_baseline(
        "mnist",
        method,
        hyperparameters={**few, **(changes or {})},
        **{"threads": 1, "epochs": 2, "samples": 40, "test_samples": 30, "batch_size": 16, **settings},
    )


def trained(folder, config, sets):
    run = Run.create(folder, config.as_json())
    training = Training(config, run, sets)
    for _ in training.events():
        pass
    return training


@pytest.fixture(scope="module")
def adam_run(digits, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("adam") / "run", tiny("adam", epochs=1), digits).run


def untimed(run):
    return [{k: v for k, v in row.items() if k not in ("seconds", "samples_per_second")} for row in run.metrics()]


@pytest.mark.parametrize("method", METHODS)
def test_resumed_is_bit_identical_and_the_run_predicts_the_same(method, digits, tmp_path):
    config = tiny(method, {"schedule": "cosine"})
    whole = trained(tmp_path / "whole", config, digits)
    run = Run.create(tmp_path / "stopped", config.as_json())
    training = Training(config, run, digits)
    events = training.events()
    while not isinstance(next(events), EpochEnd):
        pass
    next(events)
    training.save()  # in the second epoch, which is augmented
    torch.manual_seed(99)
    for _ in Training.resume(Run.open(run.folder), config, digits).events():
        pass
    assert run.checkpoint.read_bytes() == whole.run.checkpoint.read_bytes()
    assert untimed(run) == untimed(whole.run)
    images = whole.test.images
    state = torch.get_rng_state()
    loaded, own = load_baseline(run).predict(images), whole.learner.predict(images)
    assert torch.equal(state, torch.get_rng_state()), "predicting disturbs nobody's randomness"
    for part in ("probs", "epistemic", "aleatoric"):
        assert torch.equal(getattr(loaded, part), getattr(own, part))
    torch.testing.assert_close(loaded.probs.sum(1), torch.ones(30))
    torch.testing.assert_close(loaded.epistemic + loaded.aleatoric, loaded.probs * (1 - loaded.probs))
    certain = method in ("adam", "sgd")
    assert (loaded.epistemic.max() == 0) == certain, "one network has no epistemic part, many have"


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("adam", {}),
        ("sgd", {}),
        ("vogn", {"learning_rate": 0.1, "mc_samples": 1}),
        ("ivon", {"learning_rate": 1.0}),
    ],
)
def test_learns_digits(method, changes, digits):
    config = tiny(method, changes, samples=480, test_samples=100, epochs=5, augment=False)
    rows = [e.row for e in Training(config, sets=digits).events() if isinstance(e, EpochEnd)]
    assert rows[-1]["error"] < 55, "chance is 90"
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_from_draws_is_the_law_of_total_variance():
    torch.manual_seed(0)
    draws = torch.randn(7, 20, 4).softmax(2)
    found = from_draws(draws)
    torch.testing.assert_close(found.probs, draws.mean(0))
    torch.testing.assert_close(found.epistemic, draws.var(0, correction=0))
    torch.testing.assert_close(found.aleatoric, (draws * (1 - draws)).mean(0))
    torch.testing.assert_close(found.epistemic + found.aleatoric, found.probs * (1 - found.probs))
    alone = from_draws([draws[0]])
    assert torch.equal(alone.probs, draws[0])
    assert alone.epistemic.max() < 1e-12
    with pytest.raises(ValueError, match="at least one"):
        from_draws([])


def test_an_ensemble_averages_its_members(digits, tmp_path):
    training = trained(tmp_path / "run", tiny("ensemble", epochs=1), digits)
    images = training.test.images
    members = training.learner.members
    probs = []
    for member in members:
        member.net.eval()
        with torch.no_grad():
            probs.append(member.net(images).softmax(1))
    assert not torch.allclose(probs[0], probs[1]), "members differ"
    found = training.learner.predict(images)
    torch.testing.assert_close(found.probs, (probs[0] + probs[1]) / 2)
    torch.testing.assert_close(found.epistemic, ((probs[0] - probs[1]) / 2).square())
    other = Training(tiny("ensemble", epochs=1, seed=1), sets=digits)
    seeds = {m.config.seed for m in members} | {m.config.seed for m in other.learner.members}
    assert len(seeds) == 4, "ensembles of different seeds share no member"


def test_an_ensemble_member_is_an_adam_run(digits):
    """Member 0 of seed 0 sees what Adam of seed 0 sees."""
    nets = []
    for method in ("adam", "ensemble"):
        training = Training(tiny(method, epochs=1), sets=digits)
        for _ in training.events():
            pass
        learner = training.learner
        nets.append((learner.members[0] if method == "ensemble" else learner).net.state_dict())
    assert all(torch.equal(nets[0][key], nets[1][key]) for key in nets[0])


def test_dropout_stays_on_in_prediction_and_averages(digits):
    training = Training(tiny("mc-dropout", {"rate": 0.4, "draws": 200}), sets=digits)
    learner, images = training.learner, training.test.images[:8]
    parts = list(learner.net.modules())
    behind = [type(after) for part, after in itertools.pairwise(parts) if isinstance(part, nn.Dropout)]
    assert behind == [nn.Conv2d, nn.Linear, nn.Linear], "before every layer with weights but the first"
    found = learner.predict(images)
    torch.manual_seed(3)
    learner.net.train()
    with torch.no_grad():
        draws = torch.stack([learner.net(images).softmax(1) for _ in range(200)])
    error = 6 * draws.std(0) * (2 / 200) ** 0.5
    assert bool(((found.probs - draws.mean(0)).abs() <= error + 1e-6).all())
    torch.testing.assert_close(found.epistemic, draws.var(0), rtol=0.5, atol=1e-6)
    assert found.epistemic.min() > 0


def test_points_of_a_curve_before_its_last_take_fewer_draws(digits, monkeypatch):
    monkeypatch.setattr(baseline, "CURVE_DRAWS", 2)
    training = Training(tiny("mc-dropout"), sets=digits)
    asked = []
    draws = training.learner.draws
    training.learner.draws = lambda images, count: asked.append(count) or draws(images, count)
    for _ in training.events():
        pass
    training.learner.predict(training.test.images)
    assert asked == [2, 3, 3], "after the first epoch, after the second, and when it has finished"


def test_divergence_says_where(digits):
    training = Training(tiny("sgd", {"learning_rate": 1e6}, batch_size=4), sets=digits)
    with pytest.raises(FloatingPointError, match=r"epoch 1, batch \d+: sgd has diverged"):
        for _ in training.events():
            pass


def drawn(digits, count, seed=0):
    """The training images that `samples` stands for."""
    return digits.train.subset(epoch_order(len(digits.train), seed, -1)[:count])


def test_held_out_images_are_not_learned(digits):
    training = Training(tiny("adam", samples=50, fold=0), sets=digits)
    among = drawn(digits, 50)
    assert torch.equal(training.train.images, among.images[:40])
    assert torch.equal(training.test.labels, among.labels[40:])
    with pytest.raises(ValueError, match="fold 0 of 1 images leaves none to learn"):
        Training(tiny("adam", samples=1, fold=0), sets=digits)
    with pytest.raises(ValueError, match="fold 2 of 2 images leaves none to learn, or none to hold out"):
        Training(tiny("adam", samples=2, fold=2), sets=digits)


def test_every_image_is_held_out_in_one_fold(digits):
    held_out, among = [], drawn(digits, 50)
    for fold in range(5):
        sets = tiny("adam", samples=50, fold=fold).split(digits)
        assert (len(sets.train), len(sets.test)) == (40, 10)
        together = torch.cat([sets.train.images, sets.test.images])
        assert sorted(together.sum((1, 2, 3)).tolist()) == sorted(among.images.sum((1, 2, 3)).tolist())
        held_out.append(sets.test.images)
    assert torch.equal(torch.cat(held_out[::-1]), among.images)
    with pytest.raises(ValueError, match="fold must lie between 0 and 4, got 5"):
        tiny("adam", samples=50, fold=5)


@pytest.mark.parametrize("name", ["epochs", "batch_size", "samples"])
def test_sizes_must_be_positive(name):
    with pytest.raises(ValueError, match=f"{name.replace('_', ' ')} must be a whole number of at least 1, got 0"):
        tiny("adam", **{name: 0})


def test_epochs_of_few_images_are_measured_at_the_end_only(digits, tmp_path):
    run = trained(tmp_path / "run", tiny("adam", test_samples=400), digits).run
    assert ["error" in row for row in run.metrics()] == [False, True]


def test_a_run_of_a_tuning_has_no_report(digits, tmp_path):
    run = trained(tmp_path / "run", tiny("adam", epochs=1, fold=0), digits).run
    with pytest.raises(RunError, match="is of a tuning"):
        write_report(run)


def test_few_images_are_the_seeds_and_the_same_for_every_method(digits):
    def images(config):
        return config.split(digits).train.images.flatten(1)

    adam = images(tiny("adam", seed=3))
    assert torch.equal(adam, images(tiny("vogn", seed=3)))
    assert torch.equal(adam, images(configure("mnist", threads=1, samples=40, seed=3)))
    assert torch.equal(adam, drawn(digits, 40, seed=3).images.flatten(1))
    other = images(tiny("adam", seed=4))
    first = digits.train.images[:40].flatten(1)
    for those in (other, first):
        assert (torch.cdist(adam, those) == 0).any(1).sum() < 5, "other images"
    assert len(adam.unique(dim=0)) == 40, "none twice"
    assert len(images(tiny("adam", samples=None))) == len(digits.train)


def test_a_cosine_schedule_falls_to_zero_and_cannot_be_extended(digits, tmp_path):
    config = tiny("sgd", {"schedule": "cosine", "learning_rate": 0.1}, epochs=1)
    rates = []
    run = Run.create(tmp_path / "run", config.as_json())
    training = Training(config, run, digits)
    for event in training.events():
        if isinstance(event, Step):
            rates.append(training.learner.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.075, 0.025])
    with pytest.raises(RunError, match="was started with epochs 1, not 2"):
        Training.resume(run, dataclasses.replace(config, epochs=2), digits)


def test_evaluation_and_report_are_shared(digits, tmp_path, monkeypatch):
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    monkeypatch.delenv("TAGI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = trained(tmp_path / "run", tiny("mc-dropout"), digits).run
    found = evaluate(run, download=False)
    assert found.found["error"] == run.metrics()[-1]["error"]
    assert found.found["nll"] == pytest.approx(run.metrics()[-1]["nll"], rel=1e-6)
    text = write_report(run).read_text()
    weights = sum(parameter.numel() for parameter in tiny("adam").build_network().parameters())
    assert f"MC-dropout, {weights:,} weights" in text
    assert "From prior to posterior" not in text
    assert "mean training loss" in text


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("vogn", {}, "net.curvature_0_bias is missing"),
        ("sgd", {}, "net.optimizer_0_exp_avg is not in this network"),
        ("ensemble", {}, "net.member0_net_0_bias is missing"),
        ("adam", {"samples": 50}, "learned from 40 images, not 50"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(method, settings, message, adam_run, digits, tmp_path):
    config = tiny(method, epochs=1, **settings)
    run = Run.create(tmp_path / method, config.as_json())
    run.checkpoint.write_bytes(adam_run.checkpoint.read_bytes())
    with pytest.raises(CheckpointError, match=message):
        Training.resume(run, config, digits)


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("adamm", {}, "'adamm'"),
        ("adam", {"rate": 0.1}, "adam has no hyperparameter 'rate'"),
        ("adam", {"learning_rate": -1.0}, "learning rate must be a number of at least 0, got -1.0"),
        ("adam", {"learning_rate": "fast"}, "must be a number of at least 0, got 'fast'"),
        ("adam", {"schedule": "steps"}, "constant, cosine, got 'steps'"),
        ("mc-dropout", {"rate": 1.0}, "below 1"),
        ("mc-dropout", {"draws": 0}, "at least 1"),
        ("vogn", {"mc_samples": 1.5}, "whole number"),
    ],
)
def test_bad_hyperparameters(method, changes, message):
    with pytest.raises(ValueError, match=message):
        configure_baseline("mnist", method, hyperparameters=changes)


def test_settings_have_names():
    config = configure_baseline("mnist", "adam", hyperparameters={"learning_rate": 0.003, "schedule": "cosine"})
    assert config.setting == "adam-lr0.003-cosine"
    assert configure_baseline("mnist", "adam", augment=False).setting == "adam"
    before = torch.get_rng_state()
    content = config.as_json()
    assert torch.equal(before, torch.get_rng_state()), "it draws from nobody's generator"
    assert type(config).from_json(json.loads(json.dumps(content))) == config
