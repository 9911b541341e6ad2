"""Configurations: the two settings, their names, and what is refused."""

import dataclasses
import subprocess
from pathlib import Path

import pytest
import torch

import torchtagi as tagi
from torchtagi.classifier import Classifier
from torchtagi.experiments.classify.config import TrainConfig, configure
from torchtagi.experiments.classify.paper import PaperClassifier
from torchtagi.experiments.classify.tasks import TASKS
from torchtagi.experiments.runs.folder import RunError


def test_a_configuration_says_what_a_user_would_choose():
    assert len(dataclasses.fields(TrainConfig)) <= 14


def test_paper_setting_is_the_papers(digits):
    config = configure("mnist", paper=True)
    assert (config.batch_size, config.epochs, config.noise, config.paper) == (16, 50, None, True)
    assert config.name == "mnist-cnn-paper-seed0"
    assert not config.augment
    assert configure("cifar10", "resnet18", paper=True).augment, "the paper augments for ResNet18 only"
    assert not configure("cifar10", "3conv", paper=True).augment
    model = config.build(digits.train)
    assert isinstance(model, PaperClassifier)
    assert model.posterior.rule == "paper"


def test_default_setting(digits):
    config = configure("mnist")
    assert (config.batch_size, config.noise, config.setting, config.augment) == (16, None, "default", True)
    model = config.build(digits.train)
    assert type(model) is Classifier
    assert model.likelihood.learn_noise


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"epochs": 3, "batch_size": 16, "precision": "bfloat16"}, "default"),
        ({"batch_size": 64}, "default-batch64"),
        ({"noise": 0.3}, "default-noise0.3"),
        ({"paper": True, "noise": 0.5}, "paper-noise0.5"),
        ({"paper": True, "seed": 3, "samples": 100}, "paper-samples100"),
        ({"augment": False}, "default-plain"),
        ({"samples": 100, "test_samples": 50}, "default-samples100-test50"),
    ],
)
def test_a_changed_hyperparameter_shows_in_the_name(changes, setting):
    assert configure("mnist", **changes).setting == setting


def test_the_order_of_changes_does_not_matter():
    assert configure("mnist", noise=0.3, batch_size=8) == configure("mnist", batch_size=8, noise=0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": -1}, "epochs .* got -1"),
        ({"epochs": 1.5}, r"epochs .* got 1\.5"),
        ({"batch_size": 0}, "batch size .* got 0"),
        ({"seed": -3}, "seed .* got -3"),
        ({"seed": 2**64}, "seed must be below"),
        ({"threads": 0}, "threads .* got 0"),
        ({"samples": 0}, "samples .* got 0"),
        ({"noise": 0.0}, r"noise .* got 0\.0"),
        ({"noise": float("inf")}, "noise .* got inf"),
        ({"network": "vgg"}, "no network 'vgg'"),
        ({"precision": "float8"}, "precision must be one of .*'float8'"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
    ],
)
def test_bad_values_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        configure("mnist", **changes)


def test_unknown_task_and_setting():
    with pytest.raises(ValueError, match="no task 'nist'"):
        configure("nist")
    with pytest.raises(TypeError, match="learning_rate"):
        configure("mnist", learning_rate=1.0)


def test_json_round_trip_records_size_and_versions_and_draws_nothing():
    config = configure("mnist", seed=4, samples=100)
    before = torch.get_rng_state()
    content = config.as_json()
    assert torch.equal(before, torch.get_rng_state())
    assert TrainConfig.from_json(content) == config
    # 32·17 + 64·(32·25+1) + 150·1025 + 10·151 weights and biases
    assert content["parameters"] == 32 * 17 + 64 * 801 + 150 * 1025 + 10 * 151
    assert {"torchtagi", "torch", "python"} <= content["versions"].keys()
    asked = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    if asked.stdout and "site-packages" not in tagi.__file__:  # a checkout
        assert asked.stdout.startswith(content["versions"]["commit"].removesuffix("-dirty"))
    with pytest.raises(RunError, match="does not say its epochs"):
        TrainConfig.from_json({key: value for key, value in content.items() if key != "epochs"})
    for bad in ({"task": ["mnist"]}, {"epochs": "2"}, {"network": 3}, {"noise": "loud"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            TrainConfig.from_json({**content, **bad})


@pytest.mark.parametrize(
    ("task", "network"), [(t.name, n) for t in TASKS.values() for n in t.networks if n != "resnet18"]
)
def test_every_network_takes_its_tasks_images(task, network):
    kind = TASKS[task]
    with torch.no_grad():
        z = kind.networks[network].build()(torch.zeros(2, *kind.image_shape))
    assert z.shape == (2, 11)
    assert set(kind.networks[network].paper_error) == {1, 50}


def test_a_configuration_is_a_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        configure("mnist").seed = 1
