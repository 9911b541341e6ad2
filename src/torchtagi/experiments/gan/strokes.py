"""How a digit is written: its slant and the width of its strokes, measured from the pixels, and what continuous
codes do to them.

slant   how far the top leans to the right for each unit of height: −μ₁₁/μ₀₂ of the ink's central moments, x to the
        right and y down. A vertical stroke has 0, one at 45° to the right has 1.
width   in a stroke of width w the mean distance of the ink to the edge is w/4, so w = 4·mean distance. The image is
        first enlarged, which makes grey edges count for what they are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchtagi.experiments.gan.latent import Latents

INK = 0.5  # of the brightest pixel: where a grey edge is crossed half-way
ZOOM = 4
FAINT = 1e-3  # a field without any ink has neither slant nor width


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
