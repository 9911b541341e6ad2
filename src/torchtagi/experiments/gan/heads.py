"""What the heads of the discriminator observe: real or generated, and the latent codes.

    Pnet   −1 for a real image, +1 for a generated one, with noise σ_P
    Qnet   each category's path in its class tree with noise σ_Q, each continuous code with a noise of its own

The continuous codes' noise may be `fixed`; `learned`, one number for each code from what Qnet misses; or
`predicted` for each image by Qnet itself (AGVI), which then has two outputs a code. The last two are the paper's
own suggestion (§4.1): a homoscedastic output is its explanation for codes that are not told apart.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods import Binary, HeteroscedasticRegression, HierarchicalClassification, Regression
from torchtagi.nn import EvenExp

REAL, FAKE = -1.0, 1.0
CONTINUOUS_NOISES = ("fixed", "learned", "predicted")


class CodeLikelihood(nn.Module):
    """How the latent codes follow from Qnet's outputs: categories first, then continuous codes."""

    def __init__(
        self,
        space: LatentSpace,
        noise_std: float = 1.0,
        continuous_noise_std: float = 1.0,
        continuous_noise: str = "fixed",
    ) -> None:
        super().__init__()
        if continuous_noise not in CONTINUOUS_NOISES:
            raise ValueError(
                f"continuous_noise must be one of {', '.join(CONTINUOUS_NOISES)}, got {continuous_noise!r}"
            )
        if space.coding != "tree":
            raise ValueError("Qnet's outputs are the nodes of class trees: the latent space needs coding='tree'")
        self.space, self.predicted = space, continuous_noise == "predicted"
        self.categories = nn.ModuleList(
            HierarchicalClassification(classes, noise_std) for classes in space.categories
        )
        self.continuous = nn.ModuleList(
            HeteroscedasticRegression()
            if self.predicted
            else Regression(continuous_noise_std, learn_noise=continuous_noise == "learned")
            for _ in range(space.continuous)
        )
        self.positive = EvenExp()

    @property
    def outputs(self) -> int:
        """How many outputs Qnet must have."""
        return sum(self.space.category_widths) + self.space.continuous * (2 if self.predicted else 1)

    def forward(self, z: Gaussian, latents: Latents) -> Tensor:
        """The negative log-evidence of the codes."""
        categories, continuous = self.split(z)
        terms = self.class_terms(categories, latents.categories)
        terms += [
            likelihood(part, latents.continuous[:, place : place + 1].to(part.dtype))
            for place, (likelihood, part) in enumerate(zip(self.continuous, continuous, strict=True))
        ]
        return torch.stack(terms).sum()

    def of_classes(self, z: Gaussian, classes: Tensor) -> Tensor:
        """The negative log-evidence of the categorical codes alone, (n, categorical codes)."""
        return torch.stack(self.class_terms(self.split(z)[0], classes)).sum()

    def class_terms(self, parts: list[Gaussian], classes: Tensor) -> list[Tensor]:
        return [
            likelihood(part, classes[:, place])
            for place, (likelihood, part) in enumerate(zip(self.categories, parts, strict=True))
        ]

    def split(self, z: Gaussian) -> tuple[list[Gaussian], list[Gaussian]]:
        """Qnet's outputs by code."""
        if z.ndim != 2 or z.shape[1] != self.outputs:
            raise ValueError(f"Qnet must have {self.outputs} outputs for these codes, got shape {tuple(z.shape)}")
        categories, start = [], 0
        for width in self.space.category_widths:
            categories.append(z[:, start : start + width])
            start += width
        step = 2 if self.predicted else 1
        continuous = [z[:, start + step * i : start + step * (i + 1)] for i in range(self.space.continuous)]
        return categories, [self.positive(part) for part in continuous] if self.predicted else continuous

    @torch.no_grad()
    def read(self, z: Gaussian) -> Tensor:
        """The likeliest class of each categorical code, (n, categorical codes)."""
        return likeliest_classes(self.class_log_probs(z), len(z)).to(z.device)

    @torch.no_grad()
    def class_log_probs(self, z: Gaussian) -> list[Tensor]:
        """(n, classes) for each categorical code."""
        found = []
        for likelihood, part in zip(self.categories, self.split(z)[0], strict=True):
            assert isinstance(likelihood, HierarchicalClassification)
            found.append(likelihood.log_probs(part))
        return found

    @property
    def noise_stds(self) -> dict[str, float]:
        """The noises now in force, for reports."""
        noises = {}
        for place, likelihood in enumerate(self.continuous, 1):
            if isinstance(likelihood, Regression):
                noises[f"c{place}_noise_std"] = likelihood.learned_noise_var.sqrt().item()
        for likelihood in self.categories[:1]:
            assert isinstance(likelihood, HierarchicalClassification)
            noises["code_noise_std"] = likelihood.noise_std.item()
        return noises

    def heard_with(self, noise_std: float | None, continuous_noise_std: float | None) -> CodeLikelihood:
        """The same codes with fixed noises of their own; where one is None, with ours and what is learned of it."""
        heard = CodeLikelihood(
            self.space, noise_std or 1.0, continuous_noise_std or 1.0, "predicted" if self.predicted else "fixed"
        )
        if noise_std is None:
            heard.categories = self.categories
        if continuous_noise_std is None:
            heard.continuous = self.continuous
        return heard

    def set_noise(self, noise_std: float | None, continuous_noise_std: float | None) -> None:
        """Assign the noises, for a decay (eq. 7); where the noise is learned, its floor. None keeps one."""
        for part in self.categories if noise_std is not None else ():
            assert isinstance(part, HierarchicalClassification)
            part.noise_std = torch.tensor(noise_std)
        for part in self.continuous if continuous_noise_std is not None else ():
            if isinstance(part, Regression):
                part.noise_std = torch.tensor(continuous_noise_std)


def likeliest_classes(log_probs: list[Tensor], images: int) -> Tensor:
    """(images, categorical codes) from the log-probabilities (images, classes) of each code; there may be none."""
    read = [each.argmax(1) for each in log_probs]
    return torch.stack(read, 1) if read else torch.zeros(images, 0, dtype=torch.long)


class Heads(nn.Module):
    """The likelihoods of both heads; `codes` is None in a GAN without codes.

    `lead` keeps how far Pnet was ahead in the last batch (see `gan.game.Game`).
    """

    lead: Tensor

    def __init__(self, reality_noise_std: float, codes: CodeLikelihood | None) -> None:
        super().__init__()
        self.reality = Binary(reality_noise_std)
        self.codes = codes
        self.register_buffer("lead", torch.zeros(()))

    def label(self, z: Gaussian, value: float) -> Tensor:
        """The negative log-evidence of all images being real or generated."""
        evidence: Tensor = self.reality(z, torch.full_like(z.mean, value))
        return evidence
