"""Inputs and targets on a scale of mean 0 and variance 1, one for each feature of a row or channel of an image.

The scale is that of the training data, or in a stream of its first thousand rows: a scale that moved for ever would
move what the network has learned with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtagi.gaussian import Gaussian

ROWS = 1000  # of a stream, until its scale stays


class Standardiser:
    """(x − mean)/std; passes everything on as it is until something was observed."""

    def __init__(self) -> None:
        self.settled = False
        """Whether nothing is observed any more."""
        self.rows, self.mean, self.squares = (torch.zeros(0, dtype=torch.float64) for _ in range(3))

    def observe(self, x: Tensor) -> None:
        """Add rows (N, features, …) to what is known of their scale; a NaN is missing."""
        values = x.detach().cpu().double().transpose(0, 1).flatten(1)
        seen = ~torch.isnan(values)
        count = seen.sum(1).double()
        if not self.known:
            self.rows, self.mean, self.squares = (torch.zeros_like(count) for _ in range(3))
        total = (self.rows + count).clamp_min(1)
        # the two halves' means and spreads, joined (Chan, Golub and LeVeque 1983)
        delta = torch.where(count > 0, values.nansum(1) / count.clamp_min(1) - self.mean, 0.0)
        within = (values - (self.mean + delta)[:, None]).square().nansum(1)
        self.squares = self.squares + within + delta.square() * self.rows * count / total
        self.mean = self.mean + delta * count / total
        self.rows = self.rows + count
        self.settled = bool(self.rows.min() >= ROWS)

    @property
    def known(self) -> bool:
        return self.rows.numel() > 0

    @property
    def std(self) -> Tensor:
        """1 where nothing varies."""
        std = (self.squares / (self.rows - 1).clamp_min(1)).sqrt()
        return torch.where(std > 1e-12 * self.mean.abs(), std, 1.0)

    def __call__(self, x: Any) -> Any:
        return (x - shaped(self.mean, x)) / shaped(self.std, x) if self.known else x

    def undo(self, y: Tensor) -> Tensor:
        return y * shaped(self.std, y) + shaped(self.mean, y) if self.known else y

    def factor(self, like: Tensor) -> Tensor:
        """The standard deviations, to be multiplied with."""
        return shaped(self.std, like) if self.known else like.new_ones(())

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in ("rows", "mean", "squares")} | {
            "settled": self.settled
        }

    def read_json(self, content: dict[str, Any]) -> None:
        """The inverse; raises what malformed content trips over."""
        columns = [torch.tensor(content[name], dtype=torch.float64) for name in ("rows", "mean", "squares")]
        if len({column.shape for column in columns}) > 1 or not all(bool(c.isfinite().all()) for c in columns):
            raise ValueError("the scale of inputs or targets is malformed")
        self.rows, self.mean, self.squares = columns
        self.settled = bool(content["settled"])


def shaped(values: Tensor, like: Tensor | Gaussian) -> Tensor:
    return values.to(dtype=like.dtype, device=like.device).view(1, -1, *(1,) * (like.ndim - 2))
