"""A fair tuning of the rivals: every cell of a small fixed grid, judged on images held out of the training set.

The best cell has the fewest errors there, and among equals the best likelihood; the other way round where few
images are held out, because then many cells have nearly the same number of errors. Of very few images several
fifths are held out in turn (cross-validation), and a cell is judged by the folds' means. The test set is not looked
at.

At the brink of divergence a rate may be the best in one run and ruin the next. Where a cell has one or two runs,
the best, the best of a lower rate and the best of another schedule are trained with two more seeds, and the means
over all three decide.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtagi.experiments import data
from torchtagi.experiments.baselines import RivalConfig, find_method
from torchtagi.experiments.baselines.methods import Hyperparameters, Value
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.compare.running import Watch, complete_all, last_row
from torchtagi.experiments.compare.study import Entry, Study
from torchtagi.experiments.runs.folder import Row

NEAR_CHANCE = 0.9  # of the error of guessing


@dataclass(frozen=True)
class Tuning:
    """What was tried, and what was chosen."""

    cells: list[Row]
    judged_by: str = "error"
    """The score that decides first, `error` or `nll`; the other one decides between equals."""
    defaults: Mapping[str, Value] | None = None
    """What a cell has where it says nothing."""
    chance: float = 100.0
    """The error of guessing, in %."""

    finals: list[Row] = field(default_factory=list)
    """The finalists' means over more seeds, if they were asked."""

    @property
    def winner(self) -> Row | None:
        """The best finalist or, without finals, cell; among equals one inside the grid. None if all diverged."""
        return self.best(self.finals) or self.best(self.cells)

    def best(self, cells: Iterable[Row]) -> Row | None:
        first, second = ("nll", "error") if self.judged_by == "nll" else ("error", "nll")
        finite = [cell for cell in cells if cell["error"] is not None and cell["nll"] is not None]
        return min(finite, key=lambda c: (c[first], c[second], len(self.edges(c))), default=None)

    def finalists(self) -> list[Hyperparameters]:
        """The best cell, the best of those with a lower rate, and the best with another schedule; none if the first
        has no rival."""
        first = self.best(self.cells)
        if first is None:
            return []
        value = self.value
        gentler = self.best(c for c in self.cells if value(c, "learning_rate") < value(first, "learning_rate"))
        otherwise = self.best(c for c in self.cells if value(c, "schedule") != value(first, "schedule"))
        found = [first["hyperparameters"]]
        for cell in (gentler, otherwise):
            if cell is not None and cell["hyperparameters"] not in found:
                found.append(cell["hyperparameters"])
        return found if len(found) > 1 else []

    def value(self, cell: Row, name: str) -> Any:
        """What the cell has of a hyperparameter."""
        return {**(self.defaults or {}), **cell["hyperparameters"]}.get(name)

    @property
    def chosen(self) -> Hyperparameters | None:
        return None if self.winner is None else self.winner["hyperparameters"]

    @property
    def at_edge(self) -> list[str]:
        """Numbers chosen at an end of at least three that were tried: a wider grid might have found better."""
        return [] if self.winner is None else self.edges(self.winner)

    @property
    def near_chance(self) -> bool:
        """Whether even the best cell has learned next to nothing: the choice means little."""
        return self.winner is not None and self.winner["error"] > NEAR_CHANCE * self.chance

    def edges(self, cell: Row) -> list[str]:
        tried = [{**(self.defaults or {}), **other["hyperparameters"]} for other in self.cells]
        found = []
        for name, value in {**(self.defaults or {}), **cell["hyperparameters"]}.items():
            values = {other[name] for other in tried}
            if not isinstance(value, str) and len(values) > 2 and value in (min(values), max(values)):
                found.append(name)
        return found

    def as_json(self) -> Row:
        return {
            "chosen": self.chosen,
            "judged_by": self.judged_by,
            "at_edge": self.at_edge,
            "near_chance": self.near_chance,
            "cells": self.cells,
            "finals": self.finals,
        }


def tune(
    study: Study, entry: Entry, folder: Path, sets: Callable[[], data.TrainTest], threads: int, watch: Watch
) -> Tuning:
    """Train what is missing of the entry's grid below `folder`, and choose."""
    source = Entry(find_method(entry.method).tuned_as or entry.method, entry.batch_size)
    method = find_method(source.method)

    def judged(cells: Iterable[Hyperparameters], seeds: Sequence[int] = (0,)) -> list[Row]:
        runs = [(seed, fold) for seed in seeds for fold in range(study.folds)]
        asked = [
            (cell, [study.tuning_config(source, cell, threads, fold, seed) for seed, fold in runs])
            for cell in cells
        ]
        complete_all({place(config): config for _, configs in asked for config in configs}, sets, watch)
        return [cell_row(cell, [last_row(place(config)) for config in configs]) for cell, configs in asked]

    def place(config: RivalConfig) -> Path:
        return folder / source.name / (f"{config.setting}-seed{config.seed}" if config.seed else config.setting)

    chance = 100 * (1 - 1 / len(find_task(study.task).classes))
    found = Tuning(judged(method.grid), study.judged_by, method.defaults, chance)
    for name, values in method.refined.items():
        if found.chosen is not None:
            found.cells.extend(judged([{**found.chosen, name: value} for value in values]))
    finalists = found.finalists() if study.final_seeds else []
    if finalists:
        found = dataclasses.replace(found, finals=judged(finalists, (0, *study.final_seeds)))
    return found


def cell_row(cell: Hyperparameters, rows: list[Row | None]) -> Row:
    """The means over folds and seeds; a cell that diverged in one of them has none."""
    finished = [row for row in rows if row is not None]
    row: Row = {"hyperparameters": cell, "diverged": len(finished) < len(rows)}
    for name in ("error", "nll"):
        scores = [found[name] for found in finished]
        lost = row["diverged"] or None in scores
        row[name] = None if lost else statistics.fmean(scores)
    return row
