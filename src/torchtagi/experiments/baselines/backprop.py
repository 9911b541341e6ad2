"""Backpropagation: the weights that minimise the cross-entropy, found by torch's own SGD or Adam."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.experiments.baselines.config import RivalConfig
from torchtagi.experiments.baselines.rival import Rival, load_module, module_tensors, ordinary_network, scheduled
from torchtagi.experiments.classify.prediction import softmax


class Backprop(Rival):
    """One network, one answer: its uncertainty is all aleatoric."""

    def __init__(self, config: RivalConfig, images: int) -> None:
        super().__init__(config, images)
        self.net = self.build(config)
        self.optimizer = make_optimizer(config, self.net)
        self.steps = torch.zeros((), dtype=torch.int64)

    def build(self, config: RivalConfig) -> nn.Module:
        return ordinary_network(config)

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        self.net.train()
        for group in self.optimizer.param_groups:
            group["lr"] = scheduled(self.config, self.images, int(self.steps))
        logits = self.net(x)
        loss = functional.cross_entropy(logits, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return logits.detach().softmax(1), loss.item()

    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        self.net.eval()
        yield softmax(self.net, images)

    def tensors(self) -> dict[str, Tensor]:
        return {
            **module_tensors("net", self.net),
            **optimizer_tensors(self.optimizer),
            "steps": self.steps,
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        load_module("net", self.net, tensors)
        load_optimizer(self.optimizer, tensors)
        self.steps.copy_(tensors["steps"])


def make_optimizer(config: RivalConfig, net: nn.Module) -> torch.optim.Optimizer:
    rate, decay = config.number("learning_rate"), config.number("weight_decay")
    if config.method == "sgd":
        return torch.optim.SGD(net.parameters(), rate, momentum=config.number("momentum"), weight_decay=decay)
    return torch.optim.Adam(net.parameters(), rate, weight_decay=decay)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Its state of each parameter; what is no tensor follows from the configuration."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{index}.{name}": value
        for index, entries in state.items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Each tensor in its parameter's layout in memory, as the optimizer itself would have made it."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        part, _, rest = key.partition(".")
        if part != "optimizer":
            continue
        index, _, name = rest.partition(".")
        parameter = parameters[int(index)]
        if value.ndim and value.shape != parameter.shape:
            raise ValueError(f"{key} has shape {tuple(value.shape)}, its parameter {tuple(parameter.shape)}")
        laid_out = torch.empty_like(parameter).copy_(value) if value.ndim else value
        state.setdefault(int(index), {})[name] = laid_out
    if state and len(state) != len(parameters):
        raise ValueError(f"the optimizer knows {len(state)} of {len(parameters)} parameters")
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
