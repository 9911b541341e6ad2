"""What a game's configuration says, refuses and is named."""

import dataclasses
import inspect

import pytest

from torchtagi.experiments.gan.config import GanConfig, configure_gan
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.runs.config import RunConfig, parse_changes
from torchtagi.experiments.runs.folder import RunError


@pytest.mark.parametrize("task", GAN_TASKS)
def test_defaults_and_the_papers_setting(task):
    ours, papers = configure_gan(task), configure_gan(task, paper=True)
    assert ours.setting == "default"
    assert ours.use_running
    assert papers.setting == "paper"
    assert papers.rule == "paper"
    assert (papers.epochs, papers.batch_size, papers.noise_decay) == (50, 16, 0.975)
    assert papers.reality_noise_std == 3
    assert papers.code_noise_std == (8 if task == "infogan-celeba" else 3)
    assert not papers.count_frozen
    assert configure_gan(task, method="adam").setting == "adam"


def test_a_changed_knob_shows_in_the_name():
    config = configure_gan("infogan-mnist", reality_noise_std=2.0, joint=False, epochs=3)
    assert config.name == "infogan-mnist-infogan-default-realitynoisestd2.0-nojoint-seed0"
    assert configure_gan("infogan-mnist", epochs=3).setting == "default"


def test_real_digits_have_codes_by_default_and_nothing_else_has():
    assert configure_gan("infogan-mnist").real_code_noise_std is not None
    assert configure_gan("infogan-mnist", method="adam").real_code_weight is not None
    for other in (
        configure_gan("infogan-mnist", paper=True),
        configure_gan("gan-mnist"),
        configure_gan("infogan-celeba"),
        configure_gan("infogan-celeba", method="adam"),
    ):
        assert (other.real_code_noise_std, other.real_code_weight) == (None, None)
        assert other.code_noise_std < 10
        assert other.code_weight == 1.0
        assert other.generator_code_weight is None
    without = configure_gan("infogan-mnist", real_code_noise_std=None)
    assert without.name == "infogan-mnist-infogan-default-norealcodes-seed0"
    assert (without.code_noise_std, without.generator_code_noise_std) == (0.5, 2.0), "Qnet has to hear of classes"
    rival = configure_gan("infogan-mnist", method="adam", real_code_weight=None)
    assert (rival.code_weight, rival.generator_code_weight) == (1.0, None)


def test_noise_decays_to_a_floor_that_does_not_raise_it():
    config = configure_gan("infogan-mnist", noise_decay=0.5, noise_floor=0.3)
    assert [config.decayed(3.0, epoch) for epoch in range(5)] == pytest.approx([3, 1.5, 0.75, 0.375, 0.3])
    assert config.decayed(0.1, 0) == pytest.approx(0.1)


def test_json_round_trip():
    config = configure_gan("infogan-celeba", lead=0.5)
    content = config.as_json()
    assert GanConfig.from_json(content) == config
    del content["label_noise"]
    with pytest.raises(RunError, match="label_noise"):
        GanConfig.from_json(content)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "bold"}, "rule must be one of"),
        ({"method": "sgd"}, "method must be one of"),
        ({"continuous_noise": "some"}, "continuous noise"),
        ({"epochs": 0}, "epochs"),
        ({"generator_steps": 0}, "generator steps"),
        ({"reality_noise_std": 0.0}, "reality noise std must be positive"),
        ({"generator_code_noise_std": -1.0}, "generator code noise std"),
        ({"label_noise": 0.5}, "label noise"),
        ({"lead": 0.0}, "lead must be positive"),
        ({"real_code_noise_std": 0.0}, "real code noise std must be positive and finite, got 0.0"),
        ({"grain": -0.1}, "grain must be finite and not negative, got -0.1"),
        ({"memory": 0}, "memory must be a whole number of at least 1, got 0"),
        ({"noise_decay": 1.5}, "noise decay"),
        ({"seed": -1}, "seed"),
        ({"colour": 1}, "no setting colour"),
    ],
)
def test_bad_values_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        configure_gan("infogan-mnist", **changes)


def test_unknown_games_and_wrong_combinations_are_refused():
    with pytest.raises(ValueError, match="there is no game 'mnist'"):
        configure_gan("mnist")
    with pytest.raises(ValueError, match="method adam has no lead"):
        configure_gan("infogan-mnist", method="adam", lead=0.5)
    with pytest.raises(ValueError, match="method tagi has no generator_lr"):
        configure_gan("infogan-mnist", generator_lr=0.1)
    with pytest.raises(ValueError, match="gan-mnist has no categorical codes: it takes no real code noise std"):
        configure_gan("gan-mnist", real_code_noise_std=1.0)
    with pytest.raises(ValueError, match="--paper"):
        configure_gan("infogan-mnist", method="adam", paper=True)


def test_knobs_are_parsed_as_their_own_kind():
    pairs = [
        "joint=yes",
        "lead=0.4",
        "generator-steps=2",
        "continuous_noise=learned",
        "judge=none",
        "count_frozen=0",
    ]
    assert parse_changes(GanConfig, pairs) == {
        **{"joint": True, "lead": 0.4, "generator_steps": 2, "continuous_noise": "learned"},
        **{"judge": None, "count_frozen": False},
    }


@pytest.mark.parametrize(
    "pair", ["joint", "colour=3", "joint=perhaps", "lead=far", "generator_steps=1.5", "task=x"]
)
def test_knobs_that_make_no_sense_are_refused(pair):
    with pytest.raises(ValueError, match="--set"):
        parse_changes(GanConfig, [pair])


def test_every_field_is_explained_or_speaks_for_itself():
    """A knob without an explanation is one nobody can turn."""
    source = inspect.getsource(RunConfig) + inspect.getsource(GanConfig)
    plain = {"task", "network", "setting", "seed", "epochs", "batch_size", "test_samples", "device", "threads"}
    plain |= {"discriminator_lr", "generator_lr"}
    for entry in dataclasses.fields(GanConfig):
        after = source.split(f"    {entry.name}: ", 1)[1].split("\n", 2)[1]
        assert entry.name in plain or after.strip().startswith('"""'), entry.name
