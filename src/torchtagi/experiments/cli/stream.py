"""`tagi stream`: prediction and learning row by row, with and without a drift."""

from pathlib import Path
from typing import Annotated

import typer

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.cli import shared
from torchtagi.experiments.cli.progress import measure
from torchtagi.experiments.cli.shared import as_rich, console, number, print_json, split_names
from torchtagi.experiments.compare.runner import reading
from torchtagi.experiments.jobs.records import read_rows
from torchtagi.experiments.report.plots import as_png
from torchtagi.experiments.runs.folder import Row, RunError
from torchtagi.experiments.stream.learners import LEARNERS
from torchtagi.experiments.stream.runner import IDENTITY, RESULTS, jobs_of
from torchtagi.experiments.stream.streams import STREAMS
from torchtagi.experiments.stream.table import figure, tables

PLOT = "stream.png"


def stream(
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="[STREAM]…", help=f"Of {', '.join(STREAMS)}.")
    ] = None,
    methods: Annotated[str, typer.Option(metavar="A,B,…", help=f"Of {', '.join(LEARNERS)}.")] = ",".join(LEARNERS),
    rows: Annotated[int, number("Rows of a stream.")] = 4000,
    seeds: Annotated[int, number("Networks, and drifts.")] = 3,
    jobs: Annotated[int, number("Processes, of one thread each.")] = 2,
    out: shared.OutFolder = None,
    show: Annotated[bool, typer.Option("--show", help="Learn nothing, show what is finished.")] = False,
    as_json: shared.AsJson = False,
) -> None:
    """Predict each row of a stream, then learn it: real data in their order, and worlds that drift. Ctrl-C stops
    it; the same command goes on."""
    folder = out or Path("runs") / "stream"
    if not show:
        work = jobs_of(streams or STREAMS, split_names(methods), rows, seeds)
        measure(work, folder / RESULTS, jobs, " streams", None if as_json else line_of)
    elif not (folder / RESULTS).is_file():
        raise RunError(f"{folder} has no {RESULTS}: nothing is finished there")
    with reading(folder / RESULTS):
        found = read_rows(folder / RESULTS, IDENTITY)
        if as_json:
            print_json(found)
            return
        most = max((row["rows"] for row in found), default=0)
        found = [row for row in found if row["rows"] == most]
        for table in tables(found):
            console.print(as_rich(table))
        write_atomically(folder / PLOT, as_png(figure(found)))
    console.print(f"plot: {folder / PLOT}")
    console.print(f"streams: {folder / RESULTS}")


def line_of(row: Row) -> str:
    scores = f"RMSE {row['rmse']:.4g}, log-likelihood {row['log_likelihood']:.3f}"
    return f"{row['stream']}, {row['method']}, seed {row['seed']}: {scores}, {row['seconds']:.1f} s"
