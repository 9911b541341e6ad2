"""Splits: which there are, what one measures, how they are kept, shared among processes, and gone on with."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_sets import ROWS, TEST_ROWS

from torchtagi.experiments import jobs
from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.data import load_uci
from torchtagi.experiments.jobs import complete, read_rows, rows_of
from torchtagi.experiments.runs.folder import Stopped, locked
from torchtagi.experiments.uci.methods import METHODS, TAGI, Method, by_tagi
from torchtagi.experiments.uci.runner import IDENTITY, SPLITS, Job, current, held_out, jobs_of

SHORT = TAGI | {"epochs": 1}


@pytest.fixture
def short(monkeypatch):
    """TAGI with one epoch; a job takes its setting along to its process."""
    monkeypatch.setitem(METHODS, "tagi", Method(by_tagi, SHORT))


@pytest.fixture
def here(monkeypatch):
    """Jobs are measured in this process; returns the names of those that were."""
    measured = []

    def in_turn(jobs, count, stopped):
        for job in jobs:
            measured.append(job.name)
            yield job.measure()
            if stopped():
                raise Stopped

    monkeypatch.setattr(jobs, "in_processes", in_turn)
    return measured


def never():
    return False


# ---- what a split measures ----------------------------------------------------------------------------------


def rows_in(x):
    """The numbers of rows, which are their first feature."""
    return set(x[:, 0].int().tolist())


@pytest.mark.parametrize("split", [0, 1, 2])
def test_a_validation_part_is_a_fifth_of_the_training_part_and_never_of_the_test_part(split):
    parts = load_uci("yacht", split)
    part = held_out(parts, seed=split)
    train, validation = rows_in(part.x_train), rows_in(part.x_test)
    assert train | validation == rows_in(parts.x_train)
    assert not train & validation
    assert len(validation) == (ROWS - TEST_ROWS) // 5
    assert not validation & rows_in(parts.x_test)
    both = torch.cat([torch.cat([part.x_train, part.y_train], 1), torch.cat([part.x_test, part.y_test], 1)])
    whole = torch.cat([parts.x_train, parts.y_train], 1)
    assert torch.equal(both[both[:, 0].argsort()], whole[whole[:, 0].argsort()]), "inputs and targets stay together"
    assert torch.equal(held_out(parts, seed=split).x_test, part.x_test)


@pytest.mark.parametrize("validation", [False, True])
def test_a_method_sees_no_target_that_it_is_measured_by(monkeypatch, validation):
    seen = []

    def predict(problem, **setting):
        seen.append(problem)
        return torch.full((len(problem.x_new),), 7.0), torch.full((len(problem.x_new),), 4.0)

    monkeypatch.setitem(METHODS, "tagi", Method(predict, SHORT))
    job = Job("yacht", "tagi", 1, SHORT, validation)
    row = job.measure()
    parts = load_uci("yacht", 1)
    (problem,) = seen
    tests = rows_in(parts.x_test)
    assert not rows_in(problem.x) & tests
    assert (rows_in(problem.x_new) == tests) is not validation
    if validation:
        assert not rows_in(problem.x_new) & tests
    measured = held_out(parts, job.seed) if validation else parts
    error = measured.y_test[:, 0].double() - 7
    assert row["rmse"] == pytest.approx(error.square().mean().sqrt().item())
    expected = -0.5 * np.log(2 * np.pi * 4) - error.square().mean().item() / 8
    assert row["log_likelihood"] == pytest.approx(expected)
    assert row["coverage"] == pytest.approx((error.abs() < 1.96 * 2).double().mean().item())
    assert (row["splits"], row["validation"], row["setting"]["epochs"]) == (3, validation, 1)


def test_a_split_is_measured_alike_each_time_and_seeds_differ():
    job = Job("yacht", "tagi", 0, SHORT)
    first, second = job.measure(), job.measure()
    for row in (first, second):
        del row["seconds"]
    assert first == second
    seeds = {Job(name, "tagi", split, SHORT).seed for name in ("yacht", "energy") for split in range(20)}
    assert len(seeds) == 40
    assert Job("yacht", "gp", 3, {}).seed == Job("yacht", "tagi", 3, SHORT).seed


# ---- which there are ----------------------------------------------------------------------------------------


def test_jobs_are_the_splits_that_sets_have_and_methods_can_learn(monkeypatch):
    def found(*arguments):
        return [(job.set, job.method, job.split) for job in jobs_of(*arguments)]

    assert found(["yacht", "energy"], ["tagi"], None) == [
        *(("yacht", "tagi", split) for split in (0, 1, 2)),
        *(("energy", "tagi", split) for split in (0, 1)),
    ]
    assert found(["energy", "yacht"], ["tagi"], 1) == [("energy", "tagi", 0), ("yacht", "tagi", 0)]
    assert found(["yacht", "yacht"], ["tagi", "tagi"], 1) == [("yacht", "tagi", 0)]
    monkeypatch.setitem(METHODS, "ensemble", replace(METHODS["ensemble"], most_rows=ROWS - TEST_ROWS - 1))
    assert found(["yacht"], ["ensemble", "tagi"], 1) == [("yacht", "tagi", 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sets", "yatch"], "no set 'yatch'; there are boston, concrete"),
        (["--sets", "yatch"], "did you mean yacht?"),
        (["--methods", "tagi,gpp"], "no method 'gpp'; there are tagi, gp, mlp, ensemble"),
        (["--sets", "boston", "--methods", "tagi"], "UCI set bostonHousing is missing"),
        (["--sets", "boston", "--methods", "tagi"], "copy the folder bostonHousing of https://github.com"),
        (["--splits", "0"], "must be at least 1, got 0"),
        (["--jobs", "two"], "'two' is not a whole number"),
        (["--show"], "runs/uci has no splits.jsonl: nothing is finished there"),
        (["--sets", ",", "--methods", "tagi"], "at least one set"),
        (["--sets", "yacht", "--methods", ","], "at least one method"),
    ],
)
def test_mistakes_are_told_in_one_line_before_anything_is_learned(arguments, message, capsys, here, tmp_path):
    assert tagi(["uci", *arguments]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not here
    assert not list(tmp_path.rglob(SPLITS))


def test_a_data_folder_that_does_not_exist_is_named(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TAGI_DATA", str(tmp_path / "nowhere"))
    assert tagi(["uci", "--sets", "yacht", "--methods", "tagi"]) == 1
    assert f"{tmp_path / 'nowhere'} does not exist: correct or unset it" in capsys.readouterr().err


# ---- the file ------------------------------------------------------------------------------------------------


def test_the_command_measures_each_split_once_and_goes_on(short, here, capsys):
    command = ["uci", "--sets", "yacht,energy", "--methods", "tagi", "--out", "u"]
    assert tagi([*command, "--splits", "1"]) == 0
    assert here == ["yacht, tagi, split 0", "energy, tagi, split 0"]
    out = capsys.readouterr().out
    assert "yacht, tagi, split 0: RMSE" in out
    assert "RMSE, beside published figures" in out
    assert "RMSE better than TAGI's and TAGI-V's:" in out
    assert out.rstrip().endswith("splits: u/splits.jsonl")
    assert tagi(command) == 0
    assert sorted(here) == sorted({*here}), "each once"
    assert len(here) == 5
    capsys.readouterr()
    assert tagi(["uci", "--show", "--json", "--out", "u"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["set"], row["split"]) for row in rows] == [
        *(("yacht", 0), ("energy", 0)),
        *(("yacht", 1), ("yacht", 2), ("energy", 1)),
    ]
    assert len(here) == 5, "--show learns nothing"


def test_what_other_settings_measured_is_kept_and_not_shown(short, here, tmp_path):
    path = tmp_path / SPLITS
    old = Job("yacht", "tagi", 0, TAGI | {"epochs": 2})
    checked = Job("yacht", "tagi", 0, SHORT, validation=True)
    new = Job("yacht", "tagi", 0, SHORT)
    for _ in range(2):
        list(complete(path, [old, checked, new], 1, never))
    assert len(here) == 3
    rows = read_rows(path, IDENTITY)
    assert [row["rmse"] for row in current(rows)] == [rows[2]["rmse"]]
    assert rows_of([old], rows) == [rows[0]]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        '"text"',
        '{"set": "yacht"}',
        '{"set": "yacht", "method": "tagi", "split": 0, "validation": false}',
    ],
)
def test_a_broken_file_is_named_and_left_alone(line, short, here, tmp_path, capsys):
    (tmp_path / "u").mkdir()
    path = tmp_path / "u" / SPLITS
    list(complete(path, jobs_of(["yacht"], ["tagi"], 1), 1, never))
    path.write_text(path.read_text() + line + "\n")
    before = path.read_bytes()
    for option in ([], ["--show"]):
        assert tagi(["uci", "--sets", "yacht", "--methods", "tagi", "--out", "u", *option]) == 1
        error = capsys.readouterr().err
        assert "u/splits.jsonl cannot be read" in error
        assert "was it changed by hand?" in error
        assert error.count("\n") == 1
    assert path.read_bytes() == before
    assert len(here) == 1


def test_a_number_that_is_none_is_told_with_its_file(short, here, tmp_path, capsys):
    path = tmp_path / "u" / SPLITS
    path.parent.mkdir()
    list(complete(path, jobs_of(["yacht"], ["tagi"], 1), 1, never))
    row = json.loads(path.read_text())
    path.write_text(json.dumps(row | {"rmse": "small"}) + "\n")
    assert tagi(["uci", "--show", "--out", "u"]) == 1
    assert "u/splits.jsonl cannot be read" in capsys.readouterr().err


def test_a_folder_at_work_is_refused(short, here, tmp_path):
    with locked(tmp_path / "u"):
        assert tagi(["uci", "--sets", "yacht", "--methods", "tagi", "--out", "u"]) == 1
    assert not here


# ---- signals ------------------------------------------------------------------------------------------------


COMMAND = """
import signal
from torchtagi.experiments.cli.app import run
from torchtagi.experiments.uci.methods import METHODS

