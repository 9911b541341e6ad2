"""Real processes in one process group, forked from a server that has imported the library once."""

import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

PRELOADED = ["torchtagi.experiments.cli.app", "torch.distributed.fsdp"]
TIMEOUT = 60  # seconds for a collective

Worker = Callable[..., Any]


def run_on(size: int, worker: Worker, folder: Path, *arguments: Any, survivors: int | None = None) -> list[Any]:
    """`worker(*arguments)` on each of so many processes with a default group; what each returned, or each of the
    first few, if the others are to die."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    processes = [
        context.Process(target=one_process, args=(rank, size, worker, folder, arguments), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(2 * TIMEOUT)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(survivors or size)]


def one_process(rank: int, size: int, worker: Worker, folder: Path, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    meeting, patience = f"file://{folder}/meeting", timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size, timeout=patience)
    torch.save(worker(*arguments), folder / f"{rank}.pt")
    dist.destroy_process_group()
