"""What a user asks a generator to draw: fixed codes and codes that vary, as a grid of latent points.

7            one value                 -1:1:9       nine values from −1 to 1
2,3,5        several                   all          every class of a category
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.runs.folder import Run, RunError

MOST = 2500  # images on a sheet


def parse_numbers(name: str, text: str) -> list[float]:
    """The values of a continuous code."""
    low, *rest = text.split(":")
    try:
        values = [float(part) for part in low.split(",")]
        if rest:
            high, count = rest
            values = torch.linspace(float(low), float(high), int(count), dtype=torch.float64).tolist()
        if len(values) < 1 + bool(rest) or not all(map(math.isfinite, values)):
            raise ValueError
    except (ValueError, RuntimeError):
        wanted = "a number, several with commas, or from:to:count"
        raise ValueError(f"{name} must be {wanted}, got {text!r}") from None
    return values


def parse_classes(name: str, text: str, classes: int) -> list[int]:
    """The classes of a category."""
    try:
        values = list(range(classes)) if text == "all" else [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name} must be a class, several with commas, or `all`, got {text!r}") from None
    for value in values:
        if not 0 <= value < classes:
            raise ValueError(f"{name} must lie between 0 and {classes - 1}, got {value}")
    return values


def latent_grid(
    space: LatentSpace,
    continuous: Mapping[int, Sequence[float]],
    categories: Mapping[int, Sequence[int]],
    samples: int = 1,
    seed: int = 0,
) -> tuple[Latents, int]:
    """The points of a grid, row by row, and the number of columns.

    Values are by place, counted from 0; what is not named is random (categories and noise) or 0 (continuous codes).
    At most two things vary: the first along the columns, the second down the rows. All images of a grid share one
    noise, unless it is the noise that varies (`samples`).
    """
    if continuous and max(continuous) >= space.continuous:
        raise ValueError(f"this generator has {space.continuous} continuous codes, so no c{max(continuous) + 1}")
    values: dict[str, Sequence[float]] = {
        **{f"c{place + 1}": continuous[place] for place in sorted(continuous)},
        **{f"category {place + 1}": categories[place] for place in sorted(categories)},
        "samples": range(samples),
    }
    varied = [name for name, choices in values.items() if len(choices) > 1]
    if len(varied) > 2:
        raise ValueError(f"at most two things can vary, columns and rows; here vary {', '.join(varied)}")
    columns, rows = [*(len(values[name]) for name in varied), 1, 1][:2]
    if rows * columns > MOST:
        raise ValueError(f"{rows} rows of {columns} images are more than the {MOST} that fit a sheet")
    places = (torch.arange(columns).repeat(rows), torch.arange(rows).repeat_interleave(columns))
    index = dict(zip(varied, places, strict=False))
    still = torch.zeros(rows * columns, dtype=torch.long)
    grid = {name: torch.tensor(list(choices))[index.get(name, still)] for name, choices in values.items()}
    points = space.sample(samples, seed)[grid["samples"]]
    for place in categories:
        points = points.with_category(place, grid[f"category {place + 1}"])
    numbers = torch.zeros_like(points.continuous)
    for place in continuous:
        numbers[:, place] = grid[f"c{place + 1}"]
    return replace(points, continuous=numbers), columns


def code_of_digit(run: Run) -> tuple[int, ...]:
    """The code that stands for each digit 0 … 9, as measured on real digits after the last epoch."""
    rows = run.metrics()
    digit_of = rows[-1].get("digit_of_code") if rows else None
    codes = [digit_of.index(d) for d in range(10) if d in digit_of] if isinstance(digit_of, list) else []
    if len(codes) < 10:
        raise RunError(f"{run.folder} has not measured which code is which digit: it has not finished an epoch yet")
    return tuple(codes)
