"""Things to be measured, each once, by several processes of one thread each: what they found is kept in a file.

The file has a line a job. It is replaced whole, so a command killed at any moment loses no more than the jobs in
work.
"""

import itertools
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from tqdm import tqdm

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.runs.folder import Row, Stopped, read_text, reading

POLL_SECONDS = 0.2
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Job(Protocol):
    """Something to be measured, a dataclass whose fields tell what; it is sent to another process."""

    __dataclass_fields__: ClassVar[Any]

    @property
    def name(self) -> str: ...

    def measure(self) -> Row: ...


# ---- the file ------------------------------------------------------------------------------------------------


def read_rows(path: Path, identity: Iterable[str]) -> list[Row]:
    """What is measured so far; nothing if there is no such file."""
    if not path.is_file():
        return []
    with reading(path):
        rows = [dict(json.loads(line)) for line in read_text(path).splitlines()]
        for row in rows:
            key_of(row, identity)  # a line that has lost it is told of here, and not where it is looked for
        return rows


def key_of(row: Row, identity: Iterable[str]) -> str:
    """What a job is told by, the fields of its identity."""
    return json.dumps({name: row[name] for name in identity}, sort_keys=True)


def rows_of(jobs: Sequence[Job], rows: Iterable[Row]) -> list[Row]:
    """What was measured for these jobs."""
    keys = {key_of(asdict(job), asdict(job)) for job in jobs}
    return [row for row in rows if jobs and key_of(row, asdict(jobs[0])) in keys]


def complete(path: Path, jobs: Sequence[Job], processes: int, stopped: Callable[[], bool]) -> Iterator[Row]:
    """Measure what the file lacks, and add it to the file; each new row."""
    identity = tuple(asdict(jobs[0])) if jobs else ()
    rows = read_rows(path, identity)
    known = {key_of(row, identity) for row in rows}
    missing = [job for job in jobs if key_of(asdict(job), identity) not in known]
    for row in in_processes(missing, processes, stopped):
        rows.append(row)
        write_atomically(path, "".join(json.dumps(each) + "\n" for each in rows).encode())
        yield row


# ---- the processes -------------------------------------------------------------------------------------------


def in_processes(jobs: Sequence[Job], count: int, stopped: Callable[[], bool]) -> Iterator[Row]:
    """What the jobs measure, in the order in which they end. Raises `Stopped` when `stopped()`, and what a job
    raises; the jobs at hand are lost then."""
    left, working = iter(jobs), dict[Future[Row], Job]()
    # a fork would share torch's threads
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=begin)

    def submit(number: int) -> None:
        for job in itertools.islice(left, number):
            working[pool.submit(job.measure)] = job

    try:
        with for_a_worker():
            submit(count)  # starts all processes that there will be
        while working:
            ready = wait(working, POLL_SECONDS, FIRST_COMPLETED).done
            if stopped():
                raise Stopped
            for future in ready:
                row = answer_of(future, working)
                del working[future]
                submit(1)
                yield row
    finally:
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown()


def answer_of(future: Future[Row], working: dict[Future[Row], Job]) -> Row:
    try:
        return future.result()
    except BrokenExecutor as error:
        names = " or ".join(job.name for job in working.values())
        raise RuntimeError(f"{names}: its process has ended; was there too little memory?") from error
    except Exception as error:
        raise RuntimeError(f"{working[future].name}: {type(error).__name__}: {error}") from error


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


def begin() -> None:
    """In a new process."""
    torch.set_num_threads(1)
    tqdm.set_lock(threading.RLock())  # its own is the system's, and would be left behind when this process is ended
    threading.Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """A killed command leaves nothing behind that would go on for minutes."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
