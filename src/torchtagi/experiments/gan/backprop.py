"""The same infoGAN by backprop, as the baseline: Chen et al. (2016) scaled to the paper's networks.

Adam, binary cross-entropy for Pnet, cross-entropy for the categorical codes and for each continuous code a Gaussian
whose mean and variance Qnet predicts, with G's usual "not saturating" loss. Codes enter as one unit a class and are
read by a softmax. As in their networks, G has batch norm before each ReLU and ends in a bounded unit, here tanh:
pixels lie within ±1 of their mean. D always sees real and generated images in one batch, in the generator step too.
Normalised apart, as usual, D wins outright with the paper's Dnet, whose first layer has a batch norm.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchtagi.experiments.baselines.backprop import start_state
from torchtagi.experiments.baselines.baseline import as_module
from torchtagi.experiments.data import augment_affine
from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.gan.model import Gan, Report, likeliest
from torchtagi.experiments.gan.networks import Networks, frozen
from torchtagi.experiments.gan.tasks import Constants

BETAS = (0.5, 0.999)  # Radford et al. (2016), as Chen et al. use them
DISCRIMINATOR_LR, GENERATOR_LR = 2e-4, 1e-3  # Chen et al.
CONTINUOUS_WEIGHT = 0.1  # λ of the continuous codes, Chen et al.
CLASS_WEIGHT = 0.01  # λ of generated images' classes in D's loss where there are pseudo-labels (see `tasks.DIGITS`)


class BackpropGan(Gan):
    """A GAN trained by Adam."""

    def __init__(self, networks: Networks, space: LatentSpace, constants: Constants, batch_size: int = 16) -> None:
        super().__init__(networks, space, constants, batch_size)
        self.optimisers = {
            "discriminator": torch.optim.Adam(networks.discriminator.parameters(), DISCRIMINATOR_LR, betas=BETAS),
            "generator": torch.optim.Adam(networks.generator.parameters(), GENERATOR_LR, betas=BETAS),
        }
        for part, optimiser in self.optimisers.items():
            self.state[f"{part}_moments"] = as_module(start_state(optimiser))
        self.class_weight = 1.0 if self.pseudo_labels is None else CLASS_WEIGHT

    def begin_epoch(self, epoch: int) -> None:
        self.networks.train()

    def step(self, real: Tensor, batch: int) -> Report:
        latents = self.space.sample(len(real)).to(real.device)
        images = self.networks.generator(self.space.encode(latents))
        report = self.discriminator_step(real, images.detach(), latents, batch)
        report["fooled"] = self.generator_step(real, images, latents)
        return {**report, "largest_pixel": images.detach().abs().max().item()}

    def discriminator_step(self, real: Tensor, images: Tensor, latents: Latents, batch: int) -> Report:
        of_real, of_images, codes = self.discriminate(real, images)
        loss = label_loss(of_real, 0.0) + label_loss(of_images, 1.0)
        report = {"real": mean_label(of_real), "fake": mean_label(of_images)}
        if codes is not None:
            loss = loss + self.code_loss(codes, latents, self.class_weight)
            if self.space.categories:
                read = likeliest(self.class_log_probs(codes))
                report["code_error"] = (read != latents.categories).float().mean().item()
        if self.pseudo_labels is not None:
            copies = self.networks.discriminator(self.noisy(augment_affine(real))).codes
            loss = loss + self.class_loss(copies, self.pseudo_labels.of_batch(batch, len(real)))
        self.learn("discriminator", loss)
        return report

    def generator_step(self, real: Tensor, images: Tensor, latents: Latents) -> float:
        """Returns Pnet's mean output for the generated images."""
        with frozen(self.networks.discriminator):
            _, of_images, codes = self.discriminate(real, images)
            loss = label_loss(of_images, 0.0)
            if codes is not None:
                loss = loss + self.code_loss(codes, latents, 1.0)
            self.learn("generator", loss)
        return mean_label(of_images)

    def learn(self, part: str, loss: Tensor) -> None:
        self.optimisers[part].zero_grad()
        loss.backward()
        self.optimisers[part].step()

    def discriminate(self, real: Tensor, images: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Pnet's outputs for real and for generated images, and Qnet's for the latter, normalised as one batch."""
        n = len(real)
        labels, codes = self.networks.discriminator(self.noisy(torch.cat([real, images])), codes_from=n)
        return labels[:n], labels[n:], codes

    def code_loss(self, z: Tensor, latents: Latents, class_weight: float) -> Tensor:
        """Cross-entropy of the categories, Gaussian negative log-likelihood of the continuous codes."""
        loss = class_weight * self.class_loss(z, latents.categories)
        if self.space.continuous:
            mean, log_var = z[:, sum(self.space.categories) :].chunk(2, 1)
            term = 0.5 * ((latents.continuous - mean).square() / log_var.exp() + log_var).sum(1).mean()
            loss = loss + CONTINUOUS_WEIGHT * term
        return loss

    def class_loss(self, z: Tensor, classes: Tensor) -> Tensor:
        terms = [functional.nll_loss(each, classes[:, i]) for i, each in enumerate(self.class_log_probs(z))]
        return torch.stack(terms).sum() if terms else z.new_zeros(())

    def class_log_probs(self, codes: Any) -> list[Tensor]:
        logits = codes[:, : sum(self.space.categories)].split(self.space.categories, 1)
        return [each.log_softmax(1) for each in logits]

    def generated_probability(self, labels: Any) -> Tensor:
        return torch.sigmoid(labels)


def label_loss(logits: Tensor, value: float) -> Tensor:
    return functional.binary_cross_entropy_with_logits(logits, torch.full_like(logits, value))


def mean_label(logits: Tensor) -> float:
    """On the scale of Pnet's labels: −1 real, +1 generated."""
    return float(torch.tanh(logits.detach() / 2).mean())


def with_batch_norm(net: nn.Module) -> nn.Module:
    """A generator with batch norm before each ReLU and a bounded output."""
    layers: list[Any] = []
    for layer in net.children():
        if isinstance(layer, nn.ReLU):
            before = layers[-1]
            norm = nn.BatchNorm1d if isinstance(before, nn.Linear) else nn.BatchNorm2d
            layers.append(norm(before.out_features if isinstance(before, nn.Linear) else before.out_channels))
        layers.append(layer)
    return nn.Sequential(*layers, nn.Tanh())
