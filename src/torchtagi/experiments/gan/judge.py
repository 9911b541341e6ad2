"""An independent reader of digits: a classifier that never saw a generated image.

Any `tagi train mnist` run can be one; `quick_judge` trains an ordinary network on the real digits in half a minute.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtagi.experiments import data
from torchtagi.experiments import networks as models
from torchtagi.experiments.classify.evaluation import load_model
from torchtagi.experiments.classify.prediction import PREDICTION_BATCH, channels_last
from torchtagi.experiments.runs.folder import Run, RunError
from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods import HierarchicalClassification

QUICK_SEED = 2021  # the judge is the same for every run that is compared


@dataclass(frozen=True)
class Judge:
    """`body` maps images to features, `head` features to outputs, `likelihood` (None: argmax) outputs to labels."""

    body: nn.Module
    head: nn.Module
    likelihood: HierarchicalClassification | None
    name: str

    @torch.no_grad()
    def look(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The digit each image is read as (n,) and its features (n, f)."""
        labels, features = [], []
        for x in images.to(memory_format=torch.channels_last).split(PREDICTION_BATCH):
            hidden = self.body(x)
            out = self.head(hidden)
            labels.append((out if self.likelihood is None else self.likelihood.log_probs(out)).argmax(1))
            features.append(hidden.mean if isinstance(hidden, Gaussian) else hidden)
        return torch.cat(labels), torch.cat(features)


def judge_from_run(run: Run) -> Judge:
    """The classifier of a `tagi train mnist` run."""
    if run.config["task"] != "mnist":
        raise RunError(f"{run.folder} was trained on {run.config['task']}: a judge of digits needs a mnist run")
    return classifier_of(run)


def classifier_of(run: Run) -> Judge:
    """The classifier of a run, its last layer apart."""
    net, likelihood = load_model(run)
    if not isinstance(net, nn.Sequential):
        raise RunError(f"{run.folder}: a judge needs a network of layers in sequence, to take its features from")
    return Judge(net[:-1], net[-1:], likelihood, str(run.folder))


def quick_judge(train: data.ImageSet, epochs: int = 1, batch_size: int = 64) -> Judge:
    """The paper's CNN as an ordinary network, by Adam; leaves the global random state as it was."""
    if train.labels is None:
        raise ValueError(f"{train.name} has no labels for a judge to learn")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(QUICK_SEED)
        net = models.mnist_cnn(10, layers=nn)
    channels_last(net, "cpu")
    optimiser = torch.optim.Adam(net.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda batch: 1 - batch / (epochs * -(-len(train) // batch_size))
    )
    for epoch in range(epochs):
        order = data.epoch_order(len(train), QUICK_SEED, epoch)
        for x, y in data.batches(train, batch_size, order=order):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimiser.step()
            schedule.step()
    net.eval()
    return Judge(net[:-1], net[-1:], None, f"cnn by Adam, {epochs} epoch{'s' if epochs > 1 else ''}")
