"""A comparison: its numbers are the runs', it goes on where it stopped, and finished runs are not repeated."""

import itertools
import json
import statistics

import pytest
import torch

from torchtagi.baselines.methods import METHODS
from torchtagi.cli.app import run as tagi
from torchtagi.comparison import Stopped, Study, compare, running
from torchtagi.comparison.compare import collect
from torchtagi.comparison.plots import pooled_bins
from torchtagi.comparison.study import Entry
from torchtagi.comparison.table import Member, entry_row, seconds_to
from torchtagi.comparison.tuning import Tuning, best
from torchtagi.resumable import EpochEnd
from torchtagi.runs import Run, RunError


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    monkeypatch.delenv("TAGI_DATA", raising=False)
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "cache"))


def study(**changes):
    values = {
        "task": "mnist",
        "network": "cnn",
        "epochs": 2,
        "samples": 48,
        "test_samples": 40,
        "stream": False,
        "augment": True,
        "target_error": 50.0,
        "tune_samples": 40,
        "tune_epochs": 1,
    }
    return Study(**{**values, **changes})


def stop_after(count):
    """A watcher that asks for a stop at the event of that number, and one that counts epochs."""
    numbers = itertools.count(1)
    return lambda name, event: next(numbers) == count


def bytes_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("**/checkpoint.safetensors"))}


def test_the_table_is_the_runs(tmp_path):
    found = compare(study(), ["tagi", "adam"], [0, 1], tmp_path / "c", tuned=False)
    assert [row["entry"] for row in found.rows] == ["tagi", "adam"]
    for row in found.rows:
        runs = [Run.open(tmp_path / "c" / row["entry"] / f"seed{seed}") for seed in (0, 1)]
        last = [run.metrics()[-1] for run in runs]
        assert row["seeds"] == 2
        for name in ("error", "nll", "ece", "brier", "auroc_ovr"):
            assert row[name] == pytest.approx(statistics.fmean(r[name] for r in last), rel=1e-6)
        assert row["error_std"] == pytest.approx(statistics.stdev(r["error"] for r in last), abs=1e-9)
        seconds = [r["seconds"] for run in runs for r in run.metrics()]
        assert row["seconds_per_epoch"] == pytest.approx(statistics.fmean(seconds))
        assert row["ood_auroc"] is None, "the foreign set is not here"
    assert found.rows[1]["relative_cost"] == 1.0
    assert found.rows[0]["relative_cost"] > 0
    kept = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert kept["rows"] == json.loads(json.dumps(found.rows))
    assert (
        kept["runs"]["tagi"][1]["epochs"][1]["error"] == Run.open(tmp_path / "c/tagi/seed1").metrics()[1]["error"]
    )
    table = (tmp_path / "c" / "table.md").read_text()
    assert f"{found.rows[0]['error']:.2f} ± {found.rows[0]['error_std']:.2f}" in table


def test_stopped_and_continued_is_the_whole_and_nothing_is_repeated(tmp_path, monkeypatch):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    hyper = {"mc-dropout": {"draws": 2, "curve_draws": 1}}
    compare(study(), ["tagi", "mc-dropout"], [0], whole, given=hyper)
    for stop in (2, 4):
        with pytest.raises(Stopped):
            compare(study(), ["tagi", "mc-dropout"], [0], pieces, given=hyper, watch=stop_after(stop))
    torch.manual_seed(7)
    compare(study(), ["tagi", "mc-dropout"], [0], pieces, given=hyper)
    assert bytes_of(pieces) == bytes_of(whole)
    assert len(bytes_of(whole)) == 2

    def refuse(*arguments):
        raise AssertionError("trained again")

    monkeypatch.setattr(running, "start_or_resume", refuse)
    again = compare(study(), ["mc-dropout"], [0], pieces)
    assert [row["entry"] for row in again.rows] == ["tagi", "mc-dropout"], "earlier pieces stay in the table"
    assert collect(pieces).rows == again.rows


