"""Measures of codes and images, each a function of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 256  # images whose neighbours are searched at once


def code_measures(codes: Tensor, digits: Tensor, drawn: Tensor, read: Tensor | None) -> dict[str, Any]:
    """Of real test `digits` that Qnet read as `codes`, and of images `drawn` from codes that the judge `read`.

    Codes are learned without labels, so their numbers mean nothing: the Hungarian method finds the one-to-one
    assignment to digits that explains most test images. A digit has a code of its own if most of its images are
    read as this code, and most of the code's images show this digit.
    """
    from scipy.optimize import linear_sum_assignment

    table = torch.bincount(10 * codes + digits, minlength=100).view(10, 10)
    digit_of = torch.from_numpy(linear_sum_assignment(table.numpy(), maximize=True)[1])
    right = table[torch.arange(10), digit_of]
    most = torch.maximum(table.sum(1), table.sum(0)[digit_of])
    accuracy = right.sum().item() / len(digits)
    found: dict[str, Any] = {
        "error": round(100 * (1 - accuracy), 4),
        "accuracy": accuracy,
        "own_codes": int((2 * right > most).sum()),
        "digit_of_code": digit_of.tolist(),
        "codes_by_digits": table.tolist(),
    }
    if read is not None:
        found["read_error"] = 100 * float((read != digit_of[drawn]).float().mean())
    return found


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
