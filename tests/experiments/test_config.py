"""Configurations: the two settings, their names, and what is refused."""

import dataclasses

import pytest

from torchtagi.experiments.classify.config import TrainConfig, configure
from torchtagi.experiments.classify.tasks import TASKS
from torchtagi.experiments.runs.folder import RunError


def test_paper_setting_is_the_papers():
    config = configure("mnist", paper=True)
    assert (config.batch_size, config.epochs, config.noise_std, config.noise_decay) == (16, 50, 1.0, 0.975)
    assert (config.rule, config.learn_noise, config.relu_prior, config.prior_inputs) == ("paper", False, False, 0)
    assert config.name == "mnist-cnn-paper-seed0"
    assert not config.augment
    assert configure("cifar10", "resnet18", paper=True).augment, "the paper augments for ResNet18 only"
    assert not configure("cifar10", "3conv", paper=True).augment


def test_noise_decays_from_the_second_epoch_on():
    config = configure("mnist", paper=True)
    assert [config.noise_in(epoch) for epoch in range(3)] == [1.0, 0.975, 0.975**2]


def test_default_setting():
    config = configure("mnist")
    assert (config.rule, config.learn_noise, config.relu_prior, config.prior_inputs) == ("coherent", True, True, 16)
    assert (config.batch_size, config.noise_decay, config.setting) == (16, 1.0, "default")


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"epochs": 3, "batch_size": 16}, "default"),
        ({"batch_size": 64, "rule": "capped"}, "default-batch64-capped"),
        ({"noise_std": 0.3, "learn_noise": False}, "default-noise0.3"),
        ({"paper": True, "noise_std": 0.01, "learn_noise": True, "noise_decay": 1.0}, "paper-learnednoise"),
        ({"paper": True, "seed": 3, "samples": 100}, "paper-samples100"),
        ({"augment": False}, "default-noaugment"),
        ({"signal_spread": 0.5}, "default-spread0.5"),
        ({"sharing_until": None}, "default-sharingalways"),
        ({"sharing_until": 2}, "default-sharinguntil2"),
        ({"average": 0}, "default-noaverage"),
        ({"average": 100}, "default-average100"),
    ],
)
def test_a_changed_hyperparameter_shows_in_the_name(changes, setting):
    assert configure("mnist", **changes).setting == setting


def test_the_norms_place_shows_in_the_name_and_reaches_the_network():
    config = configure("cifar10", "3conv-bn", norm_first=True)
    assert config.setting == "default-normfirst"
    kinds = [type(part).__name__ for part in config.network_of()]
    assert kinds[:4] == ["Conv2d", "BatchNorm2d", "ReLU", "AvgPool2d"]
    kinds = [type(part).__name__ for part in configure("cifar10", "3conv-bn").network_of()]
    assert kinds[:4] == ["Conv2d", "ReLU", "BatchNorm2d", "AvgPool2d"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "foo"}, "rule must be one of .*'foo'"),
        ({"epochs": -1}, "epochs .* got -1"),
        ({"epochs": 1.5}, "epochs .* got 1.5"),
        ({"batch_size": 0}, "batch size .* got 0"),
        ({"seed": -3}, "seed .* got -3"),
        ({"seed": 2**64}, "seed must be below"),
        ({"threads": 0}, "threads .* got 0"),
        ({"samples": 0}, "samples .* got 0"),
        ({"noise_std": 0.0}, "noise .* got 0.0"),
        ({"noise_std": float("inf")}, "noise .* got inf"),
        ({"noise_decay": 1.1}, "decay .* got 1.1"),
        ({"network": "vgg"}, "no network 'vgg'"),
        ({"signal_spread": -1.0}, "signal spread .* got -1.0"),
        ({"average": -1}, "average .* got -1"),
        ({"norm_first": True}, "norm first .* cnn of mnist has none"),
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


def test_json_round_trip_records_size_and_versions():
    config = configure("mnist", seed=4, samples=100)
    content = config.as_json()
    assert TrainConfig.from_json(content) == config
    # 32·17 + 64·(32·25+1) + 150·1025 + 11·151 weights and biases
    assert content["parameters"] == 32 * 17 + 64 * 801 + 150 * 1025 + 11 * 151
    assert {"torchtagi", "torch", "python"} <= content["versions"].keys()
    with pytest.raises(RunError, match="does not say its rule"):
        TrainConfig.from_json({key: value for key, value in content.items() if key != "rule"})


@pytest.mark.parametrize(
    ("task", "network"), [(t.name, n) for t in TASKS.values() for n in t.networks if n != "resnet18"]
)
def test_every_network_takes_its_tasks_images(task, network):
    import torch

    kind = TASKS[task]
    with torch.no_grad():
        z = kind.networks[network].build()(torch.zeros(2, *kind.image_shape))
    assert z.shape == (2, 11)
    assert set(kind.networks[network].paper_error) == {1, 50}


def test_a_configuration_is_a_value():
    with pytest.raises(dataclasses.FrozenInstanceError):
        configure("mnist").seed = 1
