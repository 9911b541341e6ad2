"""A comparison cut down to seconds."""

from torchtagi.experiments.compare import Study


def study(**changes):
    values = {
        "task": "mnist",
        "network": "cnn",
        "epochs": 2,
        "samples": 48,
        "test_samples": 40,
        "stream": False,
        "augment": True,
        "target_error": 50.0,
        "tune_samples": 40,
        "tune_epochs": 1,
    }
    return Study(**{**values, **changes})
