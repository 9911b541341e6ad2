"""A sweep: every value of every axis once, and the table is the runs'."""

import json
import sys

import pytest

from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.compare import Sweep, running, sweep
from torchtagi.experiments.report.comparison_plots import sweep_figure
from torchtagi.experiments.runs.folder import Run, RunError


@pytest.fixture(autouse=True)
def few_values(tmp_path, monkeypatch):
    module = sys.modules["torchtagi.experiments.compare.sweep"]  # its name in the package is the function's
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "FACTORS", (1.0, 1e30))
    monkeypatch.setattr(module, "NOISES", {"learned": {}, "0.3": {"learn_noise": False, "noise_std": 0.3}})
    monkeypatch.setattr(module, "BATCHES", (4, 16))


ASKED = Sweep("mnist", "cnn", 1, 32, 30)


def test_rows_are_the_runs_and_nothing_is_repeated(tmp_path, monkeypatch):
    rows = sweep(ASKED, ["tagi", "sgd"], [0], tmp_path / "s")
    assert [(row["axis"], row["value"]) for row in rows] == [
        ("tagi-noise", "learned"),
        ("tagi-noise", "0.3"),
        ("tagi-batch", "4"),
        ("tagi-batch", "16"),
        ("sgd-learning-rate", "0.03"),
        ("sgd-learning-rate", "3e+28"),
    ]
    same = {("tagi-batch", "16"): "tagi-noise/learned"}
    assert not (tmp_path / "s/tagi-batch/16").exists(), "the default batch and the default noise are one run"
    for row in rows[:-1]:
        home = same.get((row["axis"], row["value"]), f"{row['axis']}/{row['value']}")
        run = Run.open(tmp_path / "s" / home / "seed0")
        assert row["error"] == run.metrics()[-1]["error"]
        assert row["diverged"] == 0
    assert (rows[-1]["error"], rows[-1]["diverged"]) == (None, 1)
    configs = {
        p.parent.parent.name: Run.open(p.parent).config for p in (tmp_path / "s").glob("*/*/seed0/config.json")
    }
    assert (configs["0.3"]["noise_std"], configs["0.3"]["learn_noise"]) == (0.3, False)
    assert configs["4"]["batch_size"] == 4
    assert configs["0.03"]["hyperparameters"]["learning_rate"] == 0.03

    def refuse(*arguments):
        raise AssertionError("trained again")

    monkeypatch.setattr(running, "start_or_resume", refuse)
    assert sweep(ASKED, ["sgd"], [0], tmp_path / "s") == rows, "the table holds all the folder has"
    with pytest.raises(RunError, match="sweeps with"):
        sweep(Sweep("mnist", "cnn", 2, 32, 30), ["sgd"], [0], tmp_path / "s")


def test_networks_drawn_are_as_many_as_for_a_prediction():
    config = next(iter(ASKED.axes(["vogn"])["vogn-learning-rate"].values()))(0, 1)
    assert config.count("curve_draws") == config.count("draws") == 30


def test_every_point_of_every_panel_is_in_the_picture():
    """The panels share an axis: the first one's errors must not set its limits."""
    points = {"adam-learning-rate": [("0.1", 50.0), ("1", None)], "tagi-noise": [("learned", 3.5), ("0.1", 4.0)]}
    points["tagi-batch"] = [("1", 2.0)]
    rows = [{"axis": a, "value": value, "error": error} for a, found in points.items() for value, error in found]
    panels = sweep_figure(rows).axes
    assert len(panels) == 3
    for panel in panels:
        low, high = panel.get_ylim()
        assert 0 < low < 2.0
        assert 100.0 < high < 150.0


def test_the_sizes_of_batches_are_what_is_learned_at_once(monkeypatch):
    """In chunks of 16, all batches larger than that would be one and the same run."""
    monkeypatch.setattr(sys.modules["torchtagi.experiments.compare.sweep"], "BATCHES", (4, 16, 64))
    configs = [make(0, 1) for make in ASKED.axes(["tagi"])["tagi-batch"].values()]
    assert [(config.batch_size, config.chunk) for config in configs] == [(4, 16), (16, 16), (64, 64)]


def test_the_command(tmp_path, capsys):
    size = ("--samples", "32", "--test-samples", "30", "--threads", "1", "--out", "s")
    assert tagi(["sweep", "mnist", "--methods", "tagi", *size]) == 0
    assert "tagi-noise" in capsys.readouterr().out
    assert (tmp_path / "s" / "plots" / "sweep.png").stat().st_size > 5000
    assert tagi(["sweep", "mnist", *size, "--show", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4
    assert tagi(["sweep", "mnist", "--methods", "sgdd"]) == 1
    assert "there is no method 'sgdd'" in capsys.readouterr().err
