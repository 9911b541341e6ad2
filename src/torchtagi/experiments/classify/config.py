"""What a training of a classifier was asked for: our defaults or the paper's setting, named after what differs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchtagi.classifier import Classifier
from torchtagi.experiments.classify.paper import PaperClassifier
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.data import ImageSet
from torchtagi.experiments.runs.config import ClassifierConfig, check_device, described
from torchtagi.heads import with_outputs
from torchtagi.likelihoods import class_tree
from torchtagi.nn.affine import PRECISIONS, multiply_in
from torchtagi.parameter import GaussianParameter


@dataclass(frozen=True)
class TrainConfig(ClassifierConfig):
    """Everything that decides what a run becomes; `configure` fills it in."""

    noise: float | None = None
    """σ_V, the labels' noise; None: learned, or the paper's schedule."""
    precision: str = "float32"
    """What convolutions multiply in; parameters and messages stay in float32 (`multiply_in`)."""

    def __post_init__(self) -> None:
        find_task(self.task).network(self.network)
        self.check_sizes()
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.noise is not None and not (self.noise > 0 and math.isfinite(self.noise)):
            raise ValueError(f"noise must be positive and finite, got {self.noise}")

    @property
    def paper(self) -> bool:
        return self.setting.startswith("paper")

    def network_of(self) -> nn.Module:
        """The architecture as a Gaussian network; the paper's outputs are the nodes of the classes' tree."""
        task = find_task(self.task)
        classes = len(task.classes)
        net = task.network(self.network).build(classes)
        return with_outputs(net, classes, class_tree(classes).shape[1]) if self.paper else net

    def build(self, train: ImageSet) -> Classifier:
        """The classifier before it has learned anything: seed and data say what it is, so no file has to keep
        it."""
        torch.manual_seed(self.seed)
        net = self.network_of().to(self.device)
        multiply_in(net, PRECISIONS[self.precision])
        classes = len(find_task(self.task).classes)
        if self.paper:
            return PaperClassifier(net, classes, noise=self.noise or 1.0)
        return Classifier(net, classes, noise=self.noise or "learned")

    def weights(self) -> int:
        parts = self.network_of().modules()
        return sum(part.mean.numel() for part in parts if isinstance(part, GaussianParameter))


def configure(task: str, network: str | None = None, *, paper: bool = False, **changes: Any) -> TrainConfig:
    """Our defaults, or the paper's setting (§3, Appendix B), with `changes`."""
    kind = find_task(task)
    network = network or kind.default_network
    base: dict[str, Any] = {
        "epochs": 50 if paper else kind.default_epochs,
        "batch_size": 16,
        "augment": kind.network(network).paper_augments if paper else True,
        "threads": torch.get_num_threads(),
    }
    setting = described("paper" if paper else "default", changes, base)
    config = TrainConfig(**{"task": task, "network": network, **base, **changes, "setting": setting})
    check_device(config.device)
    return config
