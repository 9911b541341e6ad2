"""`tagi uci`, the regression benchmark of Bayesian neural networks, and `tagi stream`, regression row by row."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.cli import shared
from torchtagi.experiments.cli.progress import measure
from torchtagi.experiments.cli.shared import as_rich, console, number, print_json, split_names
from torchtagi.experiments.data import UCI_SETS
from torchtagi.experiments.jobs import Job, read_rows
from torchtagi.experiments.report.plots import as_png
from torchtagi.experiments.runs.folder import Row, RunError, reading
from torchtagi.experiments.stream import runner as by_row
from torchtagi.experiments.stream import table as stream_table
from torchtagi.experiments.stream.learners import LEARNERS
from torchtagi.experiments.stream.runner import STREAMS
from torchtagi.experiments.uci import runner as by_split
from torchtagi.experiments.uci import table as uci_table
from torchtagi.experiments.uci.methods import METHODS

PLOT = "stream.png"

Jobs = Annotated[int, number("Processes, of one thread each.")]
Show = Annotated[bool, typer.Option("--show", help="Learn nothing, show what is finished.")]


def uci(
    sets: Annotated[str, typer.Option(metavar="A,B,…", help=f"Of {', '.join(UCI_SETS)}.")] = ",".join(UCI_SETS),
    methods: Annotated[str, typer.Option(metavar="A,B,…", help=f"Of {', '.join(METHODS)}.")] = ",".join(METHODS),
    splits: Annotated[int | None, number("The first so many splits of each set; all unless given.")] = None,
    jobs: Jobs = 2,
    out: shared.OutFolder = None,
    show: Show = False,
    as_json: shared.AsJson = False,
) -> None:
    """Learn the standard splits of nine UCI sets, with one setting for all, and set the results beside published
    ones. Ctrl-C stops it; the same command goes on with the splits that are left."""
    path = (out or Path("runs") / "uci") / by_split.SPLITS
    work = [] if show else by_split.jobs_of(split_names(sets), split_names(methods), splits)
    with measured(path, by_split.IDENTITY, work, jobs, as_json) as found:
        rows = by_split.current(found)
        if as_json:
            print_json(rows)
            return
        means = uci_table.means_of(rows)
        for table in uci_table.tables(means):
            console.print(as_rich(table))
        for line in uci_table.verdicts(means):
            console.print(line)
    console.print(f"splits: {path}")


def stream(
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="[STREAM]…", help=f"Of {', '.join(STREAMS)}.")
    ] = None,
    methods: Annotated[str, typer.Option(metavar="A,B,…", help=f"Of {', '.join(LEARNERS)}.")] = ",".join(LEARNERS),
    rows: Annotated[int, number("Rows of a stream.")] = 4000,
    seeds: Annotated[int, number("Networks, and drifts.")] = 3,
    jobs: Jobs = 2,
    out: shared.OutFolder = None,
    show: Show = False,
    as_json: shared.AsJson = False,
) -> None:
    """Predict each row of a stream, then learn it: real data in their order, and worlds that drift. Ctrl-C stops
    it; the same command goes on."""
    path = (out or Path("runs") / "stream") / by_row.RESULTS
    work = [] if show else by_row.jobs_of(streams or STREAMS, split_names(methods), rows, seeds)
    with measured(path, by_row.IDENTITY, work, jobs, as_json) as found:
        if as_json:
            print_json(found)
            return
        most = max((row["rows"] for row in found), default=0)
        found = [row for row in found if row["rows"] == most]
        for table in stream_table.tables(found):
            console.print(as_rich(table))
        plot = path.with_name(PLOT)
        write_atomically(plot, as_png(stream_table.figure(found)))
    console.print(f"plot: {plot}")
    console.print(f"streams: {path}")


@contextmanager
def measured(
    path: Path, identity: Sequence[str], work: Sequence[Job], jobs: int, quiet: bool
) -> Iterator[list[Row]]:
    """What the file at `path` holds when `work` is done, to be shown."""
    if work:
        measure(work, path, jobs, quiet)
    elif not path.is_file():
        raise RunError(f"{path.parent} has no {path.name}: nothing is finished there")
    with reading(path):
        yield read_rows(path, identity)
