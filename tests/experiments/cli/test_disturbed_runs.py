"""What may happen to a run from outside, by real processes and signals: others want its folder, its terminal is
closed, it is killed. It ends with the bits of one that was left in peace."""

import random
import signal
import subprocess
import sys
import time

import pytest
from processes import start, wait_until

from small_runs import finished, small
from torchtagi.experiments.classify.evaluation import load_model
from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.runs.folder import Run, RunError, locked

TIMES = ("seconds", "samples_per_second")


@pytest.fixture
def running(tmp_path, monkeypatch):
    """Starts commands; none outlives the test."""
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    monkeypatch.delenv("TAGI_DATA", raising=False)
    processes = []

    def begin(process):
        processes.append(process)
        return process

    yield begin
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def hold(process, folder):
    """Let a command stand still when it has begun its run."""
    wait_until(process, (folder / "config.json").is_file)
    process.send_signal(signal.SIGSTOP)


def refused(folder):
    problem = f"another process is at work in {folder}: wait until it ends, or choose another folder"
    return f"Error: {problem}\n"


def wait_for_epoch(process, folder, epoch):
    """Until metrics.jsonl has that many lines."""
    path = folder / "metrics.jsonl"
    wait_until(process, lambda: path.is_file() and len(path.read_text().splitlines()) >= epoch)


def kill(process):
    """At a moment that is said if the test fails."""
    moment = random.uniform(0, 0.3)
    time.sleep(moment)
    process.kill()
    process.wait()
    return f"killed after {moment:.3f} s"


def untimed(run):
    return [{key: value for key, value in row.items() if key not in TIMES} for row in run.metrics()]


def test_a_training_that_others_disturb_hung_up_killed_and_resumed_is_whole(running, tmp_path, digits, capsys):
    whole = finished(tmp_path / "whole", small(samples=160, test_samples=60, epochs=4), digits)
    folder = tmp_path / "run"
    options = ("train", "mnist", "--no-report", "--out", str(folder))
    size = ("--samples", "160", "--test-samples", "60", "--epochs", "4", "--threads", "1")

    first = running(start(*options, *size))
    hold(first, folder)
    second = running(start(*options, *size))
    out, err = second.communicate(timeout=120)
    assert (second.returncode, out.decode(), err.decode()) == (1, "", refused(folder))
    for option in ("--resume", "--overwrite"):
        assert tagi([*options, option]) == 1
        assert capsys.readouterr() == ("", refused(folder))
    first.send_signal(signal.SIGCONT)

    wait_for_epoch(first, folder, 1)
    first.send_signal(signal.SIGHUP)
    out, err = first.communicate(timeout=60)
    assert (first.returncode, err) == (128 + signal.SIGHUP, b"")
    assert f"--out {folder} --resume" in " ".join(out.decode().split())
    assert sum(p.numel() for p in load_model(Run.open(folder)).net.parameters()) == 2 * 207068
    assert 1 <= len(Run.open(folder).metrics()) < 4

    third = running(start(*options, "--resume"))
    wait_for_epoch(third, folder, 2)
    note = kill(third)
    assert tagi([*options, "--resume"]) == 0
    run = Run.open(folder)
    assert run.checkpoint.read_bytes() == whole.checkpoint.read_bytes(), note
    assert untimed(run) == untimed(whole), note
    assert not list(folder.glob(".*")), "no leftovers"


def test_a_gan_that_others_disturb_killed_and_resumed_is_whole(running, tmp_path, capsys):
    size = ["--samples", "32", "--test-samples", "20", "--epochs", "2", "--threads", "1", "--judge", "none"]
    command = ["gan", "infogan-mnist", "--no-report", *size, "--out"]
    assert tagi([*command, str(tmp_path / "whole")]) == 0
    folder = tmp_path / "run"
    first = running(subprocess.Popen([sys.executable, "-m", "torchtagi", *command, str(folder)]))
    hold(first, folder)
    capsys.readouterr()
    for option in ([], ["--resume"], ["--overwrite"]):
        assert tagi([*command, str(folder), *option]) == 1
        assert capsys.readouterr() == ("", refused(folder))
    first.send_signal(signal.SIGCONT)
    wait_until(first, (folder / "checkpoint.safetensors").is_file)
    note = kill(first)
    assert tagi([*command, str(folder), "--resume"]) == 0
    for name in ("checkpoint.safetensors", "plots/filmstrip.png", "plots/samples/epoch-0002.png"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), f"{name}, {note}"
    assert untimed(Run.open(folder)) == untimed(Run.open(tmp_path / "whole")), note
    assert not list(folder.rglob(".*")), "no leftovers"


def test_a_folder_is_held_under_any_of_its_names(tmp_path):
    (tmp_path / "link").symlink_to("run", target_is_directory=True)
    for other in (tmp_path / "run", tmp_path / "run" / ".." / "run", tmp_path / "link"):
        with (
            locked(tmp_path / "run"),
            pytest.raises(RunError, match=f"another process is at work in {other}"),
            locked(other),
        ):
            pass
    with locked(tmp_path / "run"), locked(tmp_path / "other"):
        assert not (tmp_path / "run").exists(), "a run that is refused leaves no folder"
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "run"):
        raise ZeroDivisionError
    with locked(tmp_path / "run"):
        pass
