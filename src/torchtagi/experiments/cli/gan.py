"""`tagi gan`: train a GAN, with a progress bar, a line an epoch, and a clean way out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from torchtagi.experiments.cli import shared
from torchtagi.experiments.cli.progress import Lines, load_sets, show_page, show_progress, show_start
from torchtagi.experiments.cli.shared import console, say
from torchtagi.experiments.gan.config import METHODS, GanConfig, configure_gan
from torchtagi.experiments.gan.drawing import SAMPLES
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.gan.training import GanTraining
from torchtagi.experiments.report.gan_page import EPOCH_COLUMNS, MEASURES, shown_measure, write_gan_report
from torchtagi.experiments.runs.folder import Row, Run, RunError, check_free, locked
from torchtagi.fitting import Step


def gan(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(GAN_TASKS)}.")],
    paper: Annotated[bool, typer.Option("--paper", help="The paper's setting and its 50 epochs.")] = False,
    method: Annotated[
        str | None, typer.Option(help=f"{' or '.join(METHODS)}, the same networks by backprop; tagi unless given.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="The classifier that reads generated digits: a `tagi train mnist` run, `quick` or `none`."
        ),
    ] = None,
    epochs: shared.Epochs = None,
    batch_size: shared.BatchSize = None,
    seed: shared.Seed = None,
    samples: shared.Samples = None,
    test_samples: shared.TestSamples = None,
    device: shared.Device = None,
    threads: shared.Threads = None,
    precision: shared.Precision = None,
    out: shared.OutFolder = None,
    resume: shared.Resume = False,
    overwrite: shared.Overwrite = False,
    report: shared.ReportPage = True,
) -> None:
    """Train a GAN without labels; Ctrl-C stops it cleanly, --resume continues it exactly."""
    if resume and overwrite:
        raise RunError("--resume continues a run, --overwrite replaces it: give one of them")
    options = {"method": method, "judge": judge, "epochs": epochs, "batch_size": batch_size, "seed": seed}
    options |= {"samples": samples, "test_samples": test_samples, "device": device, "threads": threads}
    options |= {"precision": precision}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    given |= {"paper": True} if paper else {}
    given |= {"judge": None} if judge == "none" else {}
    config = configure_gan(task, **given)
    folder = out or Path("runs") / config.name
    with locked(folder):
        if resume:
            training = resumed(folder, task, given)
        else:
            check_free(folder, overwrite)
            if config.judge not in (None, "quick"):
                Run.open(str(config.judge))  # a wrong name is told before anything is loaded
            training = GanTraining(config, sets=load_sets(config.kind.data))
            training.run = Run.create(folder, config.as_json(), overwrite)  # when nothing can be refused any more
        show_start(training, folder, "inference" if training.config.method == "tagi" else "backprop by Adam")
        head = " ".join(f"{name:>10}" for name in EPOCH_COLUMNS.values())
        show_progress(training, Lines(head, progress_state, epoch_line), f"tagi gan {task} --out {folder} --resume")
        run = training.run
        assert run is not None
        row = run.metrics()[-1]
        console.print(measure_table(row, f"after {row['epoch']} epoch{'s' if row['epoch'] > 1 else ''}"))
        console.print(f"samples: [bold]{escape(str(folder / SAMPLES))}/epoch-{row['epoch']:04d}.png[/bold]")
        if report:
            show_page(lambda: write_gan_report(run, progress=say))


def resumed(folder: Path, task: str, given: dict[str, Any]) -> GanTraining:
    """The run in `folder`, if it is what the command line asks for."""
    run = Run.open(folder)
    if run.config["task"] != task:
        raise RunError(f"{folder} was started with task {run.config['task']}, not {task}")
    before = GanConfig.from_json(run.config)
    return GanTraining.resume(run, dataclasses.replace(before, **given), load_sets(before.kind.data))


def progress_state(step: Step) -> str:
    report = {name.removeprefix("train_"): value for name, value in step.report.items()}
    text = f"{step.samples_per_second:,.0f} img/s  Pnet real {report['real']:+.2f} generated {report['fake']:+.2f}"
    if "generator_alpha" in report:
        text += f"  α {report['discriminator_alpha']:.2f} {report['generator_alpha']:.2f}"
    return text + f"  |pixel| ≤ {report['largest_pixel']:.1f}"


def epoch_line(row: Row) -> str:
    return " ".join(f"{shown_measure(name, row.get(name)):>10}" for name in EPOCH_COLUMNS)


def measure_table(measures: Row, title: str = "measures") -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for name, label in MEASURES.items():
        if measures.get(name) is not None:
            table.add_row(label, shown_measure(name, measures[name]))
    return table
