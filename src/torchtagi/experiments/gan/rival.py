"""The same infoGAN by backprop, as the rival: Chen et al. (2016) scaled to the paper's networks.

Adam, binary cross-entropy for Pnet, cross-entropy for the categorical codes and for each continuous code a Gaussian
whose mean and variance Qnet predicts, with G's usual "not saturating" loss. Codes enter as one unit a class and are
read by a softmax. As in their networks, G has batch norm before each ReLU and ends in a bounded unit, here tanh:
pixels lie within ±1 of their mean. D always sees real and generated images in one batch, in G's part too.
Normalised apart, as usual, D wins outright with the paper's Dnet, whose first layer has a batch norm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.experiments.gan.config import GanConfig
from torchtagi.experiments.gan.engine import Engine
from torchtagi.experiments.gan.freezing import frozen
from torchtagi.experiments.gan.game import StepReport
from torchtagi.experiments.gan.grouping import Grouping, distorted
from torchtagi.experiments.gan.inference import channels_last_players
from torchtagi.experiments.gan.latent import Latents
from torchtagi.experiments.gan.players import Discriminator, Players
from torchtagi.experiments.gan.tasks import find_gan_task

BETAS = (0.5, 0.999)  # Radford et al. (2016), as Chen et al. use them


class BackpropEngine(Engine):
    """`config.method == "adam"`."""

    def __init__(self, config: GanConfig) -> None:
        self.config = config
        task = find_gan_task(config.task)
        self.space = task.one_hot()
        torch.manual_seed(config.seed)
        outputs = sum(self.space.categories) + 2 * self.space.continuous
        codes = task.qnet(outputs, layers=nn) if task.qnet is not None else None
        self.players = channels_last_players(
            Players(
                Discriminator(task.dnet(layers=nn), task.pnet(layers=nn), codes),
                nn.Sequential(*with_batch_norm(task.gnet(self.space.size, layers=nn)), nn.Tanh()),
            ),
            config.device,
        )
        self.optimisers = {
            "discriminator": torch.optim.Adam(
                self.players.discriminator.parameters(), config.discriminator_lr, betas=BETAS
            ),
            "generator": torch.optim.Adam(self.players.generator.parameters(), config.generator_lr, betas=BETAS),
        }
        self.memory = nn.ModuleDict({"moments": AdamMoments(self.optimisers)})
        self.grouping = None
        if config.real_code_weight is not None:
            self.grouping = Grouping(config.batch_size, len(self.space.categories)).to(config.device)
            self.memory["grouping"] = self.grouping
        self.begin_average()

    def begin_epoch(self, epoch: int) -> None:
        self.players.train()

    def step(self, real: Tensor, batch: int) -> StepReport:
        discriminator, generator = self.players.discriminator, self.players.generator
        latents = self.space.sample(len(real)).to(real.device)
        images = generator(self.space.encode(latents))
        report = {"real": float("nan"), "fake": float("nan"), "code_error": float("nan")}
        if batch % self.config.discriminator_every == 0:
            self.optimisers["discriminator"].zero_grad()
            truth, lie, codes = self.verdict(real, images.detach())
            loss = self.label_loss(truth, 0.0) + self.label_loss(lie, 1.0)
            if codes is not None:
                loss = loss + self.code_loss(codes, latents, self.config.code_weight)
                if self.space.categories:
                    report["code_error"] = (self.classes(codes) != latents.categories).float().mean().item()
            if self.grouping is not None and self.config.real_code_weight is not None:
                copies = discriminator(self.seen(distorted(real))).codes
                term = self.class_loss(copies, self.grouping.of(batch, len(real)))
                loss = loss + self.config.real_code_weight * term
            report["real"], report["fake"] = self.opinion(truth), self.opinion(lie)
            loss.backward()
            self.optimisers["discriminator"].step()
        for extra in range(self.config.generator_steps):
            if extra:
                latents = self.space.sample(len(real)).to(real.device)
                images = generator(self.space.encode(latents))
            self.optimisers["generator"].zero_grad()
            with frozen(discriminator):
                _, lie, codes = self.verdict(real, images)
                loss = functional.binary_cross_entropy_with_logits(lie, torch.zeros_like(lie))
                if codes is not None:
                    loss = loss + self.code_loss(codes, latents, self.generator_code_weight)
                loss.backward()
            self.optimisers["generator"].step()
        return StepReport(
            **report,
            fooled=self.opinion(lie),
            discriminator_alpha=float("nan"),
            generator_alpha=float("nan"),
            generator_innovation=float("nan"),
            largest_pixel=images.detach().abs().max().item(),
        )

    def verdict(self, real: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Pnet's opinion of real and of generated images, and Qnet's of the latter, normalised as one batch."""
        both = self.seen(torch.cat([real, images]))
        reality, codes = self.players.discriminator(both, codes_from=len(real))
        return reality[: len(real)], reality[len(real) :], codes

    def label_loss(self, logits: Tensor, value: float) -> Tensor:
        labels = torch.full_like(logits, value)
        if self.config.label_noise:
            lies = torch.rand(logits.shape).to(logits.device) < self.config.label_noise
            labels = torch.where(lies, 1 - labels, labels)
        return functional.binary_cross_entropy_with_logits(logits, labels)

    @property
    def generator_code_weight(self) -> float:
        own = self.config.generator_code_weight
        return self.config.code_weight if own is None else own

    def code_loss(self, z: Tensor, latents: Latents, weight: float) -> Tensor:
        """Cross-entropy of the categories, Gaussian negative log-likelihood of the continuous codes."""
        loss = weight * self.class_loss(z, latents.categories)
        if self.space.continuous:
            mean, log_var = z[:, sum(self.space.categories) :].chunk(2, 1)
            term = 0.5 * ((latents.continuous - mean).square() / log_var.exp() + log_var).sum(1).mean()
            loss = loss + self.config.continuous_weight * term
        return loss

    def class_loss(self, z: Tensor, classes: Tensor) -> Tensor:
        terms = [functional.nll_loss(each, classes[:, i]) for i, each in enumerate(self.class_log_probs(z))]
        return torch.stack(terms).sum() if terms else z.new_zeros(())

    def opinion(self, logits: Tensor) -> float:
        """On Pnet's scale: −1 real, +1 generated."""
        return float(torch.tanh(logits.detach() / 2).mean())

    def class_log_probs(self, codes: Any) -> list[Tensor]:
        logits = codes[:, : sum(self.space.categories)].split(self.space.categories, 1)
        return [each.log_softmax(1) for each in logits]

    def fake_probability(self, reality: Any) -> Tensor:
        return torch.sigmoid(reality)


def with_batch_norm(net: nn.Module) -> list[nn.Module]:
    """The layers of a chain, with batch norm before each ReLU."""
    found: list[nn.Module] = []
    for layer in net.children():
        if isinstance(layer, nn.ReLU):
            before = found[-1]
            if isinstance(before, nn.Linear):
                found.append(nn.BatchNorm1d(before.out_features))
            else:
                assert isinstance(before, nn.ConvTranspose2d)
                found.append(nn.BatchNorm2d(before.out_channels))
        found.append(layer)
    return found


class AdamMoments(nn.Module):
    """The optimisers' moments as buffers, so that a checkpoint keeps them: the very tensors Adam writes to."""

    def __init__(self, optimisers: dict[str, torch.optim.Adam]) -> None:
        super().__init__()
        for name, optimiser in optimisers.items():
            for place, parameter in enumerate(optimiser.param_groups[0]["params"]):
                state = {
                    "step": torch.zeros(()),
                    "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                }
                optimiser.state[parameter] = state
                for key, tensor in state.items():
                    self.register_buffer(f"{name}_{place}_{key}", tensor)
