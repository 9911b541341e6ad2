"""What the heads of the discriminator observe: real or generated, and the latent codes.

Pnet   −1 for a real image, +1 for a generated one, with noise σ_P
Qnet   each category's path in its class tree with noise σ_Q, each continuous code with a noise of its own
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.gan.tasks import Noises
from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods import Binary, HierarchicalClassification, Regression

REAL, FAKE = -1.0, 1.0


class ClassLikelihood(nn.Module):
    """How the categorical codes follow from Qnet's first outputs."""

    def __init__(self, space: LatentSpace, noise_std: float) -> None:
        super().__init__()
        self.codes = [HierarchicalClassification(classes, noise_std) for classes in space.categories]
        self.registered = nn.ModuleList(self.codes)

    def forward(self, z: Gaussian, classes: Tensor) -> Tensor:
        """The negative log-evidence of the classes (n, categorical codes)."""
        losses = [code(part, classes[:, k]) for k, (code, part) in enumerate(self.split(z))]
        return torch.stack(losses).sum() if losses else z.mean.new_zeros(())

    @torch.no_grad()
    def log_probs(self, z: Gaussian) -> list[Tensor]:
        """(n, classes) for each categorical code."""
        return [code.log_probs(part) for code, part in self.split(z)]

    def split(self, z: Gaussian) -> list[tuple[HierarchicalClassification, Gaussian]]:
        ends = itertools.accumulate(code.outputs for code in self.codes)
        return [(code, z[:, end - code.outputs : end]) for code, end in zip(self.codes, ends, strict=True)]

    def set_noise(self, noise_std: float) -> None:
        for code in self.codes:
            code.noise_std = torch.tensor(noise_std)


class Heads(nn.Module):
    """The likelihoods of both heads in one of the two steps."""

    def __init__(self, space: LatentSpace, noises: Noises) -> None:
        super().__init__()
        self.labels = Binary(noises.labels)
        self.classes = ClassLikelihood(space, noises.codes)
        self.continuous = Regression(noises.continuous)
        self.class_outputs = sum(space.category_widths)

    def label_loss(self, z: Gaussian, value: float) -> Tensor:
        """The negative log-evidence of all images being `REAL` or `FAKE`."""
        loss: Tensor = self.labels(z, torch.full_like(z.mean, value))
        return loss

    def code_loss(self, z: Gaussian, latents: Latents) -> Tensor:
        """The negative log-evidence of the codes."""
        loss: Tensor = self.classes(z, latents.categories)
        if latents.continuous.shape[1]:
            loss = loss + self.continuous(z[:, self.class_outputs :], latents.continuous.to(z.dtype))
        return loss

    def set_noises(self, noises: Noises) -> None:
        """For a decay (eq. 7)."""
        self.labels.noise_std = torch.tensor(noises.labels)
        self.classes.set_noise(noises.codes)
        self.continuous.noise_std = torch.tensor(noises.continuous)