if __name__ == "__main__":  # the processes that it starts read this file too
    signal.signal(signal.SIGINT, signal.default_int_handler)
    METHODS["tagi"].setting["epochs"] = 100_000
    METHODS["mlp"].setting["epochs"] = 1
    raise SystemExit(run(["uci", "--sets", "yacht", "--methods", "mlp,tagi", "--splits", "2", "--out", "u"]))
"""


def test_ctrl_c_loses_no_more_than_the_splits_in_work(tmp_path, short, here, monkeypatch):
    """Two splits are done quickly, then two that would take hours are at work when it comes, to all processes of
    the terminal."""
    pytest.importorskip("sklearn")
    (tmp_path / "command.py").write_text(COMMAND)
    process = subprocess.Popen(
        [sys.executable, "command.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"},
    )
    try:
        for _ in range(2):
            assert process.stdout.readline().startswith("yacht, mlp, split")
        at_work = workers_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert (process.returncode, out, err) == (130, "stopped; the same command goes on in u\n", "")
    assert not [pid for pid in at_work if Path("/proc", pid).exists()]
    assert {(row["method"], row["split"]) for row in read_rows(tmp_path / "u" / SPLITS, IDENTITY)} == {
        ("mlp", 0),
        ("mlp", 1),
    }
    assert [path.name for path in (tmp_path / "u").iterdir()] == [SPLITS]
    monkeypatch.setitem(METHODS, "mlp", replace(METHODS["mlp"], setting={"epochs": 1}))
    assert tagi(["uci", "--sets", "yacht", "--methods", "mlp,tagi", "--splits", "2", "--out", "u"]) == 0
    assert here == ["yacht, tagi, split 0", "yacht, tagi, split 1"]
    assert len(read_rows(tmp_path / "u" / SPLITS, IDENTITY)) == 4


def workers_of(process):
    """Ids of its processes that measure; none elsewhere than on Linux."""
    children = Path(f"/proc/{process}/task/{process}/children")
    ids = children.read_text().split() if children.is_file() else []
    return [pid for pid in ids if b"spawn_main" in Path("/proc", pid, "cmdline").read_bytes()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_is_measured(number, tmp_path, short, here, monkeypatch, capsys):
    measure = Job.measure

    def interrupted(job):
        if job.split == 1:
            signal.raise_signal(number)
        return measure(job)

    command = ["uci", "--sets", "yacht", "--methods", "tagi", "--out", "u"]
    with monkeypatch.context() as patch:
        patch.setattr(Job, "measure", interrupted)
        assert tagi(command) == 128 + number
    assert "stopped; the same command goes on in u" in capsys.readouterr().out
    assert [row["split"] for row in read_rows(tmp_path / "u" / SPLITS, IDENTITY)] == [0, 1]
    assert tagi(command) == 0
    assert [name[-1] for name in here] == ["0", "1", "2"]


def test_a_folder_of_another_kind_is_refused_in_one_line(short, here, tmp_path, capsys):
    (tmp_path / "u").write_text("a file")
    assert tagi(["uci", "--sets", "yacht", "--methods", "tagi", "--out", "u"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_an_interrupted_write_leaves_the_file_whole(short, here, tmp_path, monkeypatch):
    path = tmp_path / SPLITS
    jobs = jobs_of(["yacht"], ["tagi"], 2)
    list(complete(path, jobs[:1], 1, never))
    before = path.read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        with pytest.raises(OSError, match="No space left"):
            list(complete(path, jobs, 1, never))
    assert path.read_bytes() == before
