"""Jobs shared among processes of one thread each."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Protocol

import torch
from tqdm import tqdm

from torchtagi.experiments.compare.runner import Stopped
from torchtagi.experiments.runs.folder import Row

POLL_SECONDS = 0.2
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Job(Protocol):
    """Something to be measured; it is sent to another process."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> Row:
        """What it is told by, as JSON."""

    def measure(self) -> Row: ...


def in_processes(jobs: Sequence[Job], count: int, stopped: Callable[[], bool]) -> Iterator[Row]:
    """What the jobs measure, in the order in which they end. Raises `Stopped` when `stopped()`, and what a job
    raises; the jobs at hand are lost then."""
    left = list(reversed(jobs))
    with workers(min(count, len(jobs))) as free:
        working: dict[Connection, Job] = {}
        while left or working:
            while free and left:
                pipe = free.pop()
                working[pipe] = left.pop()
                pipe.send(working[pipe])
            ready = wait(list(working), POLL_SECONDS)
            if stopped():
                raise Stopped
            for pipe in [pipe for pipe in working if pipe in ready]:
                yield answer_of(pipe, working.pop(pipe))
                free.append(pipe)


def answer_of(pipe: Connection, job: Job) -> Row:
    try:
        row, problem, trace = pipe.recv()
    except (EOFError, OSError):
        row, problem, trace = None, "its process has ended; was there too little memory?", ""
    if row is None:
        error = RuntimeError(f"{job.name}: {problem}")
        error.add_note(trace)
        raise error
    found: Row = row
    return found


@contextmanager
def workers(count: int) -> Iterator[list[Connection]]:
    """Processes that wait for jobs, each at the other end of a pipe; none outlives the block."""
    context = multiprocessing.get_context("spawn")  # a fork would share torch's threads
    pipes, started = [], []
    try:
        for _ in range(count):
            pipe, far_end = context.Pipe()
            process = context.Process(target=work, args=(far_end,), daemon=True)
            with for_a_worker():
                process.start()
            far_end.close()  # so that the pipe ends with the process
            pipes.append(pipe)
            started.append(process)
        yield pipes
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.join()


@contextmanager
def for_a_worker() -> Iterator[None]:
    """What a process inherits: one thread for libraries that ask when they are loaded; and Ctrl-C, which goes to
    all processes of a terminal, is left to the one that started it."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(ONE_THREAD)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def work(pipe: Connection) -> None:
    """Measure what comes until nothing does any more, or nobody is left who asks."""
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own is the system's, and would be left behind when this process is ended
    threading.Thread(target=end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            job: Job = pipe.recv()
            try:
                pipe.send((job.measure(), "", ""))
            except Exception as error:
                pipe.send((None, f"{type(error).__name__}: {error}", traceback.format_exc()))


def end_with_parent() -> None:
    """A killed command leaves nothing behind that would go on for minutes."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
