"""A run that is stopped and killed, by real signals, ends with the bits of one that was not."""

import random
import signal
import time

from processes import start, wait_until

from small_runs import finished, small
from torchtagi.experiments.classify.evaluation import load_model
from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.runs.folder import Run

SIZE = {"samples": 160, "test_samples": 60, "epochs": 4}
TIMELESS = {"seconds": 0, "samples_per_second": 0}
OPTIONS = ("--samples", "160", "--test-samples", "60", "--epochs", "4", "--threads", "1")


def train(folder, *options):
    return start("train", "mnist", "--no-report", "--out", str(folder), *options)


def wait_for_epoch(process, folder, epoch):
    """Until metrics.jsonl has that many lines."""
    path = folder / "metrics.jsonl"
    wait_until(process, lambda: path.is_file() and len(path.read_text().splitlines()) >= epoch)


def stop_politely(process, folder, number):
    """Send a signal that asks for an end; the run must leave with a checkpoint, a hint and no complaint."""
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + number, b"")
    assert f"--out {folder} --resume" in " ".join(out.decode().split())
    assert sum(p.numel() for p in load_model(Run.open(folder)).net.parameters()) == 2 * 207219


def test_hung_up_killed_and_resumed_is_bit_identical(tmp_path, digits):
    whole = finished(tmp_path / "whole", small(**SIZE), digits)

    folder = tmp_path / "stopped"
    process = train(folder, *OPTIONS)
    wait_for_epoch(process, folder, 1)
    stop_politely(process, folder, signal.SIGHUP)
    assert 1 <= len(Run.open(folder).metrics()) < 4

    process = train(folder, "--resume")
    wait_for_epoch(process, folder, 2)
    moment = random.uniform(0, 0.4)
    time.sleep(moment)
    process.kill()
    process.communicate()

    assert tagi(["train", "mnist", "--no-report", "--out", str(folder), "--resume"]) == 0
    note = f"killed {moment:.3f} s after the second epoch"
    stopped = Run.open(folder)
    assert stopped.checkpoint.read_bytes() == whole.checkpoint.read_bytes(), note
    for ours, theirs in zip(stopped.metrics(), whole.metrics(), strict=True):
        assert {**ours, **TIMELESS} == {**theirs, **TIMELESS}, note
    assert not list(folder.glob(".*")), "no leftovers"
