"""A fair tuning of the baselines: every cell of a small fixed grid, judged on images held out of the training set.

The best cell has the fewest errors there, and among equals the best likelihood; the other way round where few
images are held out, because then many cells have nearly the same number of errors. Of very few images several
fifths are held out in turn (cross-validation), and a cell is judged by the folds' means. The test set is not used.

At the brink of divergence a rate may be the best in one run and ruin the next. So the best cells, and the variants
of the very best, are then judged by three folds at least.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from torchtagi.experiments.baselines.methods import METHODS, Hyperparameters, Method, Value
from torchtagi.experiments.compare.runner import Runner
from torchtagi.experiments.compare.study import Study, method_of
from torchtagi.experiments.runs.folder import Row

FINALISTS, FINAL_FOLDS = 3, 3


def tune(runner: Runner, entry: str) -> Row:
    """What was tried and what was `chosen`, None if all diverged; trains what is missing."""
    study, method = runner.study, METHODS[method_of(entry)]
    if method.tuned_as:
        entry, method = entry.replace(method.name, method.tuned_as, 1), METHODS[method.tuned_as]
    cells = judged(runner, entry, method, method.grid, study.folds())
    first = ranked(cells, study)[:FINALISTS]
    finals: list[Row] = []
    if first:
        best = [cell["hyperparameters"] for cell in first]
        varied = [{**best[0], name: value} for name, values in method.variants.items() for value in values]
        finals = judged(runner, entry, method, [*best, *varied], study.folds(FINAL_FOLDS))
    chosen = next((cell["hyperparameters"] for cell in ranked(finals, study) or first), None)
    tried = [cell["hyperparameters"] for cell in (*cells, *finals)]
    return {
        "chosen": chosen,
        "judged_by": study.judged_by[0],
        "at_edge": at_edge(chosen or {}, tried, method.defaults),
        "cells": cells,
        "finals": finals,
    }


def judged(runner: Runner, entry: str, method: Method, cells: Sequence[Hyperparameters], folds: int) -> list[Row]:
    """The means over the folds; a cell that diverged in one of them has none."""
    names = [f"tuning/{entry}/{method.describe(cell) or 'defaults'}/fold" for cell in cells]
    found = runner.complete(
        {
            f"{name}{fold}": runner.study.tuning_config(entry, runner.threads, cell, fold)
            for name, cell in zip(names, cells, strict=True)
            for fold in range(folds)
        }
    )
    rows = []
    for name, cell in zip(names, cells, strict=True):
        runs = [found[f"{name}{fold}"] for fold in range(folds)]
        finite = all(run.get("error") is not None and run.get("nll") is not None for run in runs)
        means = {score: statistics.fmean(run[score] for run in runs) for score in ("error", "nll") if finite}
        rows.append({"hyperparameters": cell, "error": None, "nll": None, **means})
    return rows


def ranked(cells: Iterable[Row], study: Study) -> list[Row]:
    """The best first, without those that diverged."""
    first, second = study.judged_by
    finite = (cell for cell in cells if cell["error"] is not None)
    return sorted(finite, key=lambda cell: (cell[first], cell[second]))


def at_edge(chosen: Hyperparameters, tried: Sequence[Hyperparameters], defaults: Mapping[str, Value]) -> list[str]:
    """Numbers chosen at an end of at least three that were tried: a wider grid might have found better."""
    found = []
    for name, value in {**defaults, **chosen}.items() if chosen else ():
        values = {{**defaults, **cell}[name] for cell in tried}
        if not isinstance(value, str) and len(values) > 2 and value in (min(values), max(values)):
            found.append(name)
    return found
