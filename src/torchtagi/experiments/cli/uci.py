"""`tagi uci`: the regression benchmark of Bayesian neural networks."""

from pathlib import Path
from typing import Annotated

import typer

from torchtagi.experiments.cli import shared
from torchtagi.experiments.cli.progress import measure
from torchtagi.experiments.cli.shared import as_rich, console, number, print_json, split_names
from torchtagi.experiments.compare.runner import reading
from torchtagi.experiments.jobs.records import read_rows
from torchtagi.experiments.runs.folder import Row, RunError
from torchtagi.experiments.uci.methods import METHODS
from torchtagi.experiments.uci.published import SETS
from torchtagi.experiments.uci.runner import IDENTITY, SPLITS, current, jobs_of
from torchtagi.experiments.uci.table import means_of, tables, verdicts


def uci(
    sets: Annotated[str, typer.Option(metavar="A,B,…", help=f"Of {', '.join(SETS)}.")] = ",".join(SETS),
    methods: Annotated[str, typer.Option(metavar="A,B,…", help=f"Of {', '.join(METHODS)}.")] = ",".join(METHODS),
    splits: Annotated[int | None, number("The first so many splits of each set; all unless given.")] = None,
    jobs: Annotated[int, number("Processes, of one thread each.")] = 2,
    out: shared.OutFolder = None,
    show: Annotated[bool, typer.Option("--show", help="Learn nothing, show what is finished.")] = False,
    as_json: shared.AsJson = False,
) -> None:
    """Learn the standard splits of nine UCI sets, with one setting for all, and set the results beside published
    ones. Ctrl-C stops it; the same command goes on with the splits that are left."""
    folder = out or Path("runs") / "uci"
    if not show:
        work = jobs_of(split_names(sets), split_names(methods), splits)
        measure(work, folder / SPLITS, jobs, " splits", None if as_json else line_of)
    elif not (folder / SPLITS).is_file():
        raise RunError(f"{folder} has no {SPLITS}: nothing is finished there")
    with reading(folder / SPLITS):
        rows = current(read_rows(folder / SPLITS, IDENTITY))
        if as_json:
            print_json(rows)
            return
        means = means_of(rows)
        for table in tables(means):
            console.print(as_rich(table))
        for line in verdicts(means):
            console.print(line)
    console.print(f"splits: {folder / SPLITS}")


def line_of(row: Row) -> str:
    scores = f"RMSE {row['rmse']:.4g}, log-likelihood {row['log_likelihood']:.3f}"
    place = f"{row['set']}, {row['method']}, split {row['split']}"
    return f"{place}: {scores}, coverage {row['coverage']:.3f}, {row['seconds']:.1f} s"
