"""TAGI as a learner: a Gaussian network, its labels' likelihood and the update."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from torchtagi.experiments import data
from torchtagi.experiments.classify.config import TrainConfig
from torchtagi.experiments.classify.prediction import channels_last, predict
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.runs.folder import Row, Run
from torchtagi.gaussian import Gaussian
from torchtagi.inference.average import Average
from torchtagi.inference.conditioning import condition
from torchtagi.inference.prior import keep_signal, match_prior, spread_signal, use_relu_prior
from torchtagi.inference.update import Update
from torchtagi.likelihoods import ClassPrediction, HierarchicalClassification
from torchtagi.nn.affine import PRECISIONS, multiply_in
from torchtagi.nn.norm import Norm

LISTEN_EVERY = 10  # steps: how often the average is asked beforehand; each time costs half a step


class TagiLearner:
    """Closed-form inference on batches; its checkpoint holds the posterior and the likelihood's noise.

    With `average`, predictions are those of the last posteriors' mean. It is surer than the network that learns, so
    it has a likelihood of its own: `link`, which hears what it says of every tenth batch before that is learned.
    """

    def __init__(self, config: TrainConfig, train: data.ImageSet) -> None:
        self.config = config
        self.net = prior_network(config, train)
        multiply_in(self.net, PRECISIONS[config.precision])
        self.likelihood = HierarchicalClassification(
            len(find_task(config.task).classes), config.noise_std, config.learn_noise
        ).to(config.device)
        self.posterior = Update(self.net, config.rule, count_sharing=config.count_sharing)
        self.average = Average(self.net, config.average) if config.average else None
        self.predicting, self.link = self.net, self.likelihood
        if self.average is not None:
            self.predicting, self.link = self.average.net, copy.deepcopy(self.likelihood)

    def start_epoch(self, epoch: int) -> None:
        self.net.train()
        self.likelihood.train()
        self.likelihood.noise_std = self.link.noise_std = self.config.noise_in(epoch)
        self.posterior.count_sharing = self.config.counts_sharing_in(epoch)

    def learn(self, x: Tensor, y: Tensor) -> tuple[int, dict[str, float]]:
        """The coherent rule conditions on a large batch in chunks (see `condition`), the others take it whole."""
        chunk = self.config.chunk if self.config.rule == "coherent" else len(x)
        wrong, reports = [], []

        def compare(z: Gaussian, labels: Tensor) -> None:
            wrong.append(int((self.likelihood.log_probs(z).argmax(1) != labels).sum()))

        for inputs, labels in zip(x.split(chunk), y.split(chunk), strict=True):
            if self.listens():
                with torch.no_grad():
                    self.link.score_link(self.predicting(inputs), labels)
            condition(self.net, self.likelihood, self.posterior, inputs, labels, chunk, before=compare)
            reports.append(self.posterior.reports[0])
            if self.average is not None:
                self.average.follow()
        return sum(wrong), {
            key: sum(report[key] for report in reports) / len(reports) for key in ("alpha", "innovation")
        }

    def listens(self) -> bool:
        """Whether the average is asked about the next batch: now and then, if its link learns."""
        if self.average is None or not self.config.learn_noise:
            return False
        return self.average.count % LISTEN_EVERY == 1

    def predict(self, images: Tensor) -> ClassPrediction:
        return predict(self.predicting, self.link, images)

    def measures(self) -> dict[str, float]:
        """The noise that messages assume, and that of predictions, which may have their own."""
        return {
            "noise_std": math.sqrt(self.likelihood.learned_noise_var.item()),
            "link_noise_std": math.sqrt(self.link.predictive_noise_var.item()),
        }

    def save(self, run: Run, position: Row) -> None:
        """The file's network is the one that predicts."""
        averaged = 0 if self.average is None else self.average.count
        run.save(self.predicting, self.link, {**position, "averaged": averaged}, **self.learning)

    def restore(self, run: Run) -> Row:
        position = run.restore(self.predicting, self.link, **self.learning)
        if self.average is not None:
            self.average.count = run.averaged(position)
        return position

    @property
    def learning(self) -> dict[str, torch.nn.Module]:
        """The network that learns and its likelihood, where they are not those that predict."""
        return {} if self.average is None else {"learning_net": self.net, "learning_likelihood": self.likelihood}


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
