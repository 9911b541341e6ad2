"""Several processes in one comparison's folder."""

import json
import re
import subprocess
import sys

import pytest
from small_studies import study

from torchtagi.experiments.compare import Stopped, compare, running
from torchtagi.experiments.compare.running import is_foreign
from torchtagi.experiments.runs.folder import Run
from torchtagi.experiments.runs.locking import attempt
from torchtagi.experiments.runs.resumable import EpochEnd


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """TAGI's run of seed 0 has another process at it."""
    monkeypatch.setattr(running, "POLL_SECONDS", 0.01)
    lock = attempt(tmp_path / "tagi-lock")
    monkeypatch.setattr(
        running,
        "attempt",
        lambda path: attempt(tmp_path / "tagi-lock" if path.parts[-2:] == ("tagi", ".seed0.lock") else path),
    )
    assert lock.__enter__()
    return lock


def test_a_run_that_another_is_at_is_left_to_it_and_awaited(tmp_path, taken):
    ended = []

    def watch(name, event):
        if isinstance(event, EpochEnd):
            ended.append((name, event.row["epoch"]))
            if ended[-1] == ("adam/seed0", 2):
                taken.__exit__(None, None, None)  # the other process dies, and its run is nobody's
        return False

    found = compare(study(), ["tagi", "adam"], [0], tmp_path / "c", tuned=False, watch=watch)
    assert ended == [("adam/seed0", 1), ("adam/seed0", 2), ("tagi/seed0", 1), ("tagi/seed0", 2)]
    assert [(row["entry"], row["seeds"]) for row in found.rows] == [("tagi", 1), ("adam", 1)], "TAGI comes first"


def test_who_waits_can_be_stopped(tmp_path, taken):
    with pytest.raises(Stopped):
        compare(study(), ["tagi"], [0], tmp_path / "c", watch=lambda name, event: event is None)
    taken.__exit__(None, None, None)


def test_a_folder_that_another_process_is_making_is_not_foreign(tmp_path):
    assert not is_foreign(tmp_path / "absent", "study.json")
    assert not is_foreign(tmp_path, "study.json")
    (tmp_path / ".study.json.17.abcd").write_text("{")
    assert not is_foreign(tmp_path, "study.json")
    (tmp_path / "letter.txt").write_text("dear")
    assert is_foreign(tmp_path, "study.json")
    assert is_foreign(tmp_path / "letter.txt", "study.json")
    (tmp_path / "study.json").write_text("{}")
    assert not is_foreign(tmp_path, "study.json")


def test_two_processes_share_the_runs(tmp_path):
    command = [
        sys.executable,
        "-m",
        "torchtagi.experiments.cli",
        "compare",
        "mnist",
        "--methods",
        "tagi,adam,sgd",
        "--no-tune",
    ]
    command += ["--epochs", "1", "--samples", "400", "--test-samples", "20", "--threads", "1", "--seeds", "2"]
    processes = [
        subprocess.Popen([*command, "--out", "c"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    trained = [re.findall(r"^(\S+): epoch 1,", output, re.MULTILINE) for output in outputs]
    assert sorted(trained[0] + trained[1]) == sorted(
        f"{m}/seed{s}" for m in ("tagi", "adam", "sgd") for s in (0, 1)
    )
    content = json.loads((tmp_path / "c/study.json").read_text())
    assert content["entries"].keys() == content["seconds_per_image"].keys() == {"tagi", "adam", "sgd"}
    assert all(len(Run.open(tmp_path / "c" / m / "seed1").metrics()) == 1 for m in ("tagi", "adam", "sgd"))
    assert all(re.search(r"^ ?tagi +2 ", output, re.MULTILINE) for output in outputs), "both show the whole table"
