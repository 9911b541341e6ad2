"""Clear errors for bad input, raised before any parameter changes.

Each check names the argument and the offending value. The finiteness checks reduce to one number first (a
NaN or an infinity survives a sum), so a good tensor costs one pass and no mask.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchtagi import distributed


def require_floating(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor or a Gaussian, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must have a floating dtype, got {x.dtype}; convert it with .float()")


def require_values(name: str, x: Tensor) -> None:
    """Floating, non-empty and finite. Where processes learn together, one may have no samples left."""
    require_floating(name, x)
    if x.numel() == 0 and distributed.state.group is None:
        raise ValueError(f"{name} is empty: shape {tuple(x.shape)}")
    if not math.isfinite(x.sum().item()):
        bad = torch.nonzero(~torch.isfinite(x))
        if len(bad):  # a sum may overflow by itself
            index = bad[0].tolist()
            raise ValueError(f"{name} must be finite, got {x[tuple(index)].item()} at index {index}")


def require_variance(var: Tensor, mean: Tensor) -> None:
    """A variance that fits its mean: same shape, dtype and device; finite and not negative."""
    require_values("var", var)
    if var.shape != mean.shape:
        raise ValueError(f"var must have the shape of mean, {tuple(mean.shape)}, got {tuple(var.shape)}")
    if var.dtype != mean.dtype or var.device != mean.device:
        raise TypeError(f"var is {var.dtype} on {var.device}, but mean is {mean.dtype} on {mean.device}")
    smallest = var.min().item()
    if smallest < 0:
        raise ValueError(f"var must not be negative, got {smallest}")


def require_positive(name: str, value: float | Tensor) -> None:
    if isinstance(value, Tensor) and value.is_meta:
        return  # a shape without values, as when a checkpoint's architecture is tried out
    ends = (value.min().item(), value.max().item()) if isinstance(value, Tensor) else (float(value),)
    for end in ends:
        if not (end > 0 and math.isfinite(end)):
            raise ValueError(f"{name} must be positive and finite, got {end}")


def require_labels(name: str, labels: Tensor, batch: int, classes: int) -> None:
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} must be a tensor of class indices, got {type(labels).__name__}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"{name} must have an integer dtype, got {labels.dtype}")
    if labels.shape != (batch,):
        raise ValueError(f"{name} must have shape ({batch},), one class a sample, got {tuple(labels.shape)}")
    if not batch:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(f"{name} must lie in 0..{classes - 1}, got {low if low < 0 else high}")
