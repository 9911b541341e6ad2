"""`tagi train`: a classifier of images, with a progress bar, a line an epoch, and a clean way out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from torchtagi.experiments.classify.config import TrainConfig, configure
from torchtagi.experiments.classify.tasks import TASKS, find_task
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.cli.progress import Lines, load_sets, show_page, show_progress, show_start
from torchtagi.experiments.cli.shared import (
    BatchSize,
    Device,
    Epochs,
    OutFolder,
    Overwrite,
    Precision,
    ReportPage,
    Resume,
    Samples,
    Seed,
    TestSamples,
    Threads,
    console,
    say,
)
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.report.page import write_report
from torchtagi.experiments.runs.folder import Row, Run, RunError, check_free, locked
from torchtagi.fitting import Step

EPOCH_LINE = "{:>6} {:>9} {:>8} {:>8} {:>9} {:>8} {:>6} {:>9} {:>8}"
EPOCH_HEADS = ("epoch", "error", "NLL", "ECE", "training", "noise", "α", "img/s", "seconds")
ARCHITECTURES = "; ".join(f"{task.name}: {', '.join(task.networks)}" for task in TASKS.values())


def train(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")],
    arch: Annotated[str | None, typer.Option(help=f"The network. {ARCHITECTURES}.")] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="The paper's setting: its update, σ_V from 1 by 0.975 an epoch, 50 epochs."),
    ] = False,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    noise: Annotated[
        float | None, typer.Option(metavar="STD", help="The labels' noise σ_V; learned unless given.")
    ] = None,
    augment: Annotated[
        bool | None,
        typer.Option(
            "--augment/--no-augment",
            help="Vary images at random from the second epoch on: digits are shifted, CIFAR-10 is cropped and "
            "mirrored. On unless given; with --paper for ResNet18 only, from the first epoch on.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = None,
    samples: Samples = None,
    test_samples: TestSamples = None,
    device: Device = None,
    threads: Threads = None,
    precision: Precision = None,
    out: OutFolder = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    report: ReportPage = True,
) -> None:
    """Train a classifier; Ctrl-C stops it cleanly, --resume continues it exactly."""
    if resume and overwrite:
        raise RunError("--resume continues a run, --overwrite replaces it: give one of them")
    if task in GAN_TASKS:
        raise ValueError(f"{task} is a GAN: tagi gan {task}")
    given: dict[str, Any] = {
        **{"epochs": epochs, "batch_size": batch_size, "noise": noise, "augment": augment, "seed": seed},
        **{"device": device, "threads": threads, "precision": precision, "samples": samples},
        "test_samples": test_samples,
    }
    given = {name: value for name, value in given.items() if value is not None}
    config = configure(task, arch, paper=paper, **given)
    folder = out or Path("runs") / config.name
    with locked(folder):
        if resume:
            training = resumed(folder, task, paper, given if arch is None else {**given, "network": arch})
        else:
            # the folder's refusal comes before a long download, the folder itself after it
            check_free(folder, overwrite)
            sets = load_sets(task)
            training = Training(config, Run.create(folder, config.as_json(), overwrite), sets)
        show_start(training, folder, "the paper's inference" if training.config.paper else "nothing to tune")
        lines = Lines(EPOCH_LINE.format(*EPOCH_HEADS), progress_state, epoch_line)
        show_progress(training, lines, f"tagi train {task} --out {folder} --resume")
        finish(training, report)


def resumed(folder: Path, task: str, paper: bool, given: dict[str, Any]) -> Training:
    """The run in `folder`, if what was asked for on the command line is what it is."""
    run = Run.open(folder)
    if run.method != "tagi":
        raise RunError(f"{folder} is a run of {run.method}; tagi compare continues it")
    before = TrainConfig.from_json(run.config)
    if before.task != task:
        raise RunError(f"{folder} was started with task {before.task}, not {task}")
    if paper and not before.paper:
        raise RunError(f"{folder} was started without --paper")
    return Training.resume(run, dataclasses.replace(before, **given), load_sets(task))


def progress_state(step: Step) -> str:
    return f"{step.samples_per_second:,.0f} img/s  error {step.error:.2f} %  α {step.report['alpha']:.2f}"


def epoch_line(row: Row) -> str:
    return EPOCH_LINE.format(
        row["epoch"],
        *((f"{row['error']:.2f} %", f"{row['nll']:.4f}", f"{row['ece']:.4f}") if "error" in row else "–––"),
        f"{row['train_error']:.2f} %",
        f"{row['noise_std']:.3f}",
        f"{row['alpha']:.2f}",
        f"{row['samples_per_second']:,.0f}",
        f"{row['seconds']:.0f}",
    )


def finish(training: Training, report: bool) -> None:
    """The result beside the paper's, and where to look further."""
    run = training.run
    assert run is not None
    show_result(training.config, run.metrics()[-1])
    if report:
        show_page(lambda: write_report(run, progress=say))


def show_result(config: TrainConfig, row: Row) -> None:
    paper = find_task(config.task).network(config.network).paper_error
    table = Table(
        title=f"test set after {row['epoch']} epoch{'s' if row['epoch'] > 1 else ''}", title_justify="left"
    )
    table.add_column("")
    table.add_column("this run", justify="right")
    for epoch in paper:
        table.add_column(f"paper, e={epoch}", justify="right")
    blank = ["–"] * len(paper)
    table.add_row("error", f"[bold]{row['error']:.2f} %[/bold]", *(f"{error:.2f} %" for error in paper.values()))
    table.add_row("negative log-likelihood", f"{row['nll']:.4f}", *blank)
    table.add_row("expected calibration error", f"{row['ece']:.4f}", *blank)
    table.add_row("training time of the last epoch", f"{row['seconds']:.0f} s", *blank)
    console.print(table)
