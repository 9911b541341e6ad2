"""What a training of a GAN was asked for. The constants of its steps are the task's (`gan.tasks`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchtagi.experiments.gan.tasks import Constants, GanTask, find_gan_task
from torchtagi.experiments.runs.config import RunConfig, check_device, described
from torchtagi.nn.affine import PRECISIONS

METHODS = ("tagi", "adam")


@dataclass(frozen=True)
class GanConfig(RunConfig):
    """What a user chooses; `configure_gan` fills it in."""

    method: str = "tagi"
    """`tagi`, inference; `adam`, the same networks by backprop."""
    judge: str | None = None
    """The classifier that reads the generated digits after each epoch: `quick`, a run folder, or None."""
    paper: bool = False
    """The paper's setting (§4, Appendix B)."""
    precision: str = "float32"
    """What convolutions multiply in (`multiply_in`)."""

    def __post_init__(self) -> None:
        find_gan_task(self.task)
        for name, known in (("method", METHODS), ("precision", tuple(PRECISIONS))):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if self.method != "tagi" and (self.paper or self.precision != "float32"):
            raise ValueError("--paper and --precision go with method tagi")
        if self.judge is not None and not self.kind.has_digits:
            raise ValueError(f"{self.task} has no digits for a judge to read: it takes --judge none only")
        self.check_sizes(samples=2)

    @property
    def kind(self) -> GanTask:
        return find_gan_task(self.task)

    @property
    def data(self) -> str:
        return self.kind.data

    @property
    def constants(self) -> Constants:
        return self.kind.paper if self.paper else self.kind.default


def configure_gan(
    task: str, *, method: str = "tagi", paper: bool = False, device: str = "cpu", **changes: Any
) -> GanConfig:
    """The configuration with its defaults; what else decides the outcome shows in `setting`."""
    kind = find_gan_task(task)
    check_device(device)
    base: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "epochs": 50 if paper else kind.default_epochs,
        "batch_size": 16,
        "judge": "quick" if kind.has_digits else None,
    }
    setting = described("paper" if paper else "default" if method == "tagi" else method, changes, base)
    chosen = {"task": task, "network": kind.network, "setting": setting, "method": method, "paper": paper}
    return GanConfig(**{**base, **changes, **chosen, "device": device})
