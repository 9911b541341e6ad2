"""The latent space of a generator: noise, categorical codes and continuous codes.

    noise ~ N(0, 1)      category ~ uniform over its classes      continuous ~ U(−1, 1)

A category enters the generator as its path in the class tree (`likelihoods.class_tree`): ±1 at the nodes of the
path, 0 elsewhere, which is also what Qnet has to read back. Ten classes take 11 units. An ordinary network, whose
codes are read by a softmax, takes them as one unit a class (`coding="one-hot"`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from torchtagi.likelihoods import class_tree


@dataclass(frozen=True)
class Latents:
    """n points of a latent space."""

    noise: Tensor  # (n, noise units)
    categories: Tensor  # (n, categorical codes), whole numbers
    continuous: Tensor  # (n, continuous codes)

    def __len__(self) -> int:
        return len(self.noise)

    def __getitem__(self, index: slice | Tensor) -> Latents:
        return Latents(self.noise[index], self.categories[index], self.continuous[index])

    def to(self, device: torch.device | str) -> Latents:
        return Latents(self.noise.to(device), self.categories.to(device), self.continuous.to(device))

    def with_category(self, place: int, classes: Tensor) -> Latents:
        """The same points with other classes (n,) of one categorical code."""
        categories = self.categories.clone()
        categories[:, place] = classes
        return replace(self, categories=categories)


@dataclass(frozen=True)
class LatentSpace:
    """How many of each: `noise` units, one entry of `categories` a categorical code, `continuous` codes."""

    noise: int
    categories: tuple[int, ...] = ()
    continuous: int = 0
    coding: Literal["tree", "one-hot"] = "tree"

    @property
    def has_codes(self) -> bool:
        """Whether there is anything for Qnet to read."""
        return bool(self.categories) or self.continuous > 0

    @property
    def category_widths(self) -> tuple[int, ...]:
        """How many units each categorical code takes."""
        if self.coding == "one-hot":
            return self.categories
        return tuple(class_tree(classes).shape[1] for classes in self.categories)

    @property
    def size(self) -> int:
        """The generator's inputs."""
        return self.noise + sum(self.category_widths) + self.continuous

    def sample(self, n: int, seed: int | None = None) -> Latents:
        """n random points, on the CPU, so that every device draws the same; without a seed from torch's global
        generator."""
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        noise = torch.randn(n, self.noise, generator=generator)
        chosen = [torch.randint(0, classes, (n,), generator=generator) for classes in self.categories]
        categories = torch.stack(chosen, 1) if chosen else torch.zeros(n, 0, dtype=torch.long)
        continuous = torch.rand(n, self.continuous, generator=generator) * 2 - 1
        return Latents(noise, categories, continuous)

    def encode(self, latents: Latents) -> Tensor:
        """(n, size): the generator's input."""
        parts = [latents.noise]
        for place, classes in enumerate(self.categories):
            code = torch.eye(classes) if self.coding == "one-hot" else class_tree(classes)
            parts.append(code.to(latents.noise)[latents.categories[:, place]])
        return torch.cat([*parts, latents.continuous.to(latents.noise)], 1)
