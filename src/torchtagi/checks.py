"""Clear errors for bad input, raised before any parameter changes.

Each check names the argument and the offending value. The finiteness checks reduce to one number first (a
NaN or an infinity survives a sum), so a good tensor costs one pass and no mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

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


def plain_number(value: Any) -> Any:
    """A number of any kind, numpy's or a tensor's say, as Python's own, which files can hold; else what it was."""
    if isinstance(value, np.generic | np.ndarray | Tensor) and not value.ndim:
        value = value.item()
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def require_noise(noise: object) -> None:
    """A standard deviation given as a number."""
    if not isinstance(noise, Real | Tensor):
        raise TypeError(f"noise must be a number where it is no word, got {noise!r}")
    require_positive("noise", noise)  # type: ignore[arg-type]


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
        wrong = low if low < 0 else high
        row = int((labels == wrong).nonzero()[0])
        raise ValueError(f"{name} must lie in 0..{classes - 1}, got {wrong} at row {row}")


# ---- tables --------------------------------------------------------------------------------------------------


def as_numbers(name: str, values: Any) -> Tensor:
    """A dense tensor of what holds numbers: a tensor, an array, a table with `to_numpy`, a list of rows."""
    if isinstance(values, list | tuple) and values and isinstance(values[0], Tensor):
        require_one_length(name, values)
        values = torch.stack(list(values))
    if isinstance(values, Tensor):
        if values.layout != torch.strided:
            raise TypeError(f"{name} must be dense, got {values.layout}; convert it with .to_dense()")
        return values
    try:
        array = np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)
    except ValueError:
        require_one_length(name, values)
        raise
    if array.dtype.kind in "US":  # numbers beside a string have become strings, too
        array = np.asarray(values, dtype=object)
    if array.dtype.kind not in "biufcO" or (array.dtype.kind == "O" and not array.ndim):
        kind = array.dtype if array.ndim else type(values).__name__
        raise TypeError(f"{name} must be a tensor, an array, a table or a list of numbers, got {kind}")
    if array.dtype.kind == "O":
        for index, entry in np.ndenumerate(array):
            if not isinstance(entry, Real):
                raise TypeError(
                    f"{name} must hold numbers, got {entry!r} at {place(index, values)}; encode what is no number"
                )
        array = array.astype(np.float64)
    return torch.as_tensor(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def require_one_length(name: str, rows: Any) -> None:
    sizes = [len(row) if hasattr(row, "__len__") and np.ndim(row) else 0 for row in rows]
    for row, size in enumerate(sizes):
        if size != sizes[0]:
            raise ValueError(f"{name} must have rows of one length: row 0 has {sizes[0]}, row {row} has {size}")


def place(index: Sequence[int], source: Any = None) -> str:
    """Where an entry is, with the name of its column if the table it came from has some."""
    if len(index) > 2:
        return f"index {list(index)}"
    names = getattr(source, "columns", ())
    column = f", column {index[1]}" if len(index) > 1 else ""
    return f"row {index[0]}{column}" + (f" ({names[index[1]]!r})" if column and len(names) > index[1] else "")


def require_finite(name: str, x: Tensor, dtype: torch.dtype, missing: bool = False, source: Any = None) -> None:
    """Finite in this dtype; NaN stands for what is missing, if something may be."""
    cast = x.to(dtype)
    if math.isfinite(cast.sum().item()):
        return
    bad = torch.nonzero(torch.isinf(cast) if missing else ~torch.isfinite(cast))
    if not len(bad):  # a sum may overflow by itself
        return
    index = bad[0].tolist()
    value = x[tuple(index)].item()
    wish = "finite, or NaN where an observation is missing" if missing else "finite"
    reason = f", more than {dtype} can hold; rescale it" if math.isfinite(value) else ""
    raise ValueError(f"{name} must be {wish}; got {value} at {place(index, source)}{reason}")


@contextmanager
def naming_largest(**tables: tuple[Any, Any]) -> Iterator[None]:
    """Where numbers run off, say which entry of each table is the largest. A table comes as it was given and as it
    is learned from."""
    try:
        yield
    except (FloatingPointError, LinAlgError) as error:
        largest = []
        for name, pair in tables.items():
            given, learned = (values.mean if hasattr(values, "plain") else values for values in pair)
            if learned.is_floating_point():
                sizes = learned.abs().nan_to_num(nan=0.0)
                index = [int(i) for i in np.unravel_index(int(sizes.argmax()), sizes.shape)]
                value = given.reshape(sizes.shape)[tuple(index)].item()
                largest.append(f"{name} = {value:.6g} at {place(index)}")
        reason = str(error) if isinstance(error, FloatingPointError) else "the covariance is not positive any more"
        raise FloatingPointError(f"{reason}; the furthest out: {', '.join(largest)}") from error
