"""The judge: an independent classifier that never saw a generated image.

Any `tagi train mnist` run can be one; `quick_judge` trains an ordinary network on the real digits in half a minute.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtagi.experiments import data
from torchtagi.experiments.baselines import configure_baseline
from torchtagi.experiments.classify.evaluation import load_model
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.gan.model import mean_of
from torchtagi.experiments.runs.folder import Run, RunError
from torchtagi.model import PREDICTION_BATCH
from torchtagi.prediction import ClassPrediction

QUICK_SEED = 2021  # the judge is the same for every run that is compared


@dataclass(frozen=True)
class Judge:
    """What predicts with `net`, whose layers but the last give features."""

    net: nn.Sequential
    predict: Callable[[Tensor], ClassPrediction]
    name: str

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """(n, f)"""
        parts = images.to(memory_format=torch.channels_last).split(PREDICTION_BATCH)
        return torch.cat([mean_of(self.net[:-1](x)) for x in parts])


def find_judge(name: str, train: data.ImageSet) -> Judge:
    """`quick`, or the classifier of that run folder."""
    return quick_judge(train.to("cpu")) if name == "quick" else judge_from_run(name, "mnist")


def judge_from_run(folder: str, task: str) -> Judge:
    """The classifier of a `tagi train` run."""
    run = Run.open(folder)
    if run.config["task"] != task:
        raise RunError(f"{folder} was trained on {run.config['task']}: the judge here needs a {task} run")
    model = load_model(run)
    if not isinstance(model.predicting, nn.Sequential):
        raise RunError(f"{folder}: a judge needs a network of layers in sequence, to take its features from")
    return Judge(model.predicting, model.predict, folder)


def quick_judge(train: data.ImageSet, batch_size: int = 64) -> Judge:
    """The paper's CNN as an ordinary network, by an epoch of Adam; leaves the global random state as it was."""
    values = {"learning_rate": 2e-3, "schedule": "cosine"}
    length = {"epochs": 1, "batch_size": batch_size, "test_samples": 1}
    config = configure_baseline("mnist", "adam", None, values, seed=QUICK_SEED, **length)
    with torch.random.fork_rng(devices=[]):
        training = Training(config, sets=data.TrainTest(train, train))
        for _ in training.events():
            pass
    return Judge(training.learner.net.eval(), training.learner.predict, "cnn by Adam, 1 epoch")
