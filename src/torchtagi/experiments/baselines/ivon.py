"""IVON, improved variational online Newton (Shen et al. 2024, algorithm 1), by the authors' package `ivon-opt`.

q(w) = N(μ, 1/(N (h + δ/N))), N images, prior precision δ. The curvature h comes from the reparametrisation trick:
with w drawn from q, E[g (w − μ)]/σ² is the mean loss's Hessian diagonal (Stein). h starts as `first_precision`/N,
a precision of q that lets a network work with the weights drawn. The package multiplies the learning rate by the
first h + δ/N, which makes the first steps SGD's for any N; as its momentum is a mean of gradients, not their sum, a
rate is like that of torch's SGD times 1/(1 − momentum). A step costs one backward pass a drawn network.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from torchtagi.experiments.baselines.baseline import Baseline
from torchtagi.experiments.data import check_installed
from torchtagi.experiments.runs.folder import Row


class Ivon(Baseline):
    """Learns with networks drawn from q, and predicts with their mean."""

    def __init__(self, config: Any, images: int) -> None:
        check_installed("ivon", "ivon")
        from ivon import IVON

        super().__init__(config, images)
        self.optimizer = IVON(
            self.net.parameters(),
            lr=0.0,  # set before each step
            ess=images,
            hess_init=config.hyperparameters["first_precision"] / images,
            beta1=config.hyperparameters["momentum"],
            beta2=1 - config.hyperparameters["curvature_rate"],
            weight_decay=config.hyperparameters["prior_precision"] / images,
            mc_samples=config.hyperparameters["mc_samples"],
        )

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        self.net.train()
        self.optimizer.param_groups[0]["lr"] = self.learning_rate
        found = []
        for _ in range(self.config.hyperparameters["mc_samples"]):
            with self.optimizer.sampled_params(train=True):
                self.optimizer.zero_grad()
                logits = self.net(x)
                loss = functional.cross_entropy(logits, y)
                loss.backward()
            found.append((logits.detach().softmax(1), loss.item()))
        self.optimizer.step()
        probs, losses = zip(*found, strict=True)
        return torch.stack(probs).mean(0), sum(losses) / len(losses)

    def drawn(self) -> AbstractContextManager[Any]:
        sampled: AbstractContextManager[Any] = self.optimizer.sampled_params()
        return sampled

    def state(self) -> dict[str, Tensor]:
        group = self.optimizer.param_groups[0]
        return {**super().state(), "momentum": group["momentum"], "curvature": group["hess"]}

    def restore(self, path: Path) -> Row:
        extra = super().restore(path)
        self.optimizer.current_step = int(self.steps)  # by which the momentum is unbiased; not in its state_dict
        return extra
