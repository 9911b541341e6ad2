"""From a network to class probabilities with their two uncertainties, whatever the network is, and their scores.

A Gaussian network has them in closed form (`predict`). A method that draws networks k = 1…K from a posterior, an
ensemble among them, gives each image K probabilities p_k of a class; with p̄ their mean, the law of total variance
of the indicator 1[class = c] reads

    p̄(1 − p̄)  =  mean (p_k − p̄)²  +  mean p_k(1 − p_k)         epistemic + aleatoric

A single ordinary network is the case K = 1: all of its uncertainty is aleatoric.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from torchtagi import metrics
from torchtagi.likelihoods import ClassPrediction, HierarchicalClassification

PREDICTION_BATCH = 200  # as fast as 1000, whose large tensors are given back to the system and fetched again

Scores = dict[str, float]


@torch.no_grad()
def predict(net: nn.Module, likelihood: HierarchicalClassification, images: Tensor) -> ClassPrediction:
    """Predict in evaluation mode, and put both modules back into the mode they were in."""
    modes = [(module, module.training) for module in (net, likelihood)]
    for module, _ in modes:
        module.eval()
    try:
        parts = [likelihood.predict(net(x)) for x in images.split(PREDICTION_BATCH)]
    finally:
        for module, training in modes:
            module.train(training)
    return ClassPrediction(
        torch.cat([part.probs for part in parts]),
        torch.cat([part.epistemic for part in parts]),
        torch.cat([part.aleatoric for part in parts]),
    )


@torch.no_grad()
def softmax(net: nn.Module, images: Tensor) -> Tensor:
    """An ordinary network's class probabilities (N, C), in whatever mode the network is."""
    return torch.cat([net(x).softmax(1) for x in images.split(PREDICTION_BATCH)])


def from_draws(draws: Iterable[Tensor]) -> ClassPrediction:
    """Average the probabilities (N, C) of several networks; one at a time, so that many cost no memory."""
    count = 0
    total = squares = torch.zeros(())
    for probs in draws:
        wide = probs.double()  # mean p² − p̄² cancels where the draws agree
        total, squares = total + wide, squares + wide.square()
        count += 1
    if not count:
        raise ValueError("draws must hold at least one network's probabilities, got none")
    mean, mean_square = total / count, squares / count
    epistemic = (mean_square - mean.square()).clamp_min(0)
    aleatoric = mean - mean_square
    return ClassPrediction(*(part.to(probs.dtype) for part in (mean, epistemic, aleatoric)))


def scores(prediction: ClassPrediction, labels: Tensor) -> Scores:
    """Error in %; the rest as `torchtagi.metrics` defines it."""
    probs = prediction.probs
    return {
        "error": round(100 * metrics.error_rate(probs, labels), 4),
        "nll": metrics.nll(probs, labels),
        "ece": metrics.ece(probs, labels),
        "brier": metrics.brier(probs, labels),
        "auroc_ovr": metrics.auroc_one_vs_rest(probs, labels),
        "auroc_misclassification": metrics.auroc_misclassification(probs, labels),
    }


def channels_last(net: nn.Module, device: str) -> nn.Module:
    """The layout in which convolutions are fastest, in training and in evaluation alike: bits depend on it."""
    moved: nn.Module = net.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved
