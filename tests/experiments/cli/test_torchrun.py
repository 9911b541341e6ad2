"""`tagi train` on processes of torchrun's agent: one run folder, and what it survives."""

import itertools
import multiprocessing
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import distributed as dist
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from several_processes import PRELOADED, run_on
from torchtagi import distributed
from torchtagi.checkpoint import read
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.evaluation import load_model
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.cli import app
from torchtagi.experiments.runs.folder import Run
from torchtagi.fitting import EpochEnd

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # by torch's agent, from then on
KILLS = int(os.environ.get("TAGI_KILLS", "3"))  # more of them once in a while
SETTING = {"epochs": max(KILLS, 3), "samples": 240, "test_samples": 40, "batch_size": 8, "threads": 1}


def train(folder: Path, kills: int) -> None:
    """The command; in each of the first few starts a process dies after some batches, in the midst of one."""
    start, rank = (int(os.environ[name]) for name in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
    log = os.open(folder.parent / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    draw = random.Random(start)
    dies, batches, seconds = draw.randrange(2), draw.randint(1, 25), draw.uniform(0, 0.02)
    add, count = Training.add, itertools.count(1)

    def count_and_die(training: Training, *batch: Any) -> None:
        add(training, *batch)
        if next(count) == batches:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    if start < kills and rank == dies:
        Training.add = count_and_die
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SETTING.items()]
    raise SystemExit(app.run(["train", "mnist", *options, f"--out={folder}", "--no-report"]))


def launch(folder: Path, kills: int, restarts: int) -> None:
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    config = LaunchConfig(
        *(1, 1, 2), run_id="test", rdzv_backend="c10d", rdzv_endpoint="localhost:0", start_method="forkserver"
    )
    config.max_restarts, config.monitor_interval = restarts, 0.05
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    try:
        elastic_launch(config, train)(folder, kills)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def stop_midway(folder: Path, stop: bool, *more: str) -> int:
    """The command's exit code; after the twentieth batch, in the second epoch, one process is asked to stop."""
    agreed, count = Training.agreed, itertools.count(1)

    def ask(training: Training, *batch: Any) -> Any:
        if next(count) == 20 and stop and dist.get_rank():
            os.kill(os.getpid(), signal.SIGTERM)
        return agreed(training, *batch)

    Training.agreed = ask
    options = [f"--{name.replace('_', '-')}={value}" for name, value in SETTING.items()]
    return app.run(["train", "mnist", *options, f"--out={folder}", "--no-report", *more])


def in_one_go(folder: Path) -> list[float]:
    """The same run on two processes that nobody disturbs; its errors."""
    training = Training(configure("mnist", **SETTING))
    errors = [event.row["error"] for event in training.events() if isinstance(event, EpochEnd)]
    if not dist.get_rank():
        training.learner.save(folder / "checkpoint.safetensors")
    return errors


@pytest.mark.parametrize("more", [(), ("--shard",)], ids=["whole", "sharded"])
def test_all_stop_where_one_is_asked_to_and_one_process_goes_on(tmp_path: Path, more: tuple[str, ...]) -> None:
    folder = tmp_path / "run"
    assert run_on(2, stop_midway, tmp_path, folder, True, *more) == [128 + signal.SIGTERM] * 2
    kept = read(folder / "checkpoint.safetensors")[0]["extra"]
    assert (kept["epochs"], kept["fit"]["sums"]["samples"]) == (1, 5 * 16)
    assert len(Run.open(folder).metrics()) == 1
    assert app.run(["train", "mnist", f"--out={folder}", "--no-report", "--resume"]) == 0
    assert len(Run.open(folder).metrics()) == 3
    assert len(load_model(Run.open(folder)).predict(torch.zeros(2, 1, 28, 28)).probs) == 2


def test_other_commands_are_refused(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(distributed, "launched", lambda: True)
    assert app.run(["results"]) == 1
    assert "torchrun is for tagi train" in capsys.readouterr().err


def test_sharding_is_for_several_processes(tmp_path: Path, capsys) -> None:
    assert app.run(["train", "mnist", "--shard", f"--out={tmp_path / 'run'}"]) == 1
    assert "--nproc-per-node" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_whose_processes_are_killed_ends_as_one_in_one_go(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launch(folder, KILLS, KILLS)
    said = [(tmp_path / f"{rank}.log").read_text() for rank in range(2)]
    assert [row["error"] for row in Run.open(folder).metrics()] == run_on(2, in_one_go, tmp_path, tmp_path)[0]
    found, expected = (load_file(place / "checkpoint.safetensors") for place in (folder, tmp_path))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert said[0].count("8 in each of 2 processes\n") == 1 + KILLS
    short = "has ended or cannot be reached\n"
    assert all(log.count("Error: ") == log.count(short) <= KILLS for log in said), "a line each"
    assert "mnist" not in said[1], "the first process speaks for all"
