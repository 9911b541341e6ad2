"""GANs small enough to check by brute force, in float64."""

import dataclasses

import torch

import torchtagi as tagi
from torchtagi.experiments.gan.latent import LatentSpace
from torchtagi.experiments.gan.networks import Discriminator, Networks
from torchtagi.experiments.gan.step import TagiGan
from torchtagi.experiments.gan.tasks import Constants, Noises

SPACE = LatentSpace(3, (3,), 1)
ONE = Noises(1.0, 1.0, 1.0)
CONSTANTS = Constants(ONE, ONE, instance_noise=0.0, code_gain=1.0, horizon=None, average=0)


def networks(space=SPACE, seed=0):
    """4×4 images; a trunk with batch norm, both heads, a generator of two layers."""
    torch.manual_seed(seed)
    dnet = torch.nn.Sequential(
        tagi.nn.Conv2d(1, 3, 3, padding=1),
        tagi.nn.LeakyReLU(0.2),
        tagi.nn.BatchNorm2d(3, affine=False, use_running=True),
        tagi.nn.Flatten(),
        tagi.nn.Linear(48, 6),
        tagi.nn.ReLU(),
    )
    qnet = tagi.nn.Linear(6, sum(space.category_widths) + space.continuous) if space.has_codes else None
    generator = torch.nn.Sequential(
        tagi.nn.Linear(space.size, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 16), tagi.nn.Unflatten(1, (1, 4, 4))
    )
    return Networks(Discriminator(dnet, tagi.nn.Linear(6, 1), qnet), generator).double()


def small_gan(space=SPACE, **constants):
    gan = TagiGan(networks(space), space, dataclasses.replace(CONSTANTS, **constants))
    gan.heads.double()
    gan.generator_heads.double()
    return gan


def latents(space=SPACE, n=5, seed=1):
    drawn = space.sample(n, seed)
    return type(drawn)(drawn.noise.double(), drawn.categories, drawn.continuous.double())


def generate(gan, points):
    return gan.networks.generator(gan.space.encode(points))


def real(n=5, seed=2):
    return torch.randn(n, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def state(module):
    return {key: value.clone() for key, value in module.state_dict().items()}


def changed(before, module, prefix=""):
    after = module.state_dict()
    return [key for key in before if key.startswith(prefix) and not torch.equal(before[key], after[key])]
