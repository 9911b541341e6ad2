"""`tagi compare`, how its outcome is recorded, and what is said of files that were changed by hand."""

import json
import shutil
import signal
from pathlib import Path

import pytest

from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.compare import runner
from torchtagi.experiments.runs.folder import Run

started = runner.start_or_resume
SMALL = ("--epochs", "1", "--samples", "32", "--test-samples", "30", "--threads", "1", "--seeds", "1", "--no-tune")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """TAGI and Adam, compared."""
    with pytest.MonkeyPatch.context() as patch:
        place = tmp_path_factory.mktemp("compared")
        patch.setenv("TAGI_OFFLINE", "1")
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.chdir(place)
        assert tagi(["compare", "mnist", "--methods", "tagi,adam", "--out", "c", *SMALL]) == 0
        return place / "c"


@pytest.fixture
def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "c")
    return tmp_path / "c"


def test_the_command(copy, capsys):
    assert {p.name for p in (copy / "plots").iterdir()} == {"error.png", "reliability.png"}
    assert tagi(["compare", "mnist", "--out", "c", "--show"]) == 0
    out = capsys.readouterr().out
    assert "comparison: c/comparison.json" in out
    assert "adam, 1 seed: batch 16, no changes (defaults)" in out
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


def test_a_signal_stops_it(capsys, monkeypatch):
    arguments = ["compare", "mnist", "--methods", "adam", "--out", "c", *SMALL]

    def interrupted(*rest):
        signal.raise_signal(signal.SIGTERM)
        return started(*rest)

    with monkeypatch.context() as patch:
        patch.setattr(runner, "start_or_resume", interrupted)
        assert tagi(arguments) == 128 + signal.SIGTERM
    assert Run.open("c/adam/seed0").checkpoint.is_file()
    assert "the same command goes on" in capsys.readouterr().out
    assert tagi(arguments) == 0
    assert "adam/seed0: epoch 1" in capsys.readouterr().out
    assert len(Run.open("c/adam/seed0").metrics()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist", "--methods", "tagi,adamm"], "there is no method 'adamm'; there are tagi, sgd, adam"),
        (["mnist", "--methods", ","], "at least one method"),
        (["nist"], "'nist'"),
        (["mnist", "--seeds", "0"], "got 0"),
        (["mnist", "--epochs", "0"], "got 0"),
        (["mnist", "--tune-epochs", "0"], "got 0"),
        (["mnist", "--epochs", "2", "--stream"], "--epochs must be 1, got 2"),
        (["mnist", "--set", "adam=3"], "METHOD.NAME=VALUE, got 'adam=3'"),
        (["mnist", "--set", "adam.rate=3"], "no hyperparameter 'rate'"),
        (["mnist", "--set", "adam.learning_rate=[red]"], "must be a number of at least 0, got '[red]'"),
        (["mnist", "--set", "sgd.learning_rate=3"], "sgd, which is not compared"),
        (["mnist", "--set", "tagi.noise=3"], "tagi, which has no hyperparameters"),
        (["mnist", "--arch", "vgg"], "'vgg'"),
        (["mnist", "--out", "full"], "full is not empty and has no comparison.json"),
        (["mnist", "--out", "nowhere", "--show"], "nowhere has no comparison.json"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    assert one_line(["compare", *arguments], capsys, message)
    assert not (tmp_path / "runs").exists()


def one_line(arguments, capsys, message):
    assert tagi(arguments) != 0
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    return True


def change(path, *keys, value=None):
    """Set, or without a value delete, what `keys` lead to."""
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    if value is None:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["runs"], None),
        (["study"], "mnist"),
        (["entries"], None),
        (["entries"], ["adam"]),
        (["entries", "adam", "hyperparameters"], 3),
        (["entries", "[red]adam"], {"batch_size": 1}),
        (["runs", "adam/seed0"], "[/red]"),
        (["runs", "adam/seed0", "epochs"], []),
        (["runs", "adam/seed0", "epochs"], [{"seconds": "long"}]),
        (["runs", "adam/seed0", "summary", "scores", "error"], "few"),
        (["runs", "adam/seed0", "summary", "reliability", "count"], [1]),
        (["study", "stream"], None),
    ],
)
def test_a_comparison_changed_by_hand_is_told_in_one_line(keys, value, copy, capsys):
    change(copy / "comparison.json", *keys, value=value)
    assert one_line(["compare", "mnist", "--out", "c", "--show"], capsys, "c/comparison.json")
    arguments = ["compare", "mnist", "--methods", "adam", "--out", "c", *SMALL]
    assert one_line(arguments, capsys, "c has stream None" if keys == ["study", "stream"] else "c/comparison.json")


def test_markup_in_files_is_shown_as_it_is(copy, capsys):
    change(copy / "comparison.json", "entries", "adam", "chosen_by", value="[/red] a coin")
    change(copy / "adam/seed0/config.json", "setting", value="[/b]")
    assert tagi(["compare", "mnist", "--out", "c", "--show"]) == 0
    assert "([/red] a coin)" in capsys.readouterr().out
    assert tagi(["results", "c"]) == 0
    assert "[/b]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", "{}"),
        ("config.json", "[1]"),
        ("config.json", '{"task": ["mnist"], "network": {}, "setting": 1, "seed": "x"}'),
        ("metrics.jsonl", "{"),
        ("metrics.jsonl", '{"epoch": "one"}'),
        ("metrics.jsonl", '{"epoch": 1, "error": "[red]"}'),
        ("metrics.jsonl", '{"epoch": 1, "error": 2.0, "nll": true, "ece": "x"}'),
    ],
)
def test_a_run_changed_by_hand_is_told_in_one_line(file, text, copy, capsys):
    (copy / "tagi/seed0" / file).write_text(text)
    assert one_line(["results", "c"], capsys, "c/tagi/seed0")


def test_recording_a_run_changed_by_hand_is_told_in_one_line(copy, capsys):
    change(copy / "tagi/seed0/config.json", "task", value=["mnist"])
    assert one_line(["record", "c/tagi/seed0"], capsys, "c/tagi/seed0/config.json does not say its task")


def test_going_on_beside_a_run_changed_by_hand_is_told_in_one_line(copy, capsys):
    change(copy / "comparison.json", "runs", "adam/seed0")
    change(copy / "adam/seed0/config.json", "hyperparameters", "learning_rate", value="fast")
    arguments = ["compare", "mnist", "--methods", "adam", "--out", "c", *SMALL]
    assert one_line(arguments, capsys, "learning rate must be a number of at least 0, got 'fast'")


def test_a_recorded_comparison_goes_on_elsewhere(copy, tmp_path, capsys, monkeypatch):
    assert tagi(["record", "c"]) == 0
    kept = {str(p.relative_to(tmp_path / "results")) for p in (tmp_path / "results").glob("**/*") if p.is_file()}
    assert kept == {"c/comparison.json", "c/plots/error.png", "c/plots/reliability.png"}
    capsys.readouterr()
    assert tagi(["results", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    before = {row["entry"]: row for row in json.loads((tmp_path / "results/c/comparison.json").read_text())["rows"]}
    shutil.move(tmp_path / "results/c", tmp_path / "again")
    trained = []
    monkeypatch.setattr(
        runner, "start_or_resume", lambda place, *rest: trained.append(place) or started(place, *rest)
    )
    assert tagi(["compare", "mnist", "--methods", "tagi,adam,sgd", "--out", "again", "--json", *SMALL]) == 0
    assert trained == [Path("again/sgd/seed0")]
    after = {row["entry"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(after) == ["tagi", "sgd", "adam"]
    assert before.items() <= after.items()
