"""`tagi uci`: the regression benchmark of Bayesian neural networks."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table as RichTable
from rich.text import Text

from torchtagi.experiments.cli import shared
from torchtagi.experiments.cli.progress import Interrupted, interruptible, progress_bar
from torchtagi.experiments.cli.shared import console, new_table, number, print_json, split_names
from torchtagi.experiments.compare.runner import Stopped, reading
from torchtagi.experiments.runs.folder import RunError, locked
from torchtagi.experiments.uci.methods import METHODS
from torchtagi.experiments.uci.published import SETS
from torchtagi.experiments.uci.runner import SPLITS, Job, complete, current, jobs_of, read_rows
from torchtagi.experiments.uci.table import Table, means_of, tables, verdicts


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
        work(jobs_of(split_names(sets), split_names(methods), splits), folder, jobs, quiet=as_json)
    elif not (folder / SPLITS).is_file():
        raise RunError(f"{folder} has no {SPLITS}: nothing is finished there")
    with reading(folder / SPLITS):
        rows = current(read_rows(folder / SPLITS))
        if as_json:
            print_json(rows)
            return
        means = means_of(rows)
        for table in tables(means):
            console.print(as_rich(table))
        for line in verdicts(means):
            console.print(line)
    console.print(f"splits: {folder / SPLITS}")


def work(jobs: list[Job], folder: Path, processes: int, quiet: bool) -> None:
    """Measure what is missing, with a line a split."""
    with locked(folder), interruptible() as received, progress_bar(" splits", len(jobs)) as bar:
        try:
            for row in complete(folder / SPLITS, jobs, processes, lambda: bool(received)):
                bar.update()
                if not quiet:
                    bar.clear()
                    scores = f"RMSE {row['rmse']:.4g}, log-likelihood {row['log_likelihood']:.3f}"
                    place = f"{row['set']}, {row['method']}, split {row['split']}"
                    console.print(f"{place}: {scores}, coverage {row['coverage']:.3f}, {row['seconds']:.1f} s")
        except Stopped:
            if not quiet:
                console.print(f"stopped; the same command goes on in {folder}")
            raise Interrupted(128 + received[0]) from None


def as_rich(table: Table) -> RichTable:
    shown = new_table(*table.heads, title=table.title)
    for row in table.rows:
        shown.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in row))
    return shown
