"""`tagi evaluate` and `tagi report`: the numbers of a run, and a page about it."""

from typing import Annotated

import typer

from torchtagi.experiments.classify import evaluation
from torchtagi.experiments.cli import shared
from torchtagi.experiments.cli.shared import console, new_table, print_json, say, value_table
from torchtagi.experiments.gan.evaluation import evaluate_gan
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.report.measures import described
from torchtagi.experiments.report.page import detection_rows, write_report
from torchtagi.experiments.runs.folder import Run


def evaluate(
    run: shared.RunFolder,
    as_json: shared.AsJson = False,
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


def report(run: shared.RunFolder) -> None:
    """Write a self-contained HTML page with the plots of a run."""
    page = write_report(Run.open(run), download=True, progress=say)
    console.print(f"report page: {page}")
