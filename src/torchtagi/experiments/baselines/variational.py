"""What VOGN and IVON share as learners: an optimizer whose state is a posterior over the weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from torch import Tensor, nn

from torchtagi.experiments.baselines.config import RivalConfig
from torchtagi.experiments.baselines.rival import (
    Rival,
    list_tensors,
    load_list,
    load_module,
    module_tensors,
    ordinary_network,
    scheduled,
)
from torchtagi.experiments.baselines.weight_posterior import WeightPosterior


class VariationalOptimizer:
    """Means in the network's own weights, a curvature for each, and a momentum."""

    learning_rate: float
    posterior: WeightPosterior
    velocity: list[Tensor]
    steps: Tensor


class VariationalLearner(Rival):
    """Cross-entropy on images; predictions average over weights drawn from the posterior."""

    def __init__(self, config: RivalConfig, images: int) -> None:
        super().__init__(config, images)
        self.net = ordinary_network(config)
        self.optimizer = self.make_optimizer(config, self.net, images)

    @abstractmethod
    def make_optimizer(self, config: RivalConfig, net: nn.Module, images: int) -> VariationalOptimizer: ...

    @abstractmethod
    def optimize(self, x: Tensor, y: Tensor, probs: list[Tensor]) -> float:
        """One step; puts the class probabilities of each drawn network into `probs`, returns the loss."""

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        self.net.train()
        self.optimizer.learning_rate = scheduled(self.config, self.images, int(self.optimizer.steps))
        probs: list[Tensor] = []
        loss = self.optimize(x, y, probs)
        return sum(probs[1:], probs[0]) / len(probs), loss

    def draws(self, images: Tensor, count: int) -> Iterator[Tensor]:
        return self.optimizer.posterior.draws(images, count)

    def tensors(self) -> dict[str, Tensor]:
        return {
            **module_tensors("net", self.net),
            **list_tensors("velocity", self.optimizer.velocity),
            **list_tensors("curvature", self.optimizer.posterior.curvature),
            "steps": self.optimizer.steps,
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        load_module("net", self.net, tensors)
        load_list("velocity", self.optimizer.velocity, tensors)
        load_list("curvature", self.optimizer.posterior.curvature, tensors)
        self.optimizer.steps.copy_(tensors["steps"])
