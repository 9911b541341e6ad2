"""The methods that TAGI is compared with, on the same architectures, data and training loop."""

import dataclasses
from collections.abc import Mapping

import torch

from torchtagi import checkpoint
from torchtagi.experiments.baselines.backprop import Backprop, Ensemble, McDropout
from torchtagi.experiments.baselines.baseline import Baseline
from torchtagi.experiments.baselines.config import BaselineConfig, configure_baseline
from torchtagi.experiments.baselines.ivon import Ivon
from torchtagi.experiments.baselines.laplace import LastLayerLaplace
from torchtagi.experiments.baselines.methods import METHODS, Method
from torchtagi.experiments.baselines.vogn import VognLearner
from torchtagi.experiments.runs.folder import Run

__all__ = ["LEARNERS", "METHODS", "BaselineConfig", "Method", "configure_baseline", "load_baseline"]

LEARNERS: Mapping[str, type[Baseline]] = {
    "sgd": Backprop,
    "adam": Backprop,
    "mc-dropout": McDropout,
    "laplace": LastLayerLaplace,
    "vogn": VognLearner,
    "ivon": Ivon,
    "ensemble": Ensemble,
}


def load_baseline(run: Run) -> Baseline:
    """What learned in `run`, ready to predict."""
    run.require_checkpoint()
    config = dataclasses.replace(BaselineConfig.from_json(run.config), device="cpu")
    images = int(checkpoint.read(run.checkpoint)[0]["extra"].get("images", 1))
    with torch.random.fork_rng(devices=[]):  # an initialisation is drawn, for nothing here
        baseline = LEARNERS[config.method](config, images)
    baseline.restore(run.checkpoint)
    return baseline
