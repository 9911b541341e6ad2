"""Backpropagation: the weights that minimise the cross-entropy, found by torch's own SGD or Adam.

MC-dropout (Gal & Ghahramani 2016) has dropout before every layer with weights but the first, and keeps it on in
prediction. Each forward pass drops other units, so it is a network drawn from an approximate posterior; predictions
average over `draws` of them.

Deep ensembles (Lakshminarayanan et al. 2017) average several networks of different initialisations. Members see the
same batches: their initialisation is by far the larger part of an ensemble's diversity (Fort et al. 2019).
"""

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.experiments.baselines.baseline import Baseline


class Backprop(Baseline):
    """One network, one answer: its uncertainty is all aleatoric."""

    def __init__(self, config: Any, images: int) -> None:
        super().__init__(config, images)
        self.optimizer = make_optimizer(config, self.net)

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

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), **optimizer_tensors(self.optimizer)}


def make_optimizer(config: Any, net: nn.Module) -> torch.optim.Optimizer:
    """Its rate is set before each step; its state is there from the start."""
    options = {"weight_decay": config.hyperparameters["weight_decay"]}
    kind: Any = torch.optim.Adam
    if config.method == "sgd":
        kind, options["momentum"] = torch.optim.SGD, config.hyperparameters["momentum"]
    optimizer: torch.optim.Optimizer = kind(net.parameters(), lr=0.0, **options)
    start_state(optimizer)
    return optimizer


def start_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Make a new optimizer's state, all zeros, by a step that goes nowhere; returns its tensors."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    found = optimizer_tensors(optimizer)
    for value in found.values():
        value.zero_()
    return found


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Its state of each parameter; what is no tensor follows from the configuration."""
    return {
        f"optimizer.{index}.{name}": value
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }


def add_dropout(net: nn.Module, rate: float) -> nn.Module:
    """Put every convolution and linear layer of `net`, but the first, behind dropout; in place."""
    found = [name for name, part in net.named_modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    for name in found[1:]:
        parent, _, child = name.rpartition(".")
        behind = nn.Sequential(nn.Dropout(rate), net.get_submodule(name))
        setattr(net.get_submodule(parent), child, behind)
    return net


class McDropout(Backprop):
    """Adam on a network with dropout; in prediction everything else is in evaluation mode."""

    def build(self) -> nn.Module:
        return add_dropout(super().build(), self.config.hyperparameters["rate"])

    def drawn(self) -> AbstractContextManager[Any]:
        for part in self.net.modules():
            if isinstance(part, nn.Dropout):
                part.train()
        return nullcontext()


class Ensemble(Baseline):
    """`members` networks trained by Adam; the spread of their answers is the epistemic part."""

    def __init__(self, config: Any, images: int) -> None:
        super().__init__(config, images)
        count = config.hyperparameters["members"]
        # ensembles of different seeds share no member
        seeds = range(config.seed * count, (config.seed + 1) * count)
        self.members = [Backprop(dataclasses.replace(config, seed=seed), images) for seed in seeds]
        for member in self.members:
            member.steps = self.steps
        torch.manual_seed(config.seed)

    def build(self) -> nn.Module:
        return nn.ModuleList()  # its members have the networks

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        probs, losses = zip(*(member.step(x, y) for member in self.members), strict=True)
        return torch.stack(probs).mean(0), sum(losses) / len(losses)

    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        """The members are all there is to draw."""
        for member in self.members:
            yield from member.draws(images, 1)

    def state(self) -> dict[str, Tensor]:
        return {
            f"member{index}.{key}": value
            for index, member in enumerate(self.members)
            for key, value in member.state().items()
        }
