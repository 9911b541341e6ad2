"""Run folders: created, refused, read, recorded."""

import json
import math

import pytest

from torchtagi.experiments.runs.folder import Run, RunError, recorded, result_rows, without_nan

CONFIG = {"task": "mnist", "network": "cnn", "setting": "default", "seed": 1}


def test_create_writes_config_and_open_reads_it(tmp_path):
    run = Run.create(tmp_path / "a" / "b", CONFIG)
    assert Run.open(run.folder) == run
    assert run.metrics() == []


def test_an_existing_run_is_kept_unless_told_otherwise(tmp_path):
    run = Run.create(tmp_path / "run", CONFIG)
    run.add_metrics({"epoch": 1, "error": 2.0})
    run.checkpoint.write_bytes(b"old")
    (run.folder / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="holds a run already"):
        Run.create(run.folder, CONFIG)
    assert len(run.metrics()) == 1
    again = Run.create(run.folder, {**CONFIG, "seed": 2}, overwrite=True)
    assert again.metrics() == []
    assert Run.open(run.folder).config["seed"] == 2
    assert not again.checkpoint.exists()
    assert (run.folder / "notes.txt").read_text() == "mine", "only a run's own files are replaced"


def test_a_folder_of_something_else_is_never_written_to(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    for overwrite in (False, True):
        with pytest.raises(RunError, match="is not a run"):
            Run.create(tmp_path, CONFIG, overwrite)
    with pytest.raises(RunError, match="is a file"):
        Run.create(tmp_path / "thesis.tex", CONFIG)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "is not JSON"), ("[]", "must hold a JSON object"), ('{"task": "mnist"}', "network, setting, seed")],
)
def test_bad_config(tmp_path, content, message):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunError, match=message):
        Run.open(tmp_path)


def test_config_that_is_not_text(tmp_path):
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match="is not text"):
        Run.open(tmp_path)


def test_missing_runs(tmp_path):
    with pytest.raises(RunError, match="no run folder"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"has no config\.json"):
        Run.open(tmp_path)
    with pytest.raises(RunError, match="has no checkpoint"):
        Run.create(tmp_path / "run", CONFIG).require_checkpoint()


def test_keep_metrics_drops_what_the_checkpoint_does_not_know(tmp_path):
    run = Run.create(tmp_path / "run", CONFIG)
    for epoch in (1, 2, 3):
        run.add_metrics({"epoch": epoch})
    run.keep_metrics(2)
    assert [row["epoch"] for row in run.metrics()] == [1, 2]
    with pytest.raises(RunError, match="lacks some of the 4 epochs"):
        run.keep_metrics(4)


def test_a_broken_line_of_metrics_is_named(tmp_path):
    run = Run.create(tmp_path / "run", CONFIG)
    (run.folder / "metrics.jsonl").write_text('{"epoch": 1}\n{"epo')
    with pytest.raises(RunError, match="line 2"):
        run.metrics()


def test_undefined_numbers_become_null(tmp_path):
    run = Run.create(tmp_path / "run", CONFIG)
    run.add_metrics({"epoch": 1, "auroc": math.nan, "curve": [[1, math.inf]]})
    line = (run.folder / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {"epoch": 1, "auroc": None, "curve": [[1, None]]}
    assert without_nan({"a": (1, math.nan)}) == {"a": [1, None]}


def test_leftovers_of_killed_writes_go(tmp_path):
    run = Run.create(tmp_path / "run", CONFIG)
    leftover = run.folder / ".checkpoint.safetensors.abc123"
    leftover.write_bytes(b"half")
    run.clear_leftovers()
    assert sorted(path.name for path in run.folder.iterdir()) == ["config.json", "metrics.jsonl"]


def test_record_and_result_rows(tmp_path):
    run = Run.create(tmp_path / "runs" / "x", CONFIG)
    with pytest.raises(RunError, match="nothing to record"):
        run.record(tmp_path / "results")
    run.add_metrics({"epoch": 1, "error": 1.5, "train_curve": [[1, 2]]})
    run.add_metrics({"epoch": 2, "error": 1.0})
    assert run.record(tmp_path / "results").name == "mnist-cnn-default-seed1"
    grid = tmp_path / "results" / "grid"
    grid.mkdir()
    (grid / "cells.jsonl").write_text('{"not": "a run"}\n')
    (tmp_path / "results" / "step.json").write_text("[]")
    rows = result_rows(recorded(tmp_path / "results"))
    named = {**CONFIG, "method": "tagi"}
    assert rows == [{**named, "epoch": 1, "error": 1.5}, {**named, "epoch": 2, "error": 1.0}]


def test_record_keeps_the_evaluation_of_the_last_epoch_only(tmp_path):
    run = Run.create(tmp_path / "run", CONFIG)
    run.add_metrics({"epoch": 1, "error": 1.5})
    run.write_json("evaluation.json", {"epochs": 1, "error": 1.5})
    target = run.record(tmp_path / "results")
    assert Run.open(target).evaluation() == {"epochs": 1, "error": 1.5}
    run.add_metrics({"epoch": 2, "error": 1.0})
    run.record(tmp_path / "results")
    assert Run.open(target).evaluation() is None


def test_a_folder_without_results(tmp_path):
    assert recorded(tmp_path) == []
    with pytest.raises(RunError, match="no folder"):
        recorded(tmp_path / "nowhere")
