"""A GAN from a configuration, or from a run folder."""

import dataclasses

import torch
from torch import nn

from torchtagi import checkpoint
from torchtagi.checkpoint import CheckpointError
from torchtagi.experiments import data
from torchtagi.experiments.baselines.baseline import channels_last
from torchtagi.experiments.gan.backprop import BackpropGan, with_batch_norm
from torchtagi.experiments.gan.config import GanConfig
from torchtagi.experiments.gan.model import Gan
from torchtagi.experiments.gan.networks import Discriminator, Networks, scale_prior
from torchtagi.experiments.gan.step import TagiGan
from torchtagi.experiments.runs.folder import Row, Run
from torchtagi.nn.affine import PRECISIONS, multiply_in


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
        space = dataclasses.replace(space, coding="one-hot")
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


def open_gan(run: Run) -> tuple[Gan, data.Preprocessing]:
    """A run's GAN as it was last saved, on the CPU, and the scale of its images; leaves torch's global generator as
    it was."""
    run.require_checkpoint()
    with torch.random.fork_rng(devices=[]):
        gan = build_gan(dataclasses.replace(GanConfig.from_json(run.config), device="cpu"))
    position = restore_gan(run, gan)
    try:
        pixels = data.Preprocessing(tuple(position["pixels"]["mean"]), tuple(position["pixels"]["std"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{run.checkpoint}: does not say the scale of its images") from error
    return gan, pixels
