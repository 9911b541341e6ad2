"""Run folders whose files were edited by hand: shown as they are, or refused in one line that names the file."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.report import plots
from torchtagi.experiments.report.measures import EPOCH_COLUMNS
from torchtagi.experiments.report.page import epoch_table
from torchtagi.experiments.runs.folder import Run

MARKUP = "[red]x[/nope]"
COMMANDS = {
    "evaluate": ["evaluate", "run"],
    "predict": ["predict", "run", "empty.png"],
    "report": ["report", "run"],
    "results": ["results", "."],
}


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    monkeypatch.delenv("TAGI_DATA", raising=False)
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "cache"))
    monkeypatch.setattr(plots, "as_png", lambda figure: b"")  # drawing is tested elsewhere, and takes seconds
    Image.fromarray(np.zeros((28, 28), np.uint8)).save("empty.png")
    return Run.open(shutil.copytree(trained.folder, tmp_path / "run"))


def edit_config(run, **changes):
    kept = {key: value for key, value in {**run.config, **changes}.items() if value != "removed"}
    (run.folder / "config.json").write_text(json.dumps(kept))


def edit_metrics(run, **changes):
    rows = [{k: v for k, v in {**row, **changes}.items() if v != "removed"} for row in run.metrics()]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def outcome(command, capsys):
    """The exit code and what was printed, after the rules that hold for every command."""
    code = tagi(COMMANDS[command])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    if code:
        assert (code, err.count("\n"), err[:7]) == (1, 1, "Error: ")
    else:
        assert err == ""
    return code, out + err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": ["mnist"]}, "run/config.json does not say its task"),
        ({"network": "removed", "seed": "first"}, "run/config.json does not say its network, seed"),
    ],
)
def test_a_configuration_without_what_every_reader_needs(command, changes, message, run, capsys):
    edit_config(run, **changes)
    code, text = outcome(command, capsys)
    assert code == 1
    assert message in text


@pytest.mark.parametrize(
    ("command", "changes", "message"),
    [
        ("evaluate", {"task": "nist"}, "there is no task 'nist'; there are mnist, cifar10; did you mean mnist?"),
        ("evaluate", {"test_samples": "many"}, "TypeError: slice indices must be integers"),
        ("evaluate", {"precision": MARKUP}, f"'{MARKUP}'"),
        ("predict", {"method": MARKUP}, "does not say its hyperparameters"),
        ("report", {"network": MARKUP}, f"mnist has no network '{MARKUP}'"),
        ("report", {"samples": "few"}, "samples must be int | None, got 'few'"),
        ("report", {"epochs": "removed"}, "does not say its epochs"),
    ],
)
def test_other_bad_values_are_one_line(command, changes, message, run, capsys):
    edit_config(run, **changes)
    code, text = outcome(command, capsys)
    assert code == 1
    assert message in text


def test_markup_is_shown_not_obeyed(run, capsys):
    edit_config(run, setting=MARKUP, versions=MARKUP, parameters=MARKUP)
    code, text = outcome("results", capsys)
    assert code == 0
    assert "[red]" in text
    assert outcome("evaluate", capsys)[0] == 0


@pytest.mark.parametrize("value", ["removed", None])
def test_numbers_that_are_missing_are_dashes(value, run, capsys):
    edit_metrics(run, **dict.fromkeys(("error", "nll", "ece"), value))
    code, text = outcome("results", capsys)
    assert code == 0
    assert "–" in text


def test_a_report_of_what_is_left(run, capsys):
    edit_config(run, setting=MARKUP, versions=MARKUP, parameters=MARKUP)
    names = ("nll", "ece", "alpha", "noise_std", "innovation", "train_error", "train_curve", "samples_per_second")
    edit_metrics(run, **{name: None if number % 2 else "removed" for number, name in enumerate(names)})
    assert outcome("report", capsys)[0] == 0
    page = (run.folder / "report.html").read_text()
    assert f"mnist · cnn · {MARKUP} · seed 0" in page
    assert "– weights" in page
    assert "NLL" not in page


def test_pages_without_a_measured_epoch(run):
    """All rows lack an error: no curve and no line, but no failure either."""
    assert plots.learning_curves([{"epoch": 1}, {"epoch": 2, "error": None}], {}).axes
    assert epoch_table([{"epoch": 1}], EPOCH_COLUMNS["classifier"]).count("<tr>") == 1


@pytest.mark.parametrize("command", ["evaluate", "report", "results"])
@pytest.mark.parametrize("value", ["low", MARKUP, {"of": 1}])
def test_numbers_that_are_none_name_their_line(command, value, run, capsys):
    edit_metrics(run, error=value)
    code, text = outcome(command, capsys)
    assert code == 1
    assert f"run/metrics.jsonl, line 1: error must be a number, got {value!r}" in text


@pytest.mark.parametrize("line", ["", "{", "[1]", '{"error": 1}', '{"epoch": "one"}'])
def test_lines_that_are_no_rows(line, run, capsys):
    (run.folder / "metrics.jsonl").write_text(f"{line}\n")
    for command in ("evaluate", "report", "results"):
        code, text = outcome(command, capsys)
        assert code == 1
        assert "run/metrics.jsonl, line 1 is not a row of metrics" in text


@pytest.mark.parametrize("value", ["high", ["a"], {"0": 1}])
def test_an_evaluation_that_was_edited(value, run, capsys):
    run.write_json("evaluation.json", {"entropy_quantiles": value})
    code, text = outcome("predict", capsys)
    assert code == 1
    assert "evaluation.json: entropy_quantiles must be numbers; tagi evaluate writes it anew" in text