def test_tuning_tries_the_grid_on_held_out_images_and_is_written_down(tmp_path, monkeypatch):
    grid = ({"learning_rate": 1e-3}, {"learning_rate": 1e-2}, {"learning_rate": 1e9, "schedule": "cosine"})
    monkeypatch.setitem(METHODS, "adam", METHODS["adam"].__class__("adam", "a", METHODS["adam"].defaults, grid))
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
    assert len(runs) == 3
    assert all((run.config["held_out"], run.config["samples"]) == (8, 40) for run in runs)
    errors = {run.config["hyperparameters"]["learning_rate"]: run.metrics()[-1:] for run in runs}
    for cell in cells:
        rows = errors[cell["hyperparameters"]["learning_rate"]]
        assert cell["diverged"] == (not rows)
        assert cell["error"] == (rows[0]["error"] if rows else None)
    assert entry["hyperparameters"] == best(cells, "adam")
    assert found.entries["ensemble"]["hyperparameters"] == entry["hyperparameters"], "tuned as Adam"
    assert sum(name.startswith("adam/") for name in tried) <= 4, "the ensemble's tuning repeats nothing"
    assert Run.open(tmp_path / "c/adam/seed0").config["held_out"] == 0


def test_a_choice_at_the_edge_is_told():
    cells = [{"hyperparameters": {"a": a, "b": b, "c": "x"}} for a in (1, 2, 3) for b in (1, 2)]
    assert Tuning({"a": 3, "b": 1, "c": "x"}, cells).at_edge == ["a"]
    assert Tuning({"a": 2, "b": 1, "c": "x"}, cells).at_edge == []


def test_best_cell():
    cells = [
        {"hyperparameters": {"a": 1}, "error": 3.0, "nll": 0.1},
        {"hyperparameters": {"a": 2}, "error": 2.0, "nll": 0.5},
        {"hyperparameters": {"a": 3}, "error": 2.0, "nll": 0.4},
        {"hyperparameters": {"a": 4}, "error": None, "nll": None},
    ]
    assert best(cells, "x") == {"a": 3}
    with pytest.raises(RunError, match="x diverged in every cell"):
        best(cells[3:], "x")


def test_a_diverged_run_is_told_and_not_repeated(tmp_path):
    given = {"sgd": {"learning_rate": 1e9}}
    for _ in range(2):
        found = compare(study(), ["sgd"], [0], tmp_path / "c", given=given)
        assert (found.rows[0]["diverged"], found.rows[0]["seeds"], found.rows[0]["error"]) == (1, 0, None)


def test_a_stream_has_an_entry_for_each_batch_size():
    entries = study(stream=True, epochs=1).entries(["tagi", "adam"])
    assert [e.name for e in entries] == ["tagi-batch1", "tagi-batch16", "adam-batch1", "adam-batch16"]
    config = study(stream=True, epochs=1).config(Entry("adam", 1), 2, {"learning_rate": 0.1}, 1)
    assert (config.batch_size, config.epochs, config.seed, config.number("learning_rate")) == (1, 1, 2, 0.1)
    assert study(stream=True, epochs=1).config(Entry("tagi", 1), 0, {}, 1).batch_size == 1
    with pytest.raises(ValueError, match="seen once"):
        study(stream=True)


def test_seconds_to_an_error():
    rows = [{"seconds": 2.0, "error": 5.0}, {"seconds": 3.0, "error": 2.0}, {"seconds": 3.0, "error": 1.0}]
    assert seconds_to(rows, 2.0) == 5.0
    assert seconds_to(rows, 0.5) is None


def test_a_value_no_seed_has_stays_empty():
    row = entry_row("x", [Member(0, [], None, diverged=True)], 2.0, None)
    assert row["error"] is None
    assert row["seeds"] == 0
    assert row["diverged"] == 1


def test_bins_are_pooled_by_their_counts():
    one = {"count": [0, 10], "confidence": [None, 0.9], "accuracy": [None, 0.8]}
    two = {"count": [4, 30], "confidence": [0.2, 0.7], "accuracy": [0.0, 0.6]}
    assert pooled_bins([one, two]) == [(pytest.approx(0.75), pytest.approx(0.65))]


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


def test_a_comparison_is_recorded_without_its_tagi_runs(tmp_path, capsys):
    assert tagi(["compare", "mnist", "--methods", "tagi,adam", "--no-tune", "--out", "c", *SMALL]) == 0
    assert tagi(["record", "c"]) == 0
    kept = {str(p.relative_to(tmp_path / "results")) for p in (tmp_path / "results").glob("**/*") if p.is_file()}
    assert kept == {
        *(
            "c/study.json",
            "c/comparison.json",
            "c/table.md",
            "c/adam/seed0/config.json",
            "c/adam/seed0/metrics.jsonl",
        ),
        *(f"c/plots/{name}.png" for name in ("error", "reliability", "risk-coverage")),
    }
    capsys.readouterr()
    assert tagi(["results", "--json"]) == 0
    assert {row["method"] for row in json.loads(capsys.readouterr().out)} == {"adam"}
