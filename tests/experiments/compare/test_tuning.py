"""Rivals are tuned on held-out images, and what was tried is written down."""

import dataclasses
import statistics

import pytest
from small_studies import study

from torchtagi.experiments.baselines.methods import METHODS
from torchtagi.experiments.compare import compare
from torchtagi.experiments.compare.study import Entry
from torchtagi.experiments.compare.tuning import Tuning
from torchtagi.experiments.runs.folder import Run
from torchtagi.experiments.runs.resumable import EpochEnd


def test_tuning_tries_the_grid_on_held_out_images_and_is_written_down(tmp_path, monkeypatch):
    grid = ({"learning_rate": 1e-3}, {"learning_rate": 1e-2}, {"learning_rate": 1e9, "schedule": "cosine"})
    monkeypatch.setitem(METHODS, "adam", dataclasses.replace(METHODS["adam"], grid=grid))
    tried = []

    def note(name, event):
        if isinstance(event, EpochEnd):
            tried.append(name)
        return False

    found = compare(study(epochs=1), ["adam", "ensemble"], [0], tmp_path / "c", watch=note)
    entry = found.entries["adam"]
    assert entry["chosen_by"] == "tuning"
    cells = entry["tuning"]["cells"]
    assert [cell["hyperparameters"] for cell in cells] == list(grid)
    runs = [Run.open(p.parent) for p in (tmp_path / "c" / "tuning" / "adam").glob("*/config.json")]
    assert all((run.config["held_out"], run.config["samples"]) == (8, 40) for run in runs)
    for cell in cells:
        folds = [
            r
            for r in runs
            if r.config["hyperparameters"]["learning_rate"] == cell["hyperparameters"]["learning_rate"]
        ]
        assert sorted(run.config["fold"] for run in folds) == [0, 1, 2, 3, 4]
        rows = [row for run in folds for row in run.metrics()[-1:]]
        assert cell["diverged"] == (len(rows) < 5)
        for name in ("error", "nll"):
            assert cell[name] == (
                None if cell["diverged"] else pytest.approx(statistics.fmean(r[name] for r in rows))
            )
    assert cells[2]["diverged"]
    assert entry["hyperparameters"] == min(cells[:2], key=lambda cell: cell["nll"])["hyperparameters"]
    assert entry["tuning"]["judged_by"] == "nll", "eight images say little by their errors"
    assert found.entries["ensemble"]["hyperparameters"] == entry["hyperparameters"], "tuned as Adam"
    assert sum(name.startswith("adam/") for name in tried) <= 16, "the ensemble's tuning repeats nothing"
    assert Run.open(tmp_path / "c/adam/seed0").config["held_out"] == 0


def test_a_second_stage_tries_one_more_hyperparameter_at_the_best_cell(tmp_path, monkeypatch):
    grid = ({"learning_rate": 1e-3}, {"learning_rate": 1e9})
    monkeypatch.setitem(
        METHODS, "sgd", dataclasses.replace(METHODS["sgd"], grid=grid, refined={"momentum": (0.5,)})
    )
    tuning = compare(study(epochs=1), ["sgd"], [0], tmp_path / "c").entries["sgd"]["tuning"]
    assert [cell["hyperparameters"] for cell in tuning["cells"]] == [
        *grid,
        {"learning_rate": 1e-3, "momentum": 0.5},
    ]


def test_one_run_does_not_decide_between_rates(tmp_path, monkeypatch):
    """Where a cell has one run, the best and its next rivals are trained with two more seeds."""
    monkeypatch.setattr("torchtagi.experiments.compare.study.JUDGES", 1)
    grid = tuple({"learning_rate": rate} for rate in (1e-4, 1e-3, 1e-2, 1e9))
    monkeypatch.setitem(METHODS, "adam", dataclasses.replace(METHODS["adam"], grid=grid))
    entry = compare(study(epochs=2), ["adam"], [0], tmp_path / "c").entries["adam"]
    cells, finals = entry["tuning"]["cells"], entry["tuning"]["finals"]
    ranked = sorted((cell for cell in cells if not cell["diverged"]), key=lambda cell: cell["nll"])
    rates = [cell["hyperparameters"]["learning_rate"] for cell in ranked]
    assert [final["hyperparameters"]["learning_rate"] for final in finals] == [
        rates[0],
        next(rate for rate in rates if rate < rates[0]),
    ]
    runs = [Run.open(p.parent) for p in (tmp_path / "c" / "tuning" / "adam").glob("*/config.json")]
    for final in finals:
        own = [
            run
            for run in runs
            if run.config["hyperparameters"] == {**METHODS["adam"].defaults, **final["hyperparameters"]}
        ]
        assert sorted(run.config["seed"] for run in own) == [0, 1, 2]
        assert final["nll"] == pytest.approx(statistics.fmean(run.metrics()[-1]["nll"] for run in own))
    assert len(runs) == len(grid) + 2 * 2
    assert entry["hyperparameters"] == min(finals, key=lambda final: final["nll"])["hyperparameters"]


