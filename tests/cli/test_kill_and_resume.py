"""A run that is stopped and killed, by real signals, ends with the bits of one that was not."""

import os
import random
import signal
import subprocess
import sys
import time

from torchtagi.runs import Run

COMMAND = (sys.executable, "-m", "torchtagi.cli", "train", "mnist", "--no-report")
SHAPE = ("--samples", "240", "--test-samples", "100", "--epochs", "4", "--threads", "1")


def start(folder, *options):
    return subprocess.Popen(
        [*COMMAND, "--run", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TAGI_OFFLINE": "1"},
    )


def wait_for_epoch(process, folder, epoch):
    """Until metrics.jsonl has that many lines."""
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        path = folder / "metrics.jsonl"
        if path.is_file() and len(path.read_text().splitlines()) >= epoch:
            return
        time.sleep(0.01)
    raise AssertionError(f"no epoch {epoch}: {process.communicate()}")


def test_terminated_then_killed_then_resumed_is_bit_identical(tmp_path):
    uninterrupted = start(tmp_path / "whole", *SHAPE)
    _, err = uninterrupted.communicate(timeout=180)
    assert uninterrupted.returncode == 0, err

    folder = tmp_path / "stopped"
    process = start(folder, *SHAPE)
    wait_for_epoch(process, folder, 1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert f"--run {folder} --resume" in " ".join(out.split())
    assert err == ""
    assert len(Run.open(folder).metrics()) < 4

    process = start(folder, "--resume")
    wait_for_epoch(process, folder, 2)
    moment = random.uniform(0, 0.6)
    time.sleep(moment)
    process.kill()
    process.communicate()

    process = start(folder, "--resume")
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    note = f"killed {moment:.3f} s after the second epoch"
    whole, stopped = (Run.open(tmp_path / name) for name in ("whole", "stopped"))
    assert stopped.checkpoint.read_bytes() == whole.checkpoint.read_bytes(), note
    for ours, theirs in zip(stopped.metrics(), whole.metrics(), strict=True):
        for timing in ("seconds", "images_per_second"):
            ours.pop(timing), theirs.pop(timing)
        assert ours == theirs, note
    assert not list(folder.glob(".*")), "no leftovers"


def test_ctrl_c_ends_cleanly_with_a_checkpoint(tmp_path):
    folder = tmp_path / "run"
    process = start(folder, *SHAPE, "--epochs", "50")
    wait_for_epoch(process, folder, 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err == ""
    assert "the checkpoint is written" in out
    net = Run.open(folder).load().net
    assert sum(p.numel() for p in net.parameters()) == 2 * 207219
