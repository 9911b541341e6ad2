"""What a training of a GAN was asked for, and the GAN made from it. The constants of its steps are the task's
(`gan.tasks`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from torchtagi import checkpoint
from torchtagi.checkpoint import CheckpointError
from torchtagi.experiments.baselines.baseline import channels_last
from torchtagi.experiments.data import Preprocessing
from torchtagi.experiments.gan.backprop import BackpropGan, with_batch_norm
from torchtagi.experiments.gan.model import Gan
from torchtagi.experiments.gan.networks import Discriminator, Networks, scale_prior
from torchtagi.experiments.gan.step import TagiGan
from torchtagi.experiments.gan.tasks import Constants, GanTask, find_gan_task
from torchtagi.experiments.runs.config import RunConfig, check_device, described
from torchtagi.experiments.runs.folder import Row, Run
from torchtagi.nn.affine import PRECISIONS, multiply_in

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


def configure_gan(task: str, *, method: str = "tagi", paper: bool = False, **changes: Any) -> GanConfig:
    """The configuration with its defaults; what else decides the outcome shows in `setting`."""
    kind = find_gan_task(task)
    base: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "epochs": 50 if paper else kind.default_epochs,
        "batch_size": 16,
        "judge": "quick" if kind.has_digits else None,
    }
    setting = described("paper" if paper else "default" if method == "tagi" else method, changes, base)
    chosen = {"task": task, "network": kind.network, "setting": setting, "method": method, "paper": paper}
    config = GanConfig(**{**base, **changes, **chosen})
    check_device(config.device)
    return config


def build_gan(config: GanConfig) -> Gan:
    """The GAN of a configuration before anything is learned; seeds torch's global generator."""
    torch.manual_seed(config.seed)
    constants, space = config.constants, config.kind.space
    dnet, pnet, qnet, gnet = config.kind.networks
    if config.method == "tagi":
        trunk, labels = dnet(use_running=True), pnet()  # in this order: the seed says what they are
        codes = qnet(outputs=sum(space.category_widths) + space.continuous) if space.has_codes else None
        networks = Networks(Discriminator(trunk, labels, codes), gnet(inputs=space.size))
        scale_prior(networks, space.noise, constants.code_gain, constants.deep_prior)
        multiply_in(networks, PRECISIONS[config.precision])
    else:
        space = replace(space, coding="one-hot")
        outputs = sum(space.categories) + 2 * space.continuous  # a mean and a variance
        codes = qnet(outputs=outputs, layers=nn) if space.has_codes else None
        discriminator = Discriminator(dnet(layers=nn), pnet(layers=nn), codes)
        networks = Networks(discriminator, with_batch_norm(gnet(inputs=space.size, layers=nn)))
    channels_last(networks, config.device)
    kind = TagiGan if config.method == "tagi" else BackpropGan
    return kind(networks, space, constants, config.batch_size)


def restore_gan(run: Run, gan: Gan) -> Row:
    """Load the run's checkpoint into `gan`; returns what was saved with it."""
    extra = checkpoint.restore(run.checkpoint, gan.networks, gan.state)
    try:
        if gan.average is not None:
            gan.average.count = int(extra["averaged"])
        if not isinstance(extra["epochs"], int):
            raise TypeError
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{run.checkpoint}: does not say how far its training came") from error
    return extra


def open_gan(run: Run) -> tuple[Gan, Preprocessing]:
    """A run's GAN as it was last saved, on the CPU, and the scale of its images; leaves torch's global generator as
    it was."""
    run.require_checkpoint()
    with torch.random.fork_rng(devices=[]):
        gan = build_gan(replace(GanConfig.from_json(run.config), device="cpu"))
    position = restore_gan(run, gan)
    try:
        pixels = Preprocessing(tuple(position["pixels"]["mean"]), tuple(position["pixels"]["std"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{run.checkpoint}: does not say the scale of its images") from error
    return gan, pixels
