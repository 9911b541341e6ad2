"""Real runs cut down to seconds."""

from pathlib import Path

from torchtagi.experiments import data
from torchtagi.experiments.classify.config import TrainConfig, configure
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.runs.folder import Run


def small(**changes: object) -> TrainConfig:
    """A real configuration, cut down to seconds."""
    return configure("mnist", threads=1, **{"epochs": 2, "samples": 480, "test_samples": 300, **changes})


def finished(folder: Path, config: TrainConfig, sets: data.TrainTest | None = None) -> Run:
    run = Run.create(folder, config.as_json())
    for _ in Training(config, run, sets).events():
        pass
    return run
