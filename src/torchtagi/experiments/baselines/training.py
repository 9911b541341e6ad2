"""A baseline in the training loop, and a trained one from its run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from torchtagi.experiments import data
from torchtagi.experiments.baselines.backprop import Backprop, Ensemble, McDropout
from torchtagi.experiments.baselines.baseline import Baseline
from torchtagi.experiments.baselines.config import BaselineConfig
from torchtagi.experiments.baselines.ivon import Ivon
from torchtagi.experiments.baselines.laplace import LastLayerLaplace
from torchtagi.experiments.baselines.vogn import VognLearner
from torchtagi.experiments.classify.loop import Loop
from torchtagi.experiments.runs.folder import Row, Run

LEARNERS: Mapping[str, type[Baseline]] = {
    "sgd": Backprop,
    "adam": Backprop,
    "mc-dropout": McDropout,
    "laplace": LastLayerLaplace,
    "vogn": VognLearner,
    "ivon": Ivon,
    "ensemble": Ensemble,
}


class BaselineTraining(Loop[BaselineConfig]):
    """A baseline's run under way."""

    @staticmethod
    def read_config(content: Row) -> BaselineConfig:
        return BaselineConfig.from_json(content)

    @staticmethod
    def make_learner(config: BaselineConfig, train: data.ImageSet) -> Baseline:
        return LEARNERS[config.method](config, len(train))

    @staticmethod
    def split(config: BaselineConfig, sets: data.TrainTest) -> data.TrainTest:
        """Images held out take the test set's place."""
        sets = Loop.split(config, sets)
        if not config.held_out:
            return sets
        held_out = torch.zeros(len(sets.train), dtype=torch.bool)
        held_out[list(config.held_out_of(len(sets.train)))] = True
        return data.TrainTest(sets.train.subset(~held_out), sets.train.subset(held_out))


def load_baseline(run: Run, device: str = "cpu") -> Baseline:
    """What learned in `run`, ready to predict."""
    run.require_checkpoint()
    config = dataclasses.replace(BaselineConfig.from_json(run.config), device=device)
    images = int(run.read_tensors()[0].get("images", torch.tensor(1)))
    with torch.random.fork_rng(devices=[]):  # an initialisation is drawn, for nothing here
        baseline = LEARNERS[config.method](config, images)
    baseline.restore(run)
    return baseline
