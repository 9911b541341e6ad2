"""Are generated images copies of training images?

Each one's distance to its nearest training image is compared with the distances of held-out real images to theirs.
A generator that copies comes far closer than reality does: a ratio of the medians near 0. Near or above 1 it does
not. Blurred images are near to many, so a ratio somewhat below 1 is no copy yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 256


@dataclass(frozen=True)
class Neighbours:
    """`nearest[i]` is the training image closest to generated image i."""

    nearest: Tensor
    distance: Tensor
    held_out_distance: Tensor

    @property
    def ratio(self) -> float:
        """Median distance of the generated over that of the held-out images."""
        return float(self.distance.median() / self.held_out_distance.median().clamp_min(1e-12))

    @property
    def closest_share(self) -> float:
        """The share of generated images closer to a training image than 99 % of the held-out ones: 0.01 if they are
        as far as reality, near 1 for copies."""
        threshold = self.held_out_distance.quantile(0.01)
        return float((self.distance < threshold).float().mean())


def nearest_neighbours(generated: Tensor, training: Tensor, held_out: Tensor) -> Neighbours:
    """By Euclidean distance of the pixels (n, C, H, W)."""
    for name, images in (("generated", generated), ("training", training), ("held_out", held_out)):
        if images.shape[1:] != training.shape[1:] or not len(images):
            raise ValueError(
                f"{name} must hold images of shape {tuple(training.shape[1:])}, got {tuple(images.shape)}"
            )
    distance, nearest = search(generated, training)
    held_out_distance, _ = search(held_out, training)
    return Neighbours(nearest, distance, held_out_distance)


def search(images: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    flat = among.flatten(1)
    distances, places = [], []
    for chunk in images.flatten(1).split(CHUNK):
        # not by the expanded square, whose rounding would hide how near a copy is
        found = torch.cdist(chunk, flat, compute_mode="donot_use_mm_for_euclid_dist").min(1)
        distances.append(found.values)
        places.append(found.indices)
    return torch.cat(distances), torch.cat(places)
