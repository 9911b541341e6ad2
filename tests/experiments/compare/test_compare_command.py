"""`tagi compare`, and how its outcome is recorded."""

import json
import shutil
from pathlib import Path

import pytest

from torchtagi.experiments import data
from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.compare import running
from torchtagi.experiments.runs.folder import Run

started = running.start_or_resume
SMALL = ("--epochs", "1", "--samples", "32", "--test-samples", "30", "--threads", "1", "--seeds", "1")


def test_the_command(tmp_path, capsys):
    assert tagi(["compare", "mnist", "--methods", "tagi,adam", "--no-tune", "--out", "c", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "adam/seed0: epoch 1" in out
    assert "comparison: c/comparison.json" in out
    assert {p.name for p in (tmp_path / "c" / "plots").iterdir()} == {
        "error.png",
        "reliability.png",
        "risk-coverage.png",
    }
    assert tagi(["compare", "mnist", "--out", "c", "--show", "--json"]) == 0
    assert [row["entry"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["tagi", "adam"]
    assert tagi(["compare", "mnist", "--out", "c", "--show", "--json", "--target", "99"]) == 0
    assert json.loads(capsys.readouterr().out)["study"]["target_error"] == 99
    assert tagi(["results", "c", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["method"], row["setting"].partition("-")[0]) for row in rows] == [
        ("adam", "adam"),
        ("tagi", "default"),
    ]
    assert tagi(["evaluate", "c/adam/seed0"]) == 0
    assert tagi(["compare", "mnist", "--methods", "tagi", "--out", "c", *SMALL, "--samples", "33"]) == 1
    assert "samples 32, not 33" in capsys.readouterr().err


def test_time_is_up(capsys):
    arguments = ["compare", "mnist", "--methods", "tagi", "--no-tune", "--out", "c", *SMALL]
    assert tagi([*arguments, "--minutes", "0"]) == 0
    assert "the same command goes on" in capsys.readouterr().out
    assert tagi(arguments) == 0
    assert len(Run.open("c/tagi/seed0").metrics()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist", "--methods", "tagi,adamm"], "there is no method 'adamm'; there are tagi, sgd, adam"),
        (["mnist", "--methods", "adam,adam"], "adam is named twice"),
        (["mnist", "--methods", ","], "at least one method"),
        (["nist"], "'nist'"),
        (["mnist", "--seeds", "0"], "got 0"),
        (["mnist", "--epochs", "0"], "got 0"),
        (["mnist", "--epochs", "2", "--stream"], "--epochs must be 1, got 2"),
        (["mnist", "--set", "adam=3"], "METHOD.NAME=VALUE, got 'adam=3'"),
        (["mnist", "--set", "adam.rate=3"], "no hyperparameter 'rate'"),
        (["mnist", "--set", "sgd.learning_rate=3"], "sgd, which is not compared"),
        (["mnist", "--set", "tagi.noise=3"], "tagi has no hyperparameters"),
        (["mnist", "--arch", "vgg"], "'vgg'"),
        (["mnist", "--out", "full"], "full is not empty and is not a comparison"),
        (["mnist", "--out", "nowhere", "--show"], "nowhere is not a comparison"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    assert tagi(["compare", *arguments]) != 0
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_recorded_comparison_goes_on_elsewhere(tmp_path, capsys, monkeypatch):
    options = ["--no-tune", *SMALL]
    assert tagi(["compare", "mnist", "--methods", "tagi,adam", "--out", "c", *options]) == 0
    (tmp_path / "c/adam/seed7").mkdir()  # under way: without its checkpoint it would be of no use
    shutil.copy(tmp_path / "c/adam/seed0/config.json", tmp_path / "c/adam/seed7")
    assert tagi(["record", "c"]) == 0
    kept = {str(p.relative_to(tmp_path / "results")) for p in (tmp_path / "results").glob("**/*") if p.is_file()}
    assert kept == {
        *(f"c/{name}" for name in ("study.json", "comparison.json", "table.md")),
        *(f"c/plots/{name}.png" for name in ("error", "reliability", "risk-coverage")),
        *(
            f"c/{method}/seed0/{name}"
            for method in ("tagi", "adam")
            for name in ("config.json", "metrics.jsonl", "summary.json")
        ),
    }
    capsys.readouterr()
    assert tagi(["results", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [], "its runs are in its own table"
    before = rows_of(tmp_path / "c")
    shutil.rmtree(tmp_path / "c")
    shutil.copytree(tmp_path / "results/c", tmp_path / "again")
    real, foreign = data.load, data.load("mnist", "test").subset(slice(20))
    monkeypatch.setattr(  # a foreign set has come, but the recorded networks are gone
        data, "load", lambda name, *a, **o: foreign if name == "fashion-mnist" else real(name, *a, **o)
    )
    trained = []
    monkeypatch.setattr(
        running, "start_or_resume", lambda place, *rest: trained.append(place) or started(place, *rest)
    )
    assert tagi(["compare", "mnist", "--methods", "tagi,adam,sgd", "--out", "again", *options]) == 0
    assert trained == [Path("again/sgd/seed0")]
    after = rows_of(tmp_path / "again")
    assert list(after) == ["tagi", "sgd", "adam"]
    for name, row in before.items():
        assert after[name] == {**row, "relative_cost": after[name]["relative_cost"]}, "only costs are timed anew"


def rows_of(folder):
    rows = json.loads((folder / "comparison.json").read_text())["rows"]
    return {row["entry"]: row for row in rows}
