"""A sweep: every value of every axis once, and the table is the runs'."""

import json
import sys

import pytest
from small_studies import study, swept

from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.compare import runner
from torchtagi.experiments.report.comparison_plots import sweep_figure
from torchtagi.experiments.runs.folder import Run, RunError


@pytest.fixture(autouse=True)
def few_values(monkeypatch):
    module = sys.modules["torchtagi.experiments.compare.sweep"]  # its name in the package is the function's
    monkeypatch.setattr(module, "FACTORS", (1.0, 1e30))
    monkeypatch.setattr(module, "NOISES", {"learned": {}, "0.3": {"noise": 0.3}})


ASKED = study(epochs=1, samples=32, test_samples=30)


def test_rows_are_the_runs_and_nothing_is_repeated(tmp_path, monkeypatch):
    rows = swept(ASKED, ["tagi", "sgd"], tmp_path / "s")
    assert [(row["axis"], row["value"]) for row in rows] == [
        ("tagi-noise", "learned"),
        ("tagi-noise", "0.3"),
        ("sgd-learning-rate", "0.03"),
        ("sgd-learning-rate", "3e+28"),
    ]
    for row in rows[:-1]:
        run = Run.open(tmp_path / "s" / row["axis"] / row["value"] / "seed0")
        assert (row["error"], row["diverged"]) == (run.metrics()[-1]["error"], 0)
    assert (rows[-1]["error"], rows[-1]["diverged"]) == (None, 1)
    configs = {
        p.parent.parent.name: Run.open(p.parent).config for p in (tmp_path / "s").glob("*/*/seed0/config.json")
    }
    assert (configs["0.3"]["noise"], configs["learned"]["noise"]) == (0.3, None)
    assert configs["0.03"]["hyperparameters"]["learning_rate"] == 0.03

    def refuse(*arguments):
        raise AssertionError("trained again")

    monkeypatch.setattr(runner, "start_or_resume", refuse)
    assert swept(ASKED, ["sgd"], tmp_path / "s") == rows, "the table holds all the folder has"
    with pytest.raises(RunError, match="has epochs 1, not 2"):
        swept(study(samples=32, test_samples=30), ["sgd"], tmp_path / "s")


def test_every_point_of_every_panel_is_in_the_picture():
    """The panels share an axis: the first one's errors must not set its limits."""
    points = {"adam-learning-rate": [("0.1", 50.0), ("1", None)], "tagi-noise": [("learned", 3.5), ("0.1", 2.0)]}
    points["tagi-batch"] = [("1", 1.0)]  # of an older sweep: in its table only
    rows = [{"axis": a, "value": value, "error": error} for a, found in points.items() for value, error in found]
    panels = sweep_figure(rows).axes
    assert [panel.get_xlabel() for panel in panels] == ["learning rate", "σ_V"]
    for panel in panels:
        low, high = panel.get_ylim()
        assert 0 < low < 2.0
        assert 100.0 < high < 200.0
    assert list(panels[0].lines[1].get_ydata()) == [50.0, 100.0], "what diverged is at 100 %"
    assert set(panels[1].lines[0].get_ydata()) == {3.5}, "the learned noise is a line across"
    alone = [{"axis": "tagi-noise", "value": "learned", "error": 3.5}, {**rows[0]}]
    assert len(sweep_figure(alone).axes) == 1, "as long as no other noise is finished"


def test_the_command(tmp_path, capsys):
    size = ("--samples", "32", "--test-samples", "30", "--threads", "1", "--out", "s")
    assert tagi(["sweep", "mnist", "--methods", "sgd", *size]) == 0
    assert "sgd-learning-rate" in capsys.readouterr().out
    assert (tmp_path / "s" / "plots" / "sweep.png").stat().st_size > 5000
    assert tagi(["sweep", "mnist", *size, "--show", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2
    assert tagi(["record", "s"]) == 0
    assert json.loads((tmp_path / "results/s/sweep.json").read_text())["rows"] == rows
    assert (tmp_path / "results/s/plots/sweep.png").is_file()


@pytest.mark.parametrize(
    "content",
    [
        {"study": {}},
        {"study": {}, "runs": {"a/b": {}}},
        {"study": {}, "runs": {"tagi-noise/[red]/seed0": {"error": 1.0, "nll": 0.1}}},
        {"study": {}, "runs": {"tagi-noise/0.1/seed0": {"error": "few", "nll": 0.1}}},
        {"study": {}, "runs": {"tagi-noise/0.1/seed0": "[/red]"}},
        {"study": {}, "runs": {}, "rows": [{"axis": "tagi-noise", "value": "1", "error": []}]},
    ],
)
def test_a_sweep_changed_by_hand_is_told_in_one_line(content, tmp_path, capsys):
    (tmp_path / "s").mkdir()
    (tmp_path / "s/sweep.json").write_text(json.dumps(content))
    assert tagi(["sweep", "mnist", "--out", "s", "--show"]) == 1
    captured = capsys.readouterr()
    assert "s/sweep.json" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "sgdd"], "there is no method 'sgdd'"),
        (["--seeds", "0"], "Invalid value for '--seeds': must be at least 1, got 0"),
        (["--out", "nowhere", "--show"], "nowhere has no sweep.json"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message, capsys):
    assert tagi(["sweep", "mnist", *arguments]) != 0
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
