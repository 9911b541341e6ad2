"""TAGI as a learner: a Gaussian network, its labels' likelihood and the update."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtagi import data
from torchtagi.condition import CHUNK, condition
from torchtagi.config import TrainConfig
from torchtagi.gaussian import Gaussian
from torchtagi.likelihood import ClassPrediction, HierarchicalClassification
from torchtagi.nn.norm import Norm
from torchtagi.prediction import channels_last, predict
from torchtagi.prior import keep_signal, match_prior, spread_signal, use_relu_prior
from torchtagi.runs import Row, Run
from torchtagi.tasks import find_task
from torchtagi.update import Update


class TagiLearner:
    """Closed-form inference on batches; its checkpoint holds the posterior and the likelihood's noise."""

    def __init__(self, config: TrainConfig, train: data.ImageSet) -> None:
        self.config = config
        self.net = prior_network(config, train)
        self.likelihood = HierarchicalClassification(
            len(find_task(config.task).classes), config.noise_std, config.learn_noise
        ).to(config.device)
        self.posterior = Update(self.net, config.rule, count_sharing=config.count_sharing)

    def start_epoch(self, epoch: int) -> None:
        self.net.train()
        self.likelihood.train()
        self.likelihood.noise_std = self.config.noise_in(epoch)
        self.posterior.count_sharing = self.config.counts_sharing_in(epoch)

    def learn(self, x: Tensor, y: Tensor) -> tuple[int, dict[str, float]]:
        """The coherent rule conditions on a large batch in chunks (see `condition`), the others take it whole."""
        chunk = CHUNK if self.config.rule == "coherent" else len(x)
        wrong, reports = [], []

        def compare(z: Gaussian, labels: Tensor) -> None:
            wrong.append(int((self.likelihood.log_probs(z).argmax(1) != labels).sum()))

        for inputs, labels in zip(x.split(chunk), y.split(chunk), strict=True):
            condition(self.net, self.likelihood, self.posterior, inputs, labels, chunk, before=compare)
            reports.append(self.posterior.reports[0])
        return sum(wrong), {
            key: sum(report[key] for report in reports) / len(reports) for key in ("alpha", "innovation")
        }

    def predict(self, images: Tensor) -> ClassPrediction:
        return predict(self.net, self.likelihood, images)

    def measures(self) -> dict[str, float]:
        """The noise that messages assume, and that of predictions, which may have their own."""
        return {
            "noise_std": math.sqrt(self.likelihood.learned_noise_var.item()),
            "link_noise_std": math.sqrt(self.likelihood.predictive_noise_var.item()),
        }

    def save(self, run: Run, position: Row) -> None:
        run.save(self.net, self.likelihood, position)

    def restore(self, run: Run) -> Row:
        return run.restore(self.net, self.likelihood)


def prior_network(config: TrainConfig, train: data.ImageSet) -> torch.nn.Module:
    """The network before it has learned anything: seed and data say what it is, so no file has to keep it."""
    torch.manual_seed(config.seed)
    net = channels_last(config.network_of(), config.device)
    for part in net.modules():
        if isinstance(part, Norm):
            part.differentiate_statistics = config.differentiate_statistics
    if config.relu_prior:
        use_relu_prior(net)
    if config.prior_inputs:
        first = data.epoch_order(len(train), config.seed, 0)[: config.prior_inputs]
        inputs = train.images[first.to(train.images.device)]
        if config.signal_spread:
            spread_signal(net, inputs, config.signal_spread)
        match_prior(net, inputs)
        keep_signal(net, inputs)
    return net
