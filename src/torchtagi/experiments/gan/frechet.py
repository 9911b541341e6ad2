"""The Fréchet distance between two clouds of features, each taken as a Gaussian.

    d² = |μ₁ − μ₂|² + tr(C₁ + C₂ − 2 (C₁C₂)^½)

C₁C₂ is not symmetric, but has the eigenvalues of C₁^½ C₂ C₁^½, which is.
"""

from __future__ import annotations

import torch
from torch import Tensor


def frechet_distance(a: Tensor, b: Tensor) -> float:
    """d² between features (n, f) and (m, f)."""
    for name, features in (("a", a), ("b", b)):
        if features.ndim != 2 or len(features) < 2:
            raise ValueError(f"{name} must have shape (at least 2, features), got {tuple(features.shape)}")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"both need the same number of features, got {a.shape[1]} and {b.shape[1]}")
    (mean_a, cov_a), (mean_b, cov_b) = moments(a), moments(b)
    values, vectors = torch.linalg.eigh(cov_a)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.t()
    cross = torch.linalg.eigvalsh(root @ cov_b @ root).clamp_min(0).sqrt().sum()
    total = (mean_a - mean_b).square().sum() + cov_a.trace() + cov_b.trace() - 2 * cross
    return max(float(total), 0.0)


def moments(features: Tensor) -> tuple[Tensor, Tensor]:
    wide = features.double()
    return wide.mean(0), torch.atleast_2d(wide.t().cov())
