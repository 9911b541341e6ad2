"""Class probabilities with their two uncertainties from draws of ordinary networks.

A method that draws networks k = 1…K from a posterior, an ensemble among them, gives each image K probabilities p_k
of a class; with p̄ their mean, the law of total variance of the indicator 1[class = c] reads

    p̄(1 − p̄)  =  mean (p_k − p̄)²  +  mean p_k(1 − p_k)         epistemic + aleatoric

A single ordinary network is the case K = 1: all of its uncertainty is aleatoric.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from torchtagi.model import PREDICTION_BATCH
from torchtagi.prediction import ClassPrediction


@torch.no_grad()
def softmax(net: nn.Module, images: Tensor) -> Tensor:
    """An ordinary network's class probabilities (N, C), in whatever mode the network is."""
    return torch.cat([net(x).softmax(1) for x in images.split(PREDICTION_BATCH)])


def from_draws(draws: Iterable[Tensor]) -> ClassPrediction:
    """From the probabilities (N, C) of several networks."""
    each = list(draws)
    if not each:
        raise ValueError("draws must hold at least one network's probabilities, got none")
    probs = torch.stack(each)
    wide = probs.double()
    epistemic, aleatoric = wide.var(0, correction=0).to(probs), (wide * (1 - wide)).mean(0).to(probs)
    return ClassPrediction(wide.mean(0).to(probs), epistemic, aleatoric)


def channels_last(net: nn.Module, device: str) -> nn.Module:
    """The layout in which convolutions are fastest, in training and in evaluation alike: bits depend on it."""
    moved: nn.Module = net.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return moved
