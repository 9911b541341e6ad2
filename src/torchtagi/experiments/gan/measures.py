"""Measures of codes and images, each a function of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 256

# ---- which code means which digit ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Assignment:
    """`digit_of[k]` is the digit that code k stands for; `table` (codes, digits) counts test images."""

    digit_of: tuple[int, ...]
    table: Tensor

    @property
    def accuracy(self) -> float:
        """The share of images read as their digit's code."""
        right = sum(int(self.table[code, digit]) for code, digit in enumerate(self.digit_of))
        return right / max(int(self.table.sum()), 1)

    @property
    def own_codes(self) -> int:
        """How many digits have a code of their own: the code that most of the digit's images are read as, and of
        whose images most show this digit."""
        return sum(
            2 * int(self.table[code, digit]) > max(int(self.table[:, digit].sum()), int(self.table[code].sum()))
            for code, digit in enumerate(self.digit_of)
        )


def assign(codes: Tensor, digits: Tensor, classes: int = 10) -> Assignment:
    """The one-to-one assignment that explains most images of `digits` that were read as `codes` (Hungarian method):
    codes are learned without labels, so their numbers mean nothing."""
    from scipy.optimize import linear_sum_assignment

    table = torch.bincount(codes.long() * classes + digits.long(), minlength=classes**2).view(classes, classes)
    _, chosen = linear_sum_assignment(table.cpu().numpy(), maximize=True)
    return Assignment(tuple(int(digit) for digit in chosen), table.cpu())


# ---- how far generated images are from real ones -------------------------------------------------------------


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Between features (n, f) and (m, f), each taken as a Gaussian:

        d² = |μ₁ − μ₂|² + tr(C₁ + C₂ − 2 (C₁C₂)^½)

    C₁C₂ is not symmetric, but has the eigenvalues of C₁^½ C₂ C₁^½, which is."""
    a, b = a.double(), b.double()
    cov_a, cov_b = torch.atleast_2d(a.t().cov()), torch.atleast_2d(b.t().cov())
    values, vectors = torch.linalg.eigh(cov_a)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.t()
    cross = torch.linalg.eigvalsh(root @ cov_b @ root).clamp_min(0).sqrt().sum()
    total = (a.mean(0) - b.mean(0)).square().sum() + cov_a.trace() + cov_b.trace() - 2 * cross
    return max(float(total), 0.0)


def copying(generated: Tensor, training: Tensor, held_out: Tensor) -> dict[str, float]:
    """Are generated images (n, C, H, W) copies? Their distances to the nearest training image beside those of real
    images that were held out.

    neighbour_ratio            of the medians: near 0 for copies, near or above 1 for new images; blurred images are
                               near to many, so somewhat below 1 is no copy yet
    neighbour_closest_share    of the generated images closer than 99 % of the held-out ones: near 1 for copies
    """
    distance, real_distance = nearest_distance(generated, training), nearest_distance(held_out, training)
    return {
        "neighbour_ratio": float(distance.median() / real_distance.median().clamp_min(1e-12)),
        "neighbour_closest_share": float((distance < real_distance.quantile(0.01)).float().mean()),
    }


def nearest_distance(images: Tensor, among: Tensor) -> Tensor:
    """The Euclidean distance of each image's pixels to those of the nearest among others."""
    # not by the expanded square, whose rounding would hide how near a copy is
    exact = "donot_use_mm_for_euclid_dist"
    chunks = images.flatten(1).split(CHUNK)
    return torch.cat([torch.cdist(chunk, among.flatten(1), compute_mode=exact).amin(1) for chunk in chunks])
