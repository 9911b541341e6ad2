"""What the heads of the discriminator observe: real or generated, and the latent codes.

Pnet   −1 for a real image, +1 for a generated one, with noise σ_P
Qnet   each category's path in its class tree with noise σ_Q, each continuous code with a noise of its own
"""

import torch
from torch import Tensor, nn

from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.gan.tasks import Noises
from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods import Binary, HierarchicalClassification, Regression

REAL, FAKE = -1.0, 1.0


class Heads(nn.Module):
    """The likelihoods of both heads, with the noises of one kind of step."""

    def __init__(self, space: LatentSpace, noises: Noises) -> None:
        super().__init__()
        self.widths = space.category_widths
        self.labels = Binary(noises.labels)
        self.classes = nn.ModuleList(HierarchicalClassification(n, noises.codes) for n in space.categories)
        self.continuous = Regression(noises.continuous)

    def label_loss(self, z: Gaussian, value: float) -> Tensor:
        """The negative log-evidence of all images being `REAL` or `FAKE`."""
        loss: Tensor = self.labels(z, torch.full_like(z.mean, value))
        return loss

    def class_loss(self, z: Gaussian, classes: Tensor) -> Tensor:
        """The negative log-evidence of the classes (n, categorical codes)."""
        losses = [code(z[:, part], classes[:, k]) for k, (code, part) in enumerate(self.parts())]
        return torch.stack(losses).sum() if losses else z.mean.new_zeros(())

    def code_loss(self, z: Gaussian, latents: Latents) -> Tensor:
        """The negative log-evidence of all codes."""
        loss = self.class_loss(z, latents.categories)
        if latents.continuous.shape[1]:
            loss = loss + self.continuous(z[:, sum(self.widths) :], latents.continuous.to(z.dtype))
        return loss

    @torch.no_grad()
    def class_log_probs(self, z: Gaussian) -> list[Tensor]:
        """(n, classes) for each categorical code."""
        return [code.log_probs(z[:, part]) for code, part in self.parts()]

    def parts(self) -> list[tuple[HierarchicalClassification, slice]]:
        """Each categorical code's likelihood, and its share of Qnet's outputs, which begin with them."""
        starts = [sum(self.widths[:k]) for k in range(len(self.widths))]
        shares = [slice(start, start + width) for start, width in zip(starts, self.widths, strict=True)]
        return list(zip(self.classes, shares, strict=True))  # type: ignore[arg-type]

    def set_noises(self, noises: Noises) -> None:
        """For a decay (eq. 7)."""
        self.labels.noise_std = torch.tensor(noises.labels)
        self.continuous.noise_std = torch.tensor(noises.continuous)
        for code, _ in self.parts():
            code.noise_std = torch.tensor(noises.codes)
