"""Training a classifier by TAGI: what was asked for, made into a loop.

    run = Run.create(folder, config.as_json())
    training = Training(config, run)
    for event in training.events():
        ...

`torchtagi.experiments.classify.loop` says what the events are and how a run goes on where it stopped.
"""

from __future__ import annotations

from torchtagi.experiments import data
from torchtagi.experiments.classify.config import TrainConfig, configure
from torchtagi.experiments.classify.loop import EpochSums, Loop, Step
from torchtagi.experiments.classify.tagi_learner import TagiLearner, prior_network
from torchtagi.experiments.runs.folder import Row
from torchtagi.experiments.runs.resumable import EpochEnd

__all__ = ["EpochEnd", "EpochSums", "Step", "TrainConfig", "Training", "configure", "prior_network"]


class Training(Loop[TrainConfig]):
    """A TAGI run under way."""

    learner: TagiLearner

    @staticmethod
    def read_config(content: Row) -> TrainConfig:
        return TrainConfig.from_json(content)

    @staticmethod
    def make_learner(config: TrainConfig, train: data.ImageSet) -> TagiLearner:
        return TagiLearner(config, train)
