"""What a user asks a generator to draw: fixed codes and codes that vary, as a grid of latent points.

    7            one value                 -1:1:9       nine values from −1 to 1
    2,3,5        several                   all          every class of a category

At most two things vary: the first along the columns, the second down the rows. Nothing else changes in between: all
images of a grid share one noise, unless it is the noise that varies (`samples`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.runs.folder import Run, RunError

MOST = 2500  # images on a sheet


def parse_numbers(name: str, text: str) -> list[float]:
    """The values of a continuous code."""
    try:
        if ":" in text:
            low, high, count = text.split(":")
            n = int(count)
            if n < 2:
                raise ValueError
            values = torch.linspace(float(low), float(high), n, dtype=torch.float64).tolist()
        else:
            values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name} must be a number, several with commas, or from:to:count, got {text!r}") from None
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"{name} must be finite, got {text!r}")
    return values


def parse_classes(name: str, text: str, classes: int) -> list[int]:
    """The classes of a category."""
    if text == "all":
        return list(range(classes))
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name} must be a class, several with commas, or `all`, got {text!r}") from None
    for value in values:
        if not 0 <= value < classes:
            raise ValueError(f"{name} must lie between 0 and {classes - 1}, got {value}")
    return values


@dataclass(frozen=True)
class Request:
    """Values by place, counted from 0, of continuous codes and categories; what is not named is drawn at random
    (categories and noise) or 0 (continuous codes)."""

    continuous: Mapping[int, Sequence[float]] = field(default_factory=dict)
    categories: Mapping[int, Sequence[int]] = field(default_factory=dict)
    samples: int = 1
    seed: int = 0

    def latents(self, space: LatentSpace) -> tuple[Latents, int]:
        """The points of the grid, row by row, and the number of columns."""
        self.check(space)
        varied = [("continuous", place, len(v)) for place, v in sorted(self.continuous.items()) if len(v) > 1]
        varied += [("categories", place, len(v)) for place, v in sorted(self.categories.items()) if len(v) > 1]
        if self.samples > 1:
            varied.append(("samples", 0, self.samples))
        if len(varied) > 2:
            names = ", ".join(describe(kind, place) for kind, place, _ in varied)
            raise ValueError(f"at most two things can vary, columns and rows; here vary {names}")
        lengths = [length for *_, length in varied]
        columns, rows = [*lengths, 1, 1][:2]
        if rows * columns > MOST:
            raise ValueError(f"{rows} rows of {columns} images are more than the {MOST} that fit a sheet")
        drawn = space.sample(self.samples, self.seed)
        along = {(kind, place): axis for axis, (kind, place, _) in enumerate(varied)}
        column = torch.arange(columns).repeat(rows)
        row = torch.arange(rows).repeat_interleave(columns)

        def index(kind: str, place: int) -> torch.Tensor:
            axis = along.get((kind, place))
            return torch.zeros_like(column) if axis is None else (column, row)[axis]

        sample = index("samples", 0)
        categories = drawn.categories[sample].clone()
        for place, classes in self.categories.items():
            categories[:, place] = torch.tensor(list(classes))[index("categories", place)]
        continuous = torch.zeros(len(column), space.continuous)
        for place, numbers in self.continuous.items():
            continuous[:, place] = torch.tensor(list(numbers), dtype=torch.float32)[index("continuous", place)]
        return Latents(drawn.noise[sample], categories, continuous), columns

    def check(self, space: LatentSpace) -> None:
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie between 0 and 2**63 - 1, got {self.seed}")
        for place in self.continuous:
            if place >= space.continuous:
                raise ValueError(f"this generator has {space.continuous} continuous codes, so no c{place + 1}")
        for place in self.categories:
            if not 0 <= place < len(space.categories):
                raise ValueError(
                    f"this generator has {len(space.categories)} categories, so no category {place + 1}"
                )


def describe(kind: str, place: int) -> str:
    return {"continuous": f"c{place + 1}", "categories": f"category {place + 1}", "samples": "samples"}[kind]


def code_of_digit(run: Run) -> tuple[int, ...]:
    """The code that stands for each digit 0 … 9, as measured on real digits after the last epoch."""
    rows = run.metrics()
    digit_of = rows[-1].get("digit_of_code") if rows else None
    if not digit_of:
        raise RunError(f"{run.folder} has not finished an epoch yet: nobody knows which code is which digit")
    codes = [0] * len(digit_of)
    for code, digit in enumerate(digit_of):
        codes[digit] = code
    return tuple(codes)
