"""The baselines by name, and a trained one from its run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from torchtagi import checkpoint
from torchtagi.experiments.baselines.backprop import Backprop, Ensemble, McDropout
from torchtagi.experiments.baselines.baseline import Baseline
from torchtagi.experiments.baselines.config import BaselineConfig
from torchtagi.experiments.baselines.ivon import Ivon
from torchtagi.experiments.baselines.laplace import LastLayerLaplace
from torchtagi.experiments.baselines.vogn import VognLearner
from torchtagi.experiments.runs.folder import Run

LEARNERS: Mapping[str, type[Baseline]] = {
    "sgd": Backprop,
    "adam": Backprop,
    "mc-dropout": McDropout,
    "laplace": LastLayerLaplace,
    "vogn": VognLearner,
    "ivon": Ivon,
    "ensemble": Ensemble,
}


def load_baseline(run: Run, device: str = "cpu") -> Baseline:
    """What learned in `run`, ready to predict."""
    run.require_checkpoint()
    config = dataclasses.replace(BaselineConfig.from_json(run.config), device=device)
    images = int(checkpoint.read(run.checkpoint)[1].get("images", torch.tensor(1)))
    with torch.random.fork_rng(devices=[]):  # an initialisation is drawn, for nothing here
        baseline = LEARNERS[config.method](config, images)
    baseline.restore(run.checkpoint)
    return baseline
