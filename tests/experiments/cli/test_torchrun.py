"""`tagi train` under torchrun: one run folder, and what it survives."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from several_processes import run_on
from torchtagi.experiments.classify.config import TrainConfig, configure
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.runs.folder import Run

SOURCE = str(Path(__file__).parents[3] / "src")
SETTING = {"epochs": 3, "samples": 480, "test_samples": 40, "batch_size": 8, "threads": 1}
KILLS = 2


def launch(folder: Path, restarts: int, *more: str) -> subprocess.Popen:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SETTING.items() if name != "batch_size"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += [f"--max-restarts={restarts}", "-m", "torchtagi", "train", "mnist", *options, "--batch-size=8"]
    return subprocess.Popen(
        [*command, f"--out={folder}", "--no-report", *more],
        env={**os.environ, "PYTHONPATH": SOURCE, "TAGI_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers(process: subprocess.Popen) -> list[int]:
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in found if b"torchtagi" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def in_one_go(folder: Path) -> dict[str, torch.Tensor]:
    """The same run on two processes that nobody disturbs."""
    config = configure("mnist", **SETTING)
    training = Training(config)
    rows = [event.row for event in training.events() if hasattr(event, "row")]
    training.learner.save(folder / "checkpoint.safetensors") if training.group.first else None
    return {"config": config, "errors": [row["error"] for row in rows]}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the workers in /proc")
def test_a_run_whose_processes_are_killed_ends_as_one_in_one_go(tmp_path: Path) -> None:
    run, draw = tmp_path / "run", random.Random(0)
    process = launch(run, KILLS)
    for kill in range(KILLS):
        deadline, checkpoint = time.monotonic() + 120, run / "checkpoint.safetensors"
        while not checkpoint.is_file() or (kill and len(Run.open(run).metrics()) <= kill):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.01)
        time.sleep(draw.uniform(0, 0.2))
        os.kill(draw.choice(workers(process)), signal.SIGKILL)
    said, logged = process.communicate(timeout=120)
    assert process.returncode == 0, print(said, logged[:3000])
    whole = run_on(2, in_one_go, tmp_path, tmp_path)[0]
    rows = Run.open(run).metrics()
    assert [row["error"] for row in rows] == whole["errors"]
    found, expected = (load_file(folder / "checkpoint.safetensors") for folder in (run, tmp_path))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert "Traceback" not in logged
    assert len(re.findall(r"^mnist · cnn", said, re.MULTILINE)) == 1 + KILLS, "one process speaks for all"
