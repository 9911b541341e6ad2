"""What a GAN's configuration says, refuses and is named, and the constants behind it."""

import dataclasses

import pytest
import torch

from torchtagi.experiments.gan.config import GanConfig, configure_gan
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.runs.folder import RunError


@pytest.mark.parametrize("task", GAN_TASKS)
def test_defaults_and_the_papers_setting(task):
    ours, papers = configure_gan(task), configure_gan(task, paper=True)
    assert (ours.setting, papers.setting, configure_gan(task, method="adam").setting) == (
        "default",
        "paper",
        "adam",
    )
    assert (papers.epochs, papers.batch_size) == (50, 16)
    constants = papers.constants
    codes = 8 if task == "infogan-celeba" else 3
    assert constants.discriminator == constants.generator == (3, codes, codes)
    assert constants.paper
    assert (constants.horizon, constants.average, constants.pseudo_label_noise_std) == (None, 0, None)
    assert not ours.constants.paper
    assert (ours.constants.pseudo_label_noise_std is not None) == (task == "infogan-mnist")


def test_it_has_few_fields():
    assert len(dataclasses.fields(GanConfig)) <= 20


def test_what_decides_the_outcome_shows_in_the_name():
    config = configure_gan("infogan-mnist", batch_size=8, samples=100, epochs=3, seed=2)
    assert config.name == "infogan-mnist-infogan-default-batch8-samples100-seed2"
    assert configure_gan("infogan-mnist", batch_size=16, epochs=3, threads=1).setting == "default"


def test_json_round_trip():
    config = configure_gan("infogan-celeba", samples=50, method="adam")
    before = torch.get_rng_state()
    content = config.as_json()
    assert torch.equal(before, torch.get_rng_state()), "it draws from nobody's generator"
    assert GanConfig.from_json(content) == config
    for changes, message in (({"method": 3}, "method must be str, got 3"), ({"paper": "no"}, "paper must be bool")):
        with pytest.raises(RunError, match=message):
            GanConfig.from_json({**content, **changes})
    del content["epochs"]
    with pytest.raises(RunError, match="does not say its epochs"):
        GanConfig.from_json(content)


def test_runs_of_older_versions_with_more_fields_are_read():
    config = configure_gan("infogan-mnist")
    content = {**config.as_json(), "grain": 0.2, "joint": True, "average": 500}
    del content["paper"], content["precision"]
    assert GanConfig.from_json(content) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "sgd"}, "method must be one of tagi, adam, got 'sgd'"),
        ({"precision": "float8"}, "precision must be one of float32, bfloat16, got 'float8'"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"test_samples": 1}, "test samples must be a whole number of at least 2, got 1"),
        ({"seed": -1}, "seed"),
        ({"method": "adam", "paper": True}, "--paper and --precision go with method tagi"),
        ({"method": "adam", "precision": "bfloat16"}, "--paper and --precision go with method tagi"),
    ],
)
def test_bad_values_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        configure_gan("infogan-mnist", **changes)


def test_unknown_gans_are_refused():
    with pytest.raises(ValueError, match="there is no GAN 'mnist'; there are infogan-mnist"):
        configure_gan("mnist")
    with pytest.raises(ValueError, match="infogan-celeba has no digits for a judge to read"):
        configure_gan("infogan-celeba", judge="quick")
