"""The game played by inference: built from a configuration, with its noises decaying from epoch to epoch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.experiments.classify.prediction import channels_last
from torchtagi.experiments.gan.config import GanConfig
from torchtagi.experiments.gan.engine import Engine
from torchtagi.experiments.gan.game import Game, StepReport, generate, step, teach_classes, teach_generator
from torchtagi.experiments.gan.grouping import Grouping, distorted
from torchtagi.experiments.gan.heads import CodeLikelihood, Heads
from torchtagi.experiments.gan.players import Discriminator, Players
from torchtagi.experiments.gan.tasks import find_gan_task
from torchtagi.inference.prior import use_relu_prior, weighted_layers
from torchtagi.nn import ConvTranspose2d
from torchtagi.nn.affine import PRECISIONS, multiply_in
from torchtagi.parameter import GaussianParameter


class InferenceEngine(Engine):
    """`config.method == "tagi"`."""

    def __init__(self, config: GanConfig) -> None:
        self.config = config
        task = find_gan_task(config.task)
        self.space = task.space
        codes = generator_codes = None
        if self.space.has_codes:
            codes = CodeLikelihood(
                self.space, config.code_noise_std, config.continuous_noise_std, config.continuous_noise
            )
            generator_codes = codes.heard_with(
                config.generator_code_noise_std, config.generator_continuous_noise_std
            )
        self.heads = Heads(config.reality_noise_std, codes)
        self.generator_heads = Heads(self.generator_reality_noise_std, generator_codes)
        self.grouping, self.real_codes, self.reader = None, None, codes
        if config.real_code_noise_std is not None and codes is not None:
            self.grouping = Grouping(config.batch_size, len(self.space.categories))
            self.real_codes, self.reader = (
                codes.heard_with(config.real_code_noise_std, None).to(config.device) for _ in range(2)
            )
        self.memory = nn.ModuleDict({"heads": self.heads})
        if self.grouping is not None:
            self.memory["grouping"] = self.grouping
        self.memory.to(config.device)
        self.generator_heads.to(config.device)
        self.players = channels_last_players(prior_players(config, self.heads), config.device)
        self.game = Game(
            self.players,
            self.space,
            self.heads,
            self.generator_heads,
            rule=config.rule,
            label_noise=config.label_noise,
            grain=config.grain,
            lead=config.lead,
            joint=config.joint,
            count_frozen=config.count_frozen,
            count_sharing=config.count_sharing,
            memory=config.memory,
        )
        multiply_in(self.players, PRECISIONS[config.precision])
        self.begin_average()

    @property
    def generator_reality_noise_std(self) -> float:
        own = self.config.generator_reality_noise_std
        return self.config.reality_noise_std if own is None else own

    def begin_epoch(self, epoch: int) -> None:
        config = self.config
        self.players.train()
        self.heads.train()
        self.heads.reality.noise_std = torch.tensor(config.decayed(config.reality_noise_std, epoch))
        own = config.decayed(self.generator_reality_noise_std, epoch)
        self.generator_heads.reality.noise_std = torch.tensor(own)
        if self.heads.codes is not None and self.generator_heads.codes is not None:
            self.heads.codes.set_noise(
                config.decayed(config.code_noise_std, epoch), config.decayed(config.continuous_noise_std, epoch)
            )
            self.generator_heads.codes.set_noise(
                *(
                    None if std is None else config.decayed(std, epoch)
                    for std in (config.generator_code_noise_std, config.generator_continuous_noise_std)
                )
            )

        if config.real_code_noise_std is not None and self.real_codes is not None:
            self.real_codes.set_noise(config.decayed(config.real_code_noise_std, epoch), None)

    def step(self, real: Tensor, batch: int) -> StepReport:
        discriminates = batch % self.config.discriminator_every == 0
        if discriminates and self.grouping is not None:
            teach_classes(self.game, distorted(real), self.grouping.of(batch, len(real)), self.real_codes)
        report = step(self.game, real, self.space.sample(len(real)), discriminates)
        for _ in range(self.config.generator_steps - 1):
            latents = self.space.sample(len(real))
            teach_generator(self.game, generate(self.game, latents), latents)
        return report

    def class_log_probs(self, codes: Any) -> list[Tensor]:
        """With the noise of real images' codes, where there is one: through that of generated ones, which is loud,
        all classes look alike. It does not decay for reading, or a network loaded would read otherwise."""
        assert self.reader is not None
        return self.reader.class_log_probs(codes)

    def fake_probability(self, reality: Any) -> Tensor:
        return self.heads.reality.predict(reality)

    def noises(self) -> dict[str, float]:
        found = {"reality_noise_std": self.heads.reality.noise_std.item()}
        return found if self.heads.codes is None else {**found, **self.heads.codes.noise_stds}


def prior_players(config: GanConfig, heads: Heads) -> Players:
    """The networks before they have learned anything: the seed says what they are."""
    task = find_gan_task(config.task)
    torch.manual_seed(config.seed)
    trunk, reality, codes = task.dnet(use_running=config.use_running), task.pnet(), None
    if task.qnet is not None:
        assert heads.codes is not None
        codes = task.qnet(heads.codes.outputs)
    players = Players(Discriminator(trunk, reality, codes), task.gnet(task.space.size))
    set_prior(players, config)
    return players


@torch.no_grad()
def set_prior(players: Players, config: GanConfig) -> None:
    """Scale the networks' priors before anything is learned."""
    discriminator = players.discriminator
    chains = [[discriminator.trunk, discriminator.reality], [players.generator]]
    if discriminator.codes is not None:
        chains.append([discriminator.codes])
    if config.relu_prior:
        for chain in chains:
            use_relu_prior(nn.Sequential(*chain))
    for part in players.modules():
        if isinstance(part, GaussianParameter):
            part.var.mul_(config.var_gain**2)
    if config.stride_prior:
        for part in players.generator.modules():
            if isinstance(part, ConvTranspose2d) and part.weight is not None:
                part.weight.mean.mul_(part.stride[0])
    weighted = weighted_layers(players.generator)
    first, last = weighted[0], weighted[-1]
    if first.weight is not None:
        codes = slice(find_gan_task(config.task).space.noise, None)  # what stands behind the noise units
        first.weight.mean[:, codes] *= config.code_gain
        first.weight.var[:, codes] *= config.code_gain**2
    for parameter in (last.weight, last.bias):
        if parameter is not None:
            parameter.mean.mul_(config.output_gain)
            parameter.var.mul_(config.output_gain**2)


def channels_last_players(players: Players, device: str) -> Players:
    moved = channels_last(players, device)
    assert isinstance(moved, Players)
    return moved
