"""Baselines are tuned on held-out images, and what was tried is written down."""

import dataclasses
import statistics

import pytest
from small_studies import compared, study

from torchtagi.experiments.baselines.methods import METHODS
from torchtagi.experiments.compare.tuning import at_edge, ranked
from torchtagi.experiments.runs.folder import Run
from torchtagi.fitting import EpochEnd


@pytest.fixture
def small_grid(monkeypatch):
    def change(method, grid, **changes):
        monkeypatch.setitem(METHODS, method, dataclasses.replace(METHODS[method], grid=grid, **changes))

    return change


def test_tuning_tries_the_grid_on_held_out_images_and_is_written_down(tmp_path, small_grid):
    grid = ({"learning_rate": 1e-3}, {"learning_rate": 1e-2}, {"learning_rate": 1e9, "schedule": "cosine"})
    small_grid("adam", grid)
    tried = []

    def note(name, event):
        if isinstance(event, EpochEnd):
            tried.append(name)
        return False

    found = compared(study(epochs=1), ["adam", "ensemble"], tmp_path / "c", watch=note)
    entry = found["entries"]["adam"]
    assert entry["chosen_by"] == "tuning"
    cells = entry["tuning"]["cells"]
    assert [cell["hyperparameters"] for cell in cells] == list(grid)
    for cell, name in zip(cells[:2], ("defaults", "lr0.01"), strict=True):
        runs = [Run.open(tmp_path / "c/tuning/adam" / name / f"fold{fold}") for fold in range(5)]
        assert all((run.config["samples"], run.config["test_samples"]) == (40, None) for run in runs)
        assert [run.config["fold"] for run in runs] == [0, 1, 2, 3, 4]
        for score in ("error", "nll"):
            assert cell[score] == pytest.approx(statistics.fmean(run.metrics()[-1][score] for run in runs))
    assert (cells[2]["error"], cells[2]["nll"]) == (None, None), "it diverged"
    assert entry["hyperparameters"] == min(cells[:2], key=lambda cell: cell["nll"])["hyperparameters"]
    assert entry["tuning"]["judged_by"] == "nll", "eight images say little by their errors"
    assert found["entries"]["ensemble"]["hyperparameters"] == entry["hyperparameters"], "tuned as Adam"
    assert len(tried) == len(set(tried)) == 12, "five folds of two cells, and two runs that are compared"
    assert Run.open(tmp_path / "c/adam/seed0").config["fold"] is None


def test_the_best_cells_and_variants_of_the_best_are_judged_by_three_folds(tmp_path, small_grid, monkeypatch):
    """At the brink of divergence one run does not decide."""
    monkeypatch.setattr("torchtagi.experiments.compare.study.JUDGES", 1)
    grid = tuple({"learning_rate": rate} for rate in (1e-4, 1e-3, 1e-2, 3e-2, 1e9))
    small_grid("sgd", grid, variants={"momentum": (0.5,)})
    entry = compared(study(epochs=1), ["sgd"], tmp_path / "c")["entries"]["sgd"]
    cells, finals = entry["tuning"]["cells"], entry["tuning"]["finals"]
    best = [cell["hyperparameters"] for cell in ranked(cells, study())][:3]
    assert [final["hyperparameters"] for final in finals] == [*best, {**best[0], "momentum": 0.5}]
    folder = tmp_path / "c/tuning/sgd"
    for final in finals:
        cell = METHODS["sgd"].describe(final["hyperparameters"]) or "defaults"
        runs = [folder / cell / f"fold{fold}" for fold in range(3)]
        assert final["nll"] == pytest.approx(statistics.fmean(Run.open(r).metrics()[-1]["nll"] for r in runs))
    assert len(list(folder.glob("*/fold*/config.json"))) == len(grid) + 2 * 3 + 3
    assert entry["hyperparameters"] == min(finals, key=lambda final: final["nll"])["hyperparameters"]


def test_where_every_cell_diverges_the_defaults_are_taken_and_it_is_said(tmp_path, small_grid):
    small_grid("sgd", ({"learning_rate": 1e9}, {"learning_rate": 1e12}))
    found = compared(study(epochs=1), ["sgd"], tmp_path / "c")
    row = found["rows"][0]
    assert (row["hyperparameters"], row["seeds"]) == ({}, 1)
    assert row["chosen_by"] == "defaults, as every cell of the grid diverged"


def test_a_choice_at_the_edge_is_told():
    tried = [{"a": a, "b": b, "c": "x"} for a in (1, 2, 3) for b in (1, 2)]
    assert at_edge({"a": 3, "b": 1, "c": "x"}, tried, {}) == ["a"], "of b only two were tried"
    assert at_edge({"a": 2, "b": 1, "c": "x"}, tried, {}) == []
    stages = [*({"rate": rate} for rate in (1, 2, 3)), *({"rate": 2, "damping": d} for d in (3, 30))]
    defaults = {"rate": 2, "damping": 10}
    assert at_edge({"rate": 2, "damping": 30}, stages, defaults) == ["damping"]
    assert at_edge({"rate": 2}, stages, defaults) == []
    assert at_edge({"rate": 1}, stages, defaults) == ["rate"]


def test_the_best_cell():
    cells = [
        {"hyperparameters": {"a": 1}, "error": 3.0, "nll": 0.1},
        {"hyperparameters": {"a": 2}, "error": 2.0, "nll": 0.5},
        {"hyperparameters": {"a": 3}, "error": 2.0, "nll": 0.4},
        {"hyperparameters": {"a": 4}, "error": None, "nll": None},
    ]
    many, few = study(samples=None, tune_samples=20_000), study()
    assert [cell["hyperparameters"]["a"] for cell in ranked(cells, many)] == [3, 2, 1]
    assert [cell["hyperparameters"]["a"] for cell in ranked(cells, few)] == [1, 3, 2]


@pytest.mark.parametrize(
    ("samples", "held_out", "folds", "finals", "judge"),
    [
        (100, 20, 5, 5, "nll"),
        (500, 100, 4, 4, "nll"),
        (1000, 200, 2, 3, "nll"),
        (2000, 400, 1, 3, "nll"),
        (10_000, 2000, 1, 3, "error"),
        (2, 1, 2, 2, "nll"),
    ],
)
def test_how_few_images_are_tuned_on(samples, held_out, folds, finals, judge, digits):
    asked = study(samples=samples, tune_samples=20_000)
    assert (asked.held_out, asked.folds(), asked.folds(3), asked.judged_by[0]) == (held_out, folds, finals, judge)
    config = asked.tuning_config("vogn", 1, {}, finals - 1)
    assert (config.samples, config.fold, config.seed, config.test_samples) == (samples, finals - 1, 0, None)
    sets = config.split(digits)
    assert (len(sets.train), len(sets.test)) == (samples - held_out, held_out)


def test_no_grid_is_larger_than_twelve_cells():
    for method in METHODS.values():
        assert 1 < len(method.grid) + sum(map(len, method.variants.values())) <= 12
        for cell in method.grid:
            method.hyperparameters(cell)
