"""`tagi evaluate` and `tagi report`: the numbers of a run, and a page about it; `tagi record` and `tagi results`:
keep the numbers of runs, and show them."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.classify import evaluation
from torchtagi.experiments.cli.shared import AsJson, RunFolder, console, new_table, print_json, say, value_table
from torchtagi.experiments.compare.compare import collect
from torchtagi.experiments.compare.runner import read_study
from torchtagi.experiments.compare.sweep import collect_sweep
from torchtagi.experiments.gan.drawing import keep_drawings
from torchtagi.experiments.gan.evaluation import evaluate_gan
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.report.measures import described, paper_errors, shown
from torchtagi.experiments.report.page import detection_rows, write_report
from torchtagi.experiments.runs.folder import (
    COMPARISON,
    IDENTITY,
    SWEEP,
    Run,
    reading,
    recorded,
    result_rows,
    write_json,
)


def evaluate(
    run: RunFolder,
    as_json: AsJson = False,
    judge: Annotated[
        str | None,
        typer.Option(
            help="Of GANs: the run whose classifier looks at the images, of mnist for digits, of cifar10 for faces."
        ),
    ] = None,
) -> None:
    """Error, calibration, AUROCs, out-of-distribution detection, in JSON the confusion matrix too; of a GAN, its
    measures."""
    opened = Run.open(run)
    tell = None if as_json else say
    if opened.config["task"] in GAN_TASKS:
        measures = evaluate_gan(opened, judge, tell)
        print_json(measures) if as_json else console.print(value_table("measures", described(opened, measures)))
        return
    if judge is not None:
        raise ValueError(f"--judge is for GANs: {', '.join(GAN_TASKS)}")
    task, *_, found = evaluation.evaluate(opened, progress=tell)
    if as_json:
        print_json(found)
        return
    console.print(value_table(f"{found['images']:,} test {task.thing}s", described(opened, found)))
    if found["out_of_distribution"] is None:
        console.print(f"note: {found['out_of_distribution_note']}")
        return
    title = f"telling {task.ood} from {task.name}"
    table = new_table("by", "AUROC", "false alarms at 95 % found", title=title)
    for row in detection_rows(found["out_of_distribution"]):
        table.add_row(*row)
    console.print(table)


def report(run: RunFolder) -> None:
    """Write a self-contained HTML page with the plots of a run."""
    page = write_report(Run.open(run), download=True, progress=say)
    console.print(f"report page: {page}")


def record(
    run: RunFolder,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of recorded runs.")] = Path("results"),
) -> None:
    """Copy a run's configuration, metrics and, of a GAN, drawings into the recorded results; or the outcome of a
    comparison or a sweep."""
    target = out / run.resolve().name
    if (run / COMPARISON).is_file():
        write_json(target / COMPARISON, collect(run))
    elif (run / SWEEP).is_file():
        write_json(target / SWEEP, {**read_study(run, SWEEP), "rows": collect_sweep(run)})
    else:
        opened = Run.open(run)
        with reading(run):
            target = opened.record(out)
            if opened.config["task"] in GAN_TASKS:
                keep_drawings(opened, target)
        console.print(f"recorded in {target}")
        return
    for picture in sorted((run / "plots").glob("*.png")):
        write_atomically(target / "plots" / picture.name, picture.read_bytes())
    console.print(f"recorded in {target}")


def results(
    folder: Annotated[Path, typer.Argument(help="A folder of recorded runs, or of run folders.")] = Path("results"),
    as_json: AsJson = False,
) -> None:
    """The recorded runs: a row an epoch as JSON, the first and last epochs as a table."""
    runs = recorded(folder)
    if as_json:
        print_json(result_rows(runs))
    elif runs:
        console.print(result_table(runs))
    else:
        console.print(f"no recorded runs in {folder}")


def result_table(runs: list[Run]) -> Table:
    table = new_table("task", "network", "setting", "seed", "epoch", "error", "paper", "NLL", "ECE", texts=3)
    table.padding = 0
    for column in table.columns:
        column.no_wrap = column.header != "setting"
    for run in runs:
        paper = paper_errors(run)
        with reading(run.folder):
            rows = result_rows([run])
            for row in rows[:1] + rows[1:][-1:]:
                errors = (shown("error", value) for value in (row.get("error"), paper.get(row["epoch"])))
                cells = [str(row[name]) for name in (*IDENTITY, "epoch")]
                table.add_row(*cells, *errors, *(shown(name, row.get(name)) for name in ("nll", "ece")))
            table.add_section()
    return table
