"""Games small enough to check by brute force, in float64."""

import torch

import torchtagi as tagi
from torchtagi.experiments.gan.game import Game
from torchtagi.experiments.gan.heads import CodeLikelihood, Heads
from torchtagi.experiments.gan.latent import LatentSpace
from torchtagi.experiments.gan.players import Discriminator, Players

SPACE = LatentSpace(3, (3,), 1)


def players(space=SPACE, running=True, seed=0):
    """4×4 images; a trunk with batch norm, both heads, a generator of two layers."""
    torch.manual_seed(seed)
    trunk = torch.nn.Sequential(
        tagi.nn.Conv2d(1, 3, 3, padding=1),
        tagi.nn.LeakyReLU(0.2),
        tagi.nn.BatchNorm2d(3, affine=False, use_running=running),
        tagi.nn.Flatten(),
        tagi.nn.Linear(48, 6),
        tagi.nn.ReLU(),
    )
    codes = tagi.nn.Linear(6, sum(space.category_widths) + space.continuous) if space.has_codes else None
    generator = torch.nn.Sequential(
        tagi.nn.Linear(space.size, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 16), tagi.nn.Unflatten(1, (1, 4, 4))
    )
    return Players(Discriminator(trunk, tagi.nn.Linear(6, 1), codes), generator).double()


def game(space=SPACE, running=True, **options):
    codes = CodeLikelihood(space, 1.0, 1.0) if space.has_codes else None
    return Game(players(space, running), space, Heads(1.0, codes).double(), **options)


def latents(space=SPACE, n=5, seed=1):
    drawn = space.sample(n, torch.Generator().manual_seed(seed))
    return type(drawn)(drawn.noise.double(), drawn.categories, drawn.continuous.double())


def real(n=5, seed=2):
    return torch.randn(n, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def state(module):
    return {key: value.clone() for key, value in module.state_dict().items()}


def same(before, after):
    return all(torch.equal(before[key], after[key]) for key in before)
