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

    if codes.shape != digits.shape or codes.ndim != 1:
        raise ValueError(f"one code for each digit: got shapes {tuple(codes.shape)} and {tuple(digits.shape)}")
    for name, values in (("codes", codes), ("digits", digits)):
        if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < classes:
            raise ValueError(f"{name} must lie between 0 and {classes - 1}")
    table = torch.bincount(codes.long() * classes + digits.long(), minlength=classes**2).view(classes, classes)
    _, chosen = linear_sum_assignment(table.cpu().numpy(), maximize=True)
    return Assignment(tuple(int(digit) for digit in chosen), table.cpu())


def digits_drawn(codes: Tensor, read: Tensor, classes: int) -> int:
    """How many different digits are the majority reading of some code's images."""
    drawn = set()
    for code in codes.unique():
        counts = torch.bincount(read[codes == code], minlength=classes)
        if 2 * int(counts.max()) > int(counts.sum()):
            drawn.add(int(counts.argmax()))
    return len(drawn)


# ---- how far generated images are from real ones -------------------------------------------------------------


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """Between features (n, f) and (m, f), each taken as a Gaussian:

        d² = |μ₁ − μ₂|² + tr(C₁ + C₂ − 2 (C₁C₂)^½)

    C₁C₂ is not symmetric, but has the eigenvalues of C₁^½ C₂ C₁^½, which is."""
    for name, features in (("a", a), ("b", b)):
        if features.ndim != 2 or len(features) < 2:
            raise ValueError(f"{name} must have shape (at least 2, features), got {tuple(features.shape)}")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"both need the same number of features, got {a.shape[1]} and {b.shape[1]}")
    a, b = a.double(), b.double()
    cov_a, cov_b = torch.atleast_2d(a.t().cov()), torch.atleast_2d(b.t().cov())
    values, vectors = torch.linalg.eigh(cov_a)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.t()
    cross = torch.linalg.eigvalsh(root @ cov_b @ root).clamp_min(0).sqrt().sum()
    total = (a.mean(0) - b.mean(0)).square().sum() + cov_a.trace() + cov_b.trace() - 2 * cross
    return max(float(total), 0.0)


@dataclass(frozen=True)
class Neighbours:
    """Are generated images copies? Their distances to the nearest training image beside those of held-out images."""

    nearest: Tensor  # the training image closest to each generated image
    distance: Tensor
    held_out_distance: Tensor

    @property
    def ratio(self) -> float:
        """Median distance of the generated over that of the held-out images: near 0 for copies, near or above 1 for
        new images. Blurred images are near to many, so somewhat below 1 is no copy yet."""
        return float(self.distance.median() / self.held_out_distance.median().clamp_min(1e-12))

    @property
    def closest_share(self) -> float:
        """The share of generated images closer to a training image than 99 % of the held-out ones: 0.01 if they are
        as far as real ones, near 1 for copies."""
        return float((self.distance < self.held_out_distance.quantile(0.01)).float().mean())


def nearest_neighbours(generated: Tensor, training: Tensor, held_out: Tensor) -> Neighbours:
    """By Euclidean distance of the pixels (n, C, H, W)."""
    for name, images in (("generated", generated), ("training", training), ("held_out", held_out)):
        if images.shape[1:] != training.shape[1:] or not len(images):
            raise ValueError(
                f"{name} must hold images of shape {tuple(training.shape[1:])}, got {tuple(images.shape)}"
            )
    distance, nearest = search(generated, training)
    return Neighbours(nearest, distance, search(held_out, training)[0])


def search(images: Tensor, among: Tensor) -> tuple[Tensor, Tensor]:
    # not by the expanded square, whose rounding would hide how near a copy is
    exact = "donot_use_mm_for_euclid_dist"
    chunks = images.flatten(1).split(CHUNK)
    found = [torch.cdist(chunk, among.flatten(1), compute_mode=exact).min(1) for chunk in chunks]
    return torch.cat([each.values for each in found]), torch.cat([each.indices for each in found])
