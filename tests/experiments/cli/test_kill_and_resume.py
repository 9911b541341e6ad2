"""A run that is stopped and killed, by real signals, ends with the bits of one that was not."""

import os
import random
import signal
import subprocess
import sys
import time

from small_runs import finished, small
from torchtagi.experiments.classify.evaluation import load_model
from torchtagi.experiments.runs.folder import Run

COMMAND = (sys.executable, "-m", "torchtagi", "train", "mnist", "--no-report")
SIZE = {"samples": 240, "test_samples": 100, "epochs": 5}
TIMELESS = {"seconds": 0, "samples_per_second": 0}
OPTIONS = ("--samples", "240", "--test-samples", "100", "--epochs", "5", "--threads", "1")


def start(folder, *options):
    return subprocess.Popen(
        [*COMMAND, "--out", str(folder), *options],
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


def stop_politely(process, folder, number):
    """Send a signal that asks for an end; the run must leave with a checkpoint, a hint and no complaint."""
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert f"--out {folder} --resume" in " ".join(out.split())
    assert err == ""
    assert sum(p.numel() for p in load_model(Run.open(folder)).net.parameters()) == 2 * 207219


def test_stopped_terminated_killed_and_resumed_is_bit_identical(tmp_path, digits):
    whole = finished(tmp_path / "whole", small(**SIZE), digits)

    folder = tmp_path / "stopped"
    process = start(folder, *OPTIONS)
    wait_for_epoch(process, folder, 1)
    stop_politely(process, folder, signal.SIGINT)

    process = start(folder, "--resume")
    wait_for_epoch(process, folder, 2)
    stop_politely(process, folder, signal.SIGTERM)
    assert len(Run.open(folder).metrics()) < 5

    process = start(folder, "--resume")
    wait_for_epoch(process, folder, 3)
    moment = random.uniform(0, 0.6)
    time.sleep(moment)
    process.kill()
    process.communicate()

    process = start(folder, "--resume")
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    note = f"killed {moment:.3f} s after the third epoch"
    stopped = Run.open(folder)
    assert stopped.checkpoint.read_bytes() == whole.checkpoint.read_bytes(), note
    for ours, theirs in zip(stopped.metrics(), whole.metrics(), strict=True):
        assert {**ours, **TIMELESS} == {**theirs, **TIMELESS}, note
    assert not list(folder.glob(".*")), "no leftovers"
