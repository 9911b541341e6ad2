"""GAN and infoGAN by closed-form inference (paper §3.3, Figures 1 and 2).

    space = LatentSpace(62, (10,), 2)                           # noise, categorical codes, continuous codes
    players = Players(Discriminator(dnet, pnet, qnet), gnet)    # any networks that fit together
    game = Game(players, space, Heads(1.0, CodeLikelihood(space, 1.0, 1.0)))
    for real in batches:
        step(game, real, space.sample(len(real)))
    players.generator(space.encode(space.sample(100))).mean     # images

Training from the command line, with checkpoints, measures and drawings, is `gan.training`.
"""

from torchtagi.experiments.gan.game import Game, StepReport, generate, step, teach_discriminator, teach_generator
from torchtagi.experiments.gan.heads import CodeLikelihood, Heads
from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.gan.players import Discriminator, Players, Verdict

__all__ = [
    "CodeLikelihood",
    "Discriminator",
    "Game",
    "Heads",
    "LatentSpace",
    "Latents",
    "Players",
    "StepReport",
    "Verdict",
    "generate",
    "step",
    "teach_discriminator",
    "teach_generator",
]
