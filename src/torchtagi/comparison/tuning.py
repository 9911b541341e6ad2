"""A fair tuning of the rivals: every cell of a small fixed grid, judged on images held out of the training set.

The best cell has the fewest errors there, and among equals the best likelihood. The test set is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torchtagi import data
from torchtagi.baselines import find_method
from torchtagi.baselines.methods import Hyperparameters
from torchtagi.comparison.running import Watch, complete, last_row
from torchtagi.comparison.study import Entry, Study
from torchtagi.runs import Row, RunError


@dataclass(frozen=True)
class Tuning:
    """What was tried, and what was chosen."""

    chosen: Hyperparameters
    cells: list[Row]

    @property
    def at_edge(self) -> list[str]:
        """Numbers chosen at an end of at least three that were tried: a wider grid might have found better."""
        tried = {name: {cell["hyperparameters"].get(name) for cell in self.cells} for name in self.chosen}
        return [
            name
            for name, value in self.chosen.items()
            if not isinstance(value, str) and len(tried[name]) > 2 and value in (min(tried[name]), max(tried[name]))
        ]

    def as_json(self) -> Row:
        return {"chosen": self.chosen, "at_edge": self.at_edge, "cells": self.cells}


def tune(
    study: Study, entry: Entry, folder: Path, sets: Callable[[], data.TrainTest], threads: int, watch: Watch
) -> Tuning:
    """Train what is missing of the entry's grid below `folder`, and choose."""
    method = find_method(entry.method)
    source = Entry(method.tuned_as or entry.method, entry.batch_size)
    cells = []
    for cell in find_method(source.method).grid:
        config = study.tuning_config(source, cell, threads)
        place = folder / source.name / config.setting
        complete(place, config, sets, watch)
        row = last_row(place)
        scores = {name: row[name] if row else None for name in ("error", "nll")}
        cells.append({"hyperparameters": cell, **scores, "diverged": row is None})
    return Tuning(best(cells, source.name), cells)


def best(cells: list[Row], name: str) -> Hyperparameters:
    finite = [cell for cell in cells if cell["error"] is not None and cell["nll"] is not None]
    if not finite:
        raise RunError(f"{name} diverged in every cell of its grid; give its hyperparameters with --set")
    chosen: Hyperparameters = min(finite, key=lambda cell: (cell["error"], cell["nll"]))["hyperparameters"]
    return chosen
