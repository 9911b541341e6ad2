"""Measures of codes and images, each a function of tensors.

Of a digit's strokes:

slant   how far the top leans to the right for each unit of height: −μ₁₁/μ₀₂ of the ink's central moments, x to the
        right and y down. A vertical stroke has 0, one at 45° to the right has 1.
width   in a stroke of width w the mean distance of the ink to the edge is w/4, so w = 4·mean distance. The image is
        first enlarged, which makes grey edges count for what they are.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtagi.experiments.gan.latent import Latents

CHUNK = 256  # images whose neighbours are searched at once
INK = 0.5  # of the brightest pixel: where a grey edge is crossed half-way
ZOOM = 4
FAINT = 1e-3  # a field without any ink has neither slant nor width


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


def slant(images: Tensor) -> Tensor:
    """One number for each image (n, 1, H, W) of non-negative brightness; NaN for an empty one."""
    ink = images[:, 0].clamp_min(0)
    height, width = ink.shape[1:]
    y = torch.arange(height, dtype=ink.dtype, device=ink.device).view(1, -1, 1)
    x = torch.arange(width, dtype=ink.dtype, device=ink.device).view(1, 1, -1)
    mass = ink.sum((1, 2), keepdim=True)
    dx, dy = x - (ink * x).sum((1, 2), keepdim=True) / mass, y - (ink * y).sum((1, 2), keepdim=True) / mass
    slope = -(ink * dx * dy).sum((1, 2)) / (ink * dy.square()).sum((1, 2))
    return torch.where(mass.flatten() > FAINT, slope, torch.nan)


def stroke_width(images: Tensor) -> Tensor:
    """In pixels, one number for each image (n, 1, H, W) of non-negative brightness; NaN for an empty one."""
    from scipy.ndimage import distance_transform_edt

    ink = images[:, 0].clamp_min(0)
    large = torch.nn.functional.interpolate(ink[:, None], scale_factor=ZOOM, mode="bilinear", align_corners=False)
    padded = torch.nn.functional.pad(large, (1, 1, 1, 1))[:, 0]  # paper around it, also where ink meets the border
    peak = padded.amax((1, 2), keepdim=True)
    marks = (padded > INK * peak).cpu().numpy()
    widths = []
    for mark, brightest in zip(marks, peak.flatten().tolist(), strict=True):
        if brightest <= FAINT:
            widths.append(float("nan"))
            continue
        # half a pixel less: distances run from centre to centre, the edge lies between the two
        widths.append(4 * float(np.mean(distance_transform_edt(mark)[mark] - 0.5)) / ZOOM)
    return torch.tensor(widths, dtype=images.dtype)


def correlation(code: Tensor, measure: Tensor, group: Tensor) -> float:
    """Pearson's, within groups: a category has its own mean slant and width, which are taken out first.
    NaN measures are left out."""
    there = torch.isfinite(measure)
    code, measure, group = code[there].double(), measure[there].double(), group[there]
    for k in group.unique():
        here = group == k
        code[here] -= code[here].mean()
        measure[here] -= measure[here].mean()
    spread = (code.square().sum() * measure.square().sum()).sqrt()
    return float((code * measure).sum() / spread) if float(spread) > 0 else float("nan")


def code_effects(latents: Latents, images: Tensor) -> dict[str, float]:
    """The correlation of each continuous code with both; `images` (n, 1, H, W) of brightness with paper at 0."""
    measures = {"slant": slant(images), "width": stroke_width(images)}
    group = latents.categories[:, 0] if latents.categories.shape[1] else torch.zeros(len(latents), dtype=torch.long)
    return {
        f"c{place + 1}_{name}": correlation(latents.continuous[:, place], measure.cpu(), group)
        for place in range(latents.continuous.shape[1])
        for name, measure in measures.items()
    }
