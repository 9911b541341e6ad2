"""A file of what jobs measured, a line a job; each is measured once.

The file is replaced whole, so a command killed at any moment loses no more than the jobs in work.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.compare.runner import reading
from torchtagi.experiments.jobs.processes import Job, in_processes
from torchtagi.experiments.runs.folder import Row, read_text


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
    keys = {key_of(job.identity, job.identity) for job in jobs}
    return [row for row in rows if jobs and key_of(row, jobs[0].identity) in keys]


def complete(path: Path, jobs: Sequence[Job], processes: int, stopped: Callable[[], bool]) -> Iterator[Row]:
    """Measure what the file lacks, and add it to the file; each new row."""
    identity = tuple(jobs[0].identity) if jobs else ()
    rows = read_rows(path, identity)
    known = {key_of(row, identity) for row in rows}
    missing = [job for job in jobs if key_of(job.identity, identity) not in known]
    for row in in_processes(missing, processes, stopped):
        rows.append(row)
        write_atomically(path, "".join(json.dumps(each) + "\n" for each in rows).encode())
        yield row
