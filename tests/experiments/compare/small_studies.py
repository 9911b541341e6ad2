"""A comparison cut down to seconds."""

from pathlib import Path

from torchtagi.experiments.compare.compare import compare
from torchtagi.experiments.compare.runner import Runner
from torchtagi.experiments.compare.study import Study
from torchtagi.experiments.compare.sweep import sweep
from torchtagi.experiments.runs.folder import COMPARISON, SWEEP


def study(**changes):
    sizes = {"epochs": 2, "samples": 48, "test_samples": 40, "tune_samples": 40, "tune_epochs": 1}
    return Study(**{"task": "mnist", "network": "cnn", **sizes, **changes})


def compared(asked, methods, folder, seeds=(0,), watch=None, **options):
    runner = Runner(Path(folder), COMPARISON, asked, **({} if watch is None else {"watch": watch}))
    return compare(runner, methods, seeds, **options)


def swept(asked, methods, folder):
    return sweep(Runner(Path(folder), SWEEP, asked), methods, [0])
