"""Backpropagation: the weights that minimise the cross-entropy, found by torch's own SGD or Adam."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.experiments.baselines.baseline import Baseline, module_tensors, ordinary_network
from torchtagi.experiments.baselines.config import BaselineConfig
from torchtagi.experiments.classify.prediction import softmax


class Backprop(Baseline):
    """One network, one answer: its uncertainty is all aleatoric."""

    def __init__(self, config: BaselineConfig, images: int) -> None:
        super().__init__(config, images)
        self.net = self.build(config)
        self.optimizer = make_optimizer(config, self.net)

    def build(self, config: BaselineConfig) -> nn.Module:
        return ordinary_network(config)

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        self.net.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        logits = self.net(x)
        loss = functional.cross_entropy(logits, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return logits.detach().softmax(1), loss.item()

    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        """There is but one network to draw."""
        self.net.eval()
        yield softmax(self.net, images)

    def state(self) -> dict[str, Tensor]:
        return {**module_tensors(self.net), **optimizer_tensors(self.optimizer)}


def make_optimizer(config: BaselineConfig, net: nn.Module) -> torch.optim.Optimizer:
    """Its rate is set before each step. Its state, zeros, is there from the start, made by a step of rate zero."""
    decay = config.number("weight_decay")
    optimizer: torch.optim.Optimizer
    if config.method == "sgd":
        optimizer = torch.optim.SGD(net.parameters(), 0.0, momentum=config.number("momentum"), weight_decay=decay)
    else:
        optimizer = torch.optim.Adam(net.parameters(), 0.0, weight_decay=decay)
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for value in optimizer_tensors(optimizer).values():
        value.zero_()
    return optimizer


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Its state of each parameter; what is no tensor follows from the configuration."""
    return {
        f"optimizer.{index}.{name}": value
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }
