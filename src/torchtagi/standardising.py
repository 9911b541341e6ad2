"""Inputs and targets on a scale of mean 0 and variance 1, one for each feature of a row or channel of an image.

The scale is that of the training data, or in a stream of its first thousand rows: a scale that moved for ever would
move what the network has learned with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchtagi.gaussian import Gaussian
from torchtagi.metrics import wide

ROWS = 1000  # of a stream, until its scale stays
ROUNDED = 1e-4  # of a standard deviation: predictions that would be rounded by more keep the digits of double


class Standardiser:
    """(x − mean)/std; until something was observed, one mean of 0 and one std of 1 for all."""

    def __init__(self) -> None:
        self.settled = False
        """Whether nothing is observed any more."""
        self.in_double = False
        """Whether numbers came with more digits than single precision has."""
        self.rows, self.squared_weights, self.mean, self.squares = (
            torch.zeros(1, dtype=torch.float64) for _ in range(4)
        )
        self.std = self.deviation()

    def observe(self, x: Tensor, weights: Tensor | None = None) -> None:
        """Add rows (N, features, …) to what is known of their scale; a NaN is missing. A row counts for one, or for
        its weight."""
        self.in_double = self.in_double or digits_of(x) == torch.float64
        values = x.detach().cpu().double().transpose(0, 1)
        seen = (~torch.isnan(values)).double()
        if weights is not None:
            seen = seen * weights.detach().cpu().double().view(-1, *(1,) * (x.ndim - 2))
        values, seen = values.flatten(1), seen.flatten(1)
        count = seen.sum(1)
        total = (self.rows + count).clamp_min(torch.finfo(torch.float64).tiny)
        # the two halves' means and spreads, joined (Chan, Golub and LeVeque 1983)
        delta = torch.where(count > 0, (values * seen).nansum(1) / count - self.mean, 0.0)
        within = ((values - (self.mean + delta)[:, None]).square() * seen).nansum(1)
        self.squares = self.squares + within + delta.square() * self.rows * count / total
        self.mean = self.mean + delta * count / total
        self.rows = self.rows + count
        self.squared_weights = self.squared_weights + seen.square().sum(1)
        self.std = self.deviation()
        equal = self.rows.square() / self.squared_weights  # rows of one weight that say as much (Kish 1965)
        self.settled = bool(equal.min() >= ROWS)

    def deviation(self) -> Tensor:
        """1 where nothing varies. Weights that are counts have the divisor Σw − 1, as rows that come so often have.
        Below 1 it is Σw − Σw²/Σw, unbiased whatever factor they share, and rounding alone of a single row."""
        divisor = self.rows - (self.squared_weights / self.rows).clamp_max(1)
        std = (self.squares / divisor).sqrt()
        return torch.where((divisor > 1e-12 * self.rows) & (std > 1e-12 * self.mean.abs()), std, 1.0)

    def __call__(self, x: Any, least: torch.dtype = torch.float32) -> Any:
        """In the precision that x came in, or a better one: a large mean has to go before digits do."""
        x = x.to(digits_of(x, least))
        return (x - shaped(self.mean, x)) / self.factor(x)

    def undo(self, y: Tensor) -> Tensor:
        """The inverse; in double, if numbers came in it and y would be rounded visibly in its own precision."""
        step = torch.finfo(y.dtype).eps * self.mean.abs()
        y = wide(y) if self.in_double and bool((step > ROUNDED * self.std).any()) else y
        return y * self.factor(y) + shaped(self.mean, y)

    def factor(self, like: Tensor | Gaussian) -> Tensor:
        """The standard deviations, to be multiplied with."""
        return shaped(self.std, like)

    def as_json(self) -> dict[str, Any]:
        columns = {name: getattr(self, name).tolist() for name in ("rows", "squared_weights", "mean", "squares")}
        return {**columns, "settled": self.settled, "in_double": self.in_double}

    def read_json(self, content: dict[str, Any]) -> None:
        """The inverse; raises what malformed content trips over."""
        weights = content.get("squared_weights", content["rows"])  # older files have none
        columns = torch.tensor([content["rows"], weights, content["mean"], content["squares"]], dtype=torch.float64)
        if columns.ndim != 2 or not bool(columns.isfinite().all()):
            raise ValueError("the scale of inputs or targets is malformed")
        self.rows, self.squared_weights, self.mean, self.squares = columns
        self.std = self.deviation()
        self.settled, self.in_double = bool(content["settled"]), bool(content.get("in_double", False))


def digits_of(x: Tensor | Gaussian, least: torch.dtype = torch.float32) -> torch.dtype:
    """The precision in which nothing of x is lost: whole numbers may have more digits than single precision."""
    if x.dtype.is_floating_point:
        return torch.promote_types(x.dtype, least)
    return wide(torch.empty(0, device=x.device)).dtype


def shaped(values: Tensor, like: Tensor | Gaussian) -> Tensor:
    return values.to(dtype=like.dtype, device=like.device).view(1, -1, *(1,) * (like.ndim - 2))
