"""Several processes in one comparison's folder."""

import dataclasses
import json
import re
import subprocess
import sys
import time

import pytest
from filelock import FileLock
from small_studies import compared, study

from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.compare import runner
from torchtagi.experiments.compare.runner import Runner
from torchtagi.experiments.runs.folder import Run, RunError, Stopped
from torchtagi.fitting import EpochEnd

BEGUN = {"runs": {}, "entries": {}}


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """TAGI's run of seed 0 has another process at it."""
    monkeypatch.setattr(runner, "POLL_SECONDS", 0.01)
    (tmp_path / "c/tagi").mkdir(parents=True)
    (tmp_path / "c/comparison.json").write_text(json.dumps({**BEGUN, "study": dataclasses.asdict(study(epochs=1))}))
    with FileLock(tmp_path / "c/tagi/.seed0.lock") as lock:
        yield lock


def test_a_run_that_another_is_at_is_left_to_it_and_awaited(tmp_path, taken):
    ended = []

    def watch(name, event):
        if isinstance(event, EpochEnd):
            ended.append((name, event.row["epoch"]))
            if ended[-1] == ("adam/seed0", 1):
                taken.release()  # the other process dies, and its run is nobody's
        return False

    found = compared(study(epochs=1), ["tagi", "adam"], tmp_path / "c", tuned=False, watch=watch)
    assert ended == [("adam/seed0", 1), ("tagi/seed0", 1)]
    assert [(row["entry"], row["seeds"]) for row in found["rows"]] == [("tagi", 1), ("adam", 1)]


def test_who_waits_can_be_stopped(tmp_path, taken):
    with pytest.raises(Stopped):
        compared(study(epochs=1), ["tagi"], tmp_path / "c", watch=lambda name, event: event is None)


def test_a_lock_is_dropped_when_its_holder_dies(tmp_path):
    code = "import os, filelock, sys; filelock.FileLock(sys.argv[1]).acquire(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "lock"]).returncode == 9
    with FileLock(tmp_path / "lock").acquire(blocking=False):
        pass


def test_a_folder_of_something_else_is_refused_one_that_is_being_made_is_not(tmp_path):
    def opened(folder):
        Runner(folder, "comparison.json", study()).open(entries={})

    (tmp_path / "new").mkdir()
    (tmp_path / "new/.comparison.json.17.abcd").write_text("{")
    opened(tmp_path / "new")
    opened(tmp_path / "new")
    opened(tmp_path / "absent")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters/letter.txt").write_text("dear")
    for folder in (tmp_path / "letters", tmp_path / "letters/letter.txt"):
        with pytest.raises(RunError, match="give another --out"):
            opened(folder)
    assert not list((tmp_path / "letters").glob(".*"))


def test_two_processes_share_the_runs(tmp_path, capsys):
    """This one, and another that has begun."""
    command = ["compare", "mnist", "--methods", "adam,sgd", "--no-tune", "--epochs", "1", "--seeds", "2"]
    command += ["--samples", "100", "--test-samples", "20", "--threads", "1", "--out", "c"]
    other = subprocess.Popen(
        [sys.executable, "-m", "torchtagi", *command], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    while other.poll() is None and not (tmp_path / "c/comparison.json").is_file():
        time.sleep(0.005)
    assert tagi(command) == 0
    outputs = [capsys.readouterr().out, other.communicate(timeout=120)[0]]
    assert other.returncode == 0
    trained = [re.findall(r"^(\S+): epoch 1,", output, re.MULTILINE) for output in outputs]
    names = [f"{method}/seed{seed}" for method in ("adam", "sgd") for seed in (0, 1)]
    assert sorted(trained[0] + trained[1]) == sorted(names)
    assert json.loads((tmp_path / "c/comparison.json").read_text())["runs"].keys() == set(names)
    assert all(len(Run.open(tmp_path / "c" / name).metrics()) == 1 for name in names)
    assert all("adam, 2 seeds: batch 16" in output for output in outputs), "both show the whole table"
