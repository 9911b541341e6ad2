"""`tagi evaluate`: the numbers of a run."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from torchtagi.experiments.classify import evaluation
from torchtagi.experiments.classify.evaluation import Evaluation
from torchtagi.experiments.cli.gan import measure_table
from torchtagi.experiments.cli.shared import AsJson, Offline, RunFolder, console, say
from torchtagi.experiments.gan.evaluation import evaluate_gan
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.report.page import MEASURES, NAMES, format_score
from torchtagi.experiments.runs.folder import Run, without_nan


def evaluate(
    run: RunFolder,
    as_json: AsJson = False,
    offline: Offline = False,
    judge: Annotated[
        str | None,
        typer.Option(
            help="Of GANs: the run whose classifier looks at the images, of mnist for digits, of cifar10 for faces."
        ),
    ] = None,
) -> None:
    """Error, calibration, AUROCs, confusion matrix and out-of-distribution detection; of a GAN, its measures."""
    opened = Run.open(run)
    tell = None if as_json else say
    if opened.config["task"] in GAN_TASKS:
        measures = evaluate_gan(opened, judge, tell)
        print(json.dumps(without_nan(measures), indent=1)) if as_json else console.print(measure_table(measures))
        return
    if judge is not None:
        raise ValueError(f"--judge is for GANs: {', '.join(GAN_TASKS)}")
    found = evaluation.evaluate(opened, download=not offline, progress=tell)
    if as_json:
        print(json.dumps(without_nan(found.summary()), indent=1))
        return
    scores = Table(title=f"{len(found.labels):,} test {found.task.thing}s", title_justify="left", show_header=False)
    scores.add_column("")
    scores.add_column("", justify="right")
    for name, label in NAMES.items():
        scores.add_row(label, format_score(name, found.scores[name]))
    console.print(scores)
    console.print(confusion_table(found))
    console.print(detection_table(found) if found.detection else f"note: {escape(found.note or '')}")


def confusion_table(found: Evaluation) -> Table:
    names = found.test.classes
    table = Table("", title="confusion: rows are the truth, columns the answer", title_justify="left")
    for name in names:
        table.add_column(name, justify="right")
    for truth, counts in enumerate(found.confusion.tolist()):
        cells = [
            f"[bold]{count}[/bold]" if answer == truth else str(count) if count else "[dim]·[/dim]"
            for answer, count in enumerate(counts)
        ]
        table.add_row(names[truth], *cells)
    return table


def detection_table(found: Evaluation) -> Table:
    table = Table("by", title=f"telling {found.task.ood} from {found.task.name}", title_justify="left")
    table.add_column("AUROC", justify="right")
    table.add_column("false alarms at 95 % found", justify="right")
    for name, scores in (found.detection or {}).items():
        table.add_row(MEASURES[name], f"{scores['auroc']:.4f}", f"{100 * scores['fpr_at_95_tpr']:.1f} %")
    return table
