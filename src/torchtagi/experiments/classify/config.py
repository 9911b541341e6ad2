"""What a training was asked for: our defaults or the paper's setting, checked, and named after what differs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchtagi.experiments.classify.tasks import Network, Task, find_task
from torchtagi.experiments.runs.config import ClassifierConfig, check_device, whole
from torchtagi.experiments.runs.folder import Row
from torchtagi.inference.conditioning import CHUNK
from torchtagi.inference.update import RULES
from torchtagi.nn.affine import PRECISIONS
from torchtagi.parameter import GaussianParameter


@dataclass(frozen=True)
class TrainConfig(ClassifierConfig):
    """Everything that decides what a run becomes; `configure` fills it in."""

    rule: str
    noise_std: float
    learn_noise: bool
    noise_decay: float
    relu_prior: bool
    prior_inputs: int
    """How many training inputs the prior is fitted to (`spread_signal`, `match_prior`); 0 leaves it alone."""
    differentiate_statistics: bool = False
    """Norm layers' messages know that their statistics move (`nn.norm`)."""
    signal_spread: float = 0.0
    """How much the means of hidden units shall differ between images before anything is learned (`spread_signal`);
    0 leaves them alone."""
    count_sharing: bool = False
    """The coherent rule counts that a convolution's weight acts at many places (`Update`)."""
    sharing_until: int | None = None
    """The last epoch, counted from 1, in which it is counted: later ones repeat what the images said. None: all."""
    norm_first: bool = False
    """Norm layers stand before their ReLU; behind it, the authors' order, unless set."""
    chunk: int = CHUNK
    """The coherent rule conditions on so many images at once: a larger batch is taken in pieces (`condition`)."""
    average: int = 0
    """Predictions are made by the mean of about so many posteriors, the last ones (`averaging`); 0: by the last."""
    precision: str = "float32"
    """What convolutions multiply in; parameters and messages stay in float32 (`multiply_in`)."""

    def __post_init__(self) -> None:
        network = find_task(self.task).network(self.network)
        if self.norm_first and not network.norms:
            raise ValueError(f"norm first is for networks with norm layers; {self.network} of {self.task} has none")
        if self.rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {self.rule!r}")
        self.check_sizes()
        whole("prior_inputs", self.prior_inputs, 0)
        whole("average", self.average, 0)
        whole("chunk", self.chunk, 1)
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {self.precision!r}")
        if self.sharing_until is not None:
            whole("sharing_until", self.sharing_until, 1)
        if not (self.signal_spread >= 0 and math.isfinite(self.signal_spread)):
            raise ValueError(f"signal spread must be finite and not negative, got {self.signal_spread}")
        if not (self.noise_std > 0 and math.isfinite(self.noise_std)):
            raise ValueError(f"noise must be positive and finite, got {self.noise_std}")
        if not 0 < self.noise_decay <= 1:
            raise ValueError(f"noise decay must lie in (0, 1], got {self.noise_decay}")

    def noise_in(self, epoch: int) -> float:
        """σ_V in the epoch of that number, counted from 0: σ_V⁰ ηᵉ (eq. 7)."""
        return self.noise_std * self.noise_decay**epoch

    def counts_sharing_in(self, epoch: int) -> bool:
        """Whether sharing is counted in the epoch of that number, counted from 0."""
        counted = self.count_sharing and self.rule == "coherent"
        return counted and (self.sharing_until is None or epoch < self.sharing_until)

    def network_of(self) -> nn.Module:
        """The architecture as a Gaussian network."""
        network = find_task(self.task).network(self.network)
        return network.build(norm_first=True) if self.norm_first else network.build()

    def as_json(self) -> Row:
        """The network's size too."""
        parts = self.network_of().modules()
        weights = sum(part.mean.numel() for part in parts if isinstance(part, GaussianParameter))
        return {**super().as_json(), "parameters": weights}