def test_finalists():
    def cell(rate, error, **others):
        return {"hyperparameters": {"learning_rate": rate, **others}, "error": error, "nll": error and error / 10}

    cells = [
        cell(0.001, 4.0),
        cell(0.003, 3.0),
        cell(0.01, 2.0),
        cell(0.01, 1.0, schedule="cosine"),
        cell(0.1, None),
    ]
    found = Tuning(cells, defaults={"learning_rate": 0.001, "schedule": "constant"})
    assert found.finalists() == [cells[index]["hyperparameters"] for index in (3, 1, 2)]
    assert dataclasses.replace(found, cells=cells[:3]).finalists() == [
        {"learning_rate": 0.01},
        {"learning_rate": 0.003},
    ]
    same = [cell(0.01, 1.0), cell(0.001, 2.0, schedule="cosine")]
    assert dataclasses.replace(found, cells=same).finalists() == [entry["hyperparameters"] for entry in same]
    ruined = [cell(0.01, None, schedule="cosine"), cell(0.003, 5.0)]
    assert dataclasses.replace(found, finals=ruined).chosen == {"learning_rate": 0.003}
    assert dataclasses.replace(found, finals=ruined[:1]).chosen == cells[3]["hyperparameters"]
    assert Tuning(cells[:1]).finalists() == []
    assert Tuning(cells[4:]).finalists() == []


def test_an_entry_that_diverges_everywhere_does_not_stop_the_others(tmp_path, monkeypatch):
    grid = ({"learning_rate": 1e9}, {"learning_rate": 1e12})
    monkeypatch.setitem(METHODS, "sgd", dataclasses.replace(METHODS["sgd"], grid=grid))
    folder, said = tmp_path / "c", []
    for _ in range(2):
        found = compare(study(epochs=1), ["sgd", "tagi"], [0], folder, say=said.append)
        assert [(row["entry"], row["seeds"]) for row in found.rows] == [("tagi", 1), ("sgd", 0)]
        assert found.rows[1]["hyperparameters"] is None
    assert any("sgd is left out: it diverged in every cell of its tuning" in line for line in said)
    assert "- sgd: batch 16, no changes (diverged in every cell of its tuning)" in (folder / "table.md").read_text()
    again = compare(study(epochs=1), ["sgd"], [0], folder, given={"sgd": {"learning_rate": 0.01}})
    assert {row["entry"]: row["seeds"] for row in again.rows} == {"sgd": 1, "tagi": 1}


def test_a_choice_at_the_edge_is_told():
    def tuning(best):
        cells = [
            {"hyperparameters": {"a": a, "b": b, "c": "x"}, "error": 0.0 if (a, b) in best else 1.0, "nll": 0.0}
            for a in (1, 2, 3)
            for b in (1, 2)
        ]
        return Tuning(cells)

    assert tuning([(3, 1)]).at_edge == ["a"], "of b only two were tried"
    assert tuning([(2, 1)]).at_edge == []
    tied = tuning([(1, 1), (2, 2)])
    assert (tied.chosen, tied.at_edge) == ({"a": 2, "b": 2, "c": "x"}, []), "as good inside the grid"
    assert tuning([(1, 1), (3, 2)]).at_edge == ["a"]
    stages = [*({"rate": rate} for rate in (1, 2, 3)), *({"rate": 2, "damping": d} for d in (3, 30))]
    cells = [{"hyperparameters": cell, "error": 1.0, "nll": 1.0 - index} for index, cell in enumerate(stages)]
    assert Tuning(cells, defaults={"rate": 2, "damping": 10}).at_edge == ["damping"]
    assert Tuning(cells[:3], defaults={"rate": 2, "damping": 10}).at_edge == ["rate"]


def test_best_cell():
    cells = [
        {"hyperparameters": {"a": 1}, "error": 3.0, "nll": 0.1},
        {"hyperparameters": {"a": 2}, "error": 2.0, "nll": 0.5},
        {"hyperparameters": {"a": 3}, "error": 2.0, "nll": 0.4},
        {"hyperparameters": {"a": 4}, "error": None, "nll": None},
    ]
    assert Tuning(cells).chosen == {"a": 3}
    assert Tuning(cells, judged_by="nll").chosen == {"a": 1}
    lost = Tuning(cells[3:])
    assert (lost.chosen, lost.at_edge, lost.near_chance) == (None, [], False)
    assert not Tuning(cells, chance=90.0).near_chance
    assert Tuning([{"hyperparameters": {}, "error": 85.0, "nll": 2.3}], chance=90.0).near_chance


@pytest.mark.parametrize(
    ("samples", "held_out", "folds", "judge"),
    [
        (100, 20, 5, "nll"),
        (500, 100, 4, "nll"),
        (1000, 200, 2, "nll"),
        (2000, 400, 1, "nll"),
        (10_000, 2000, 1, "error"),
        (3, 1, 3, "nll"),
    ],
)
def test_how_few_images_are_tuned_on(samples, held_out, folds, judge):
    asked = study(samples=samples, tune_samples=20_000)
    assert (asked.held_out, asked.folds, asked.judged_by) == (held_out, folds, judge)
    config = asked.tuning_config(Entry("vogn"), {}, 1, fold=folds - 1)
    assert (config.samples, config.held_out, config.draw_samples) == (samples, held_out, True)
    assert (config.count("curve_draws"), config.test_samples) == (10, None)


def test_no_grid_is_larger_than_twelve_cells():
    for method in METHODS.values():
        assert 1 < len(method.grid) + sum(map(len, method.refined.values())) <= 12
        for cell in method.grid:
            method.hyperparameters(cell)
