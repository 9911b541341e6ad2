"""`tagi results`: the recorded runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from torchtagi.experiments.classify.tasks import TASKS
from torchtagi.experiments.cli.shared import AsJson, console
from torchtagi.experiments.compare.runner import reading
from torchtagi.experiments.runs.folder import Row, Run, recorded, result_rows

SHOWN = {"nll": "NLL", "ece": "ECE", "auroc_ovr": "AUROC"}


def results(
    folder: Annotated[Path, typer.Argument(help="A folder of recorded runs, or of run folders.")] = Path("results"),
    as_json: AsJson = False,
) -> None:
    """The recorded runs: a row an epoch as JSON, the first and last epochs as a table."""
    runs = recorded(folder)
    if as_json:
        print(json.dumps(result_rows(runs), indent=1))
    elif not runs:
        console.print(f"no recorded runs in {escape(str(folder))}")
    else:
        console.print(result_table(runs))


def result_table(runs: list[Run]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)  # fits 80 columns
    table.add_column("task", no_wrap=True)
    table.add_column("network", no_wrap=True)
    table.add_column("setting", overflow="fold", min_width=8)
    for name in ("seed", "epoch", "error %", "paper %", *SHOWN.values()):
        table.add_column(name, justify="right", no_wrap=True)
    for run in runs:
        with reading(run.folder):
            rows = result_rows([run])
            for row in rows[:1] + rows[1:][-1:]:
                table.add_row(*map(escape, result_line(row)), end_section=row is rows[-1])
    return table


def result_line(row: Row) -> list[str]:
    def number(name: str, form: str) -> str:
        value = row.get(name)
        return "–" if value is None else format(float(value), form)

    return [
        *(escape(str(row[name])) for name in ("task", "network", "setting", "seed", "epoch")),
        number("error", ".2f"),
        paper_error(row),
        *(number(name, ".4f") for name in SHOWN),
    ]


def paper_error(row: Row) -> str:
    """What the paper has for TAGI on the same network after as many epochs."""
    if row["method"] != "tagi":
        return "–"
    task = TASKS.get(row["task"])
    network = task.networks.get(row["network"]) if task else None
    value = network.paper_error.get(row["epoch"]) if network else None
    return "–" if value is None else f"{value:.2f}"