NOT_IN_SETTING = ("task", "network", "setting", "seed", "epochs", "measure_every", "device", "threads", "precision")
SHORT = {
    "batch_size": "batch",
    "noise_std": "noise",
    "noise_decay": "decay",
    "rule": "",
    "norm_first": "normfirst",
    "signal_spread": "spread",
    "count_sharing": "sharing",
    "sharing_until": "sharinguntil",
    "draw_samples": "drawn",
    "real_code_noise_std": "realcodes",
    "real_code_weight": "realcodes",
}


def configure(
    task: str,
    network: str | None = None,
    *,
    paper: bool = False,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    **changes: Any,
) -> TrainConfig:
    """Our defaults, or the paper's setting (§3, Appendix B), with `changes`.

    A changed hyperparameter shows in `setting`, so that results of different settings never share a name. How long
    a run is does not change what it is after each epoch, and is left out of it.
    """
    kind = find_task(task)
    check_device(device)
    chosen = kind.network(network or kind.default_network)
    base: dict[str, Any] = {
        "task": task,
        "network": network or kind.default_network,
        "setting": "paper" if paper else "default",
        "seed": seed,
        "device": device,
        "threads": torch.get_num_threads() if threads is None else threads,
        "samples": None,
        "draw_samples": False,
        "test_samples": None,
        "precision": "float32",
        "measure_every": 1,
        "batch_size": 16,
        "chunk": CHUNK,
        **(paper_setting(chosen) if paper else default_setting(kind)),
    }
    unknown = [name for name in changes if name not in base]
    if unknown:
        raise TypeError(f"configure() has no setting {', '.join(unknown)}")
    chosen_values = {**base, **changes}
    differing = [name for name in changes if name not in NOT_IN_SETTING and changes[name] != base[name]]
    if chosen_values["learn_noise"]:
        # then σ_V is only a floor, and does not decay
        differing = [name for name in differing if name not in ("noise_std", "noise_decay")]
    setting = base["setting"] + "".join(describe_change(name, changes[name]) for name in differing)
    return TrainConfig(**{**chosen_values, "setting": setting})


def paper_setting(network: Network) -> dict[str, Any]:
    return {
        "epochs": 50,
        "rule": "paper",
        "noise_std": 1.0,
        "learn_noise": False,
        "noise_decay": 0.975,
        "relu_prior": False,
        "prior_inputs": 0,
        "signal_spread": 0.0,
        "count_sharing": False,
        "sharing_until": None,
        "differentiate_statistics": False,
        "average": 0,
        "norm_first": False,
        "augment": network.paper_augments,
        "augment_from": 1,
    }


def default_setting(task: Task) -> dict[str, Any]:
    return {
        "epochs": task.default_epochs,
        "rule": "coherent",
        "noise_std": 0.01,  # only a floor: the noise is learned
        "learn_noise": True,
        "noise_decay": 1.0,
        "relu_prior": True,
        "prior_inputs": 16,
        "signal_spread": task.signal_spread,
        "count_sharing": True,
        # Exact for images seen once, it makes weights too sure when they are seen again (docs/design.md).
        "sharing_until": 1,
        "differentiate_statistics": True,
        "average": 500,  # 300 to 3,000 did the same (docs/design.md)
        "norm_first": False,
        # In the first epoch every image is new. Seen again unchanged it would count as evidence, and is none.
        "augment": True,
        "augment_from": 2,
    }


def describe_change(name: str, value: Any) -> str:
    if name == "learn_noise":
        return "-learnednoise" if value else ""  # a given noise speaks for itself
    if name == "sharing_until" and value is None:
        return "-sharingalways"
    if name == "average" and not value:
        return "-noaverage"
    if value is None or isinstance(value, bool):
        return f"-{'' if value else 'no'}{SHORT.get(name, name.replace('_', ''))}"
    return f"-{SHORT.get(name, name.replace('_', ''))}{value}"
