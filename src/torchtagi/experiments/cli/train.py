"""`tagi train`: the loop with a progress bar, a line an epoch, and a clean way out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from torchtagi.experiments.classify.config import TrainConfig, configure
from torchtagi.experiments.classify.tasks import TASKS, find_task
from torchtagi.experiments.classify.train import Step, Training
from torchtagi.experiments.cli.progress import Lines, learn, load_sets, show_page, show_start
from torchtagi.experiments.cli.shared import console, one_line_errors, say, whole_number
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.report.page import write_report
from torchtagi.experiments.runs.config import with_changes
from torchtagi.experiments.runs.folder import Row, Run, RunError, check_free
from torchtagi.inference.update import RULES
from torchtagi.nn.affine import PRECISIONS

EPOCH_LINE = "{:>6} {:>9} {:>8} {:>8} {:>9} {:>8} {:>6} {:>9} {:>8}"
EPOCH_HEADS = ("epoch", "error", "NLL", "ECE", "training", "noise", "α", "img/s", "seconds")
ARCHITECTURES = "; ".join(f"{task.name}: {', '.join(task.networks)}" for task in TASKS.values())


@one_line_errors
def train(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")],
    arch: Annotated[str | None, typer.Option(help=f"The network. {ARCHITECTURES}.")] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="The paper's setting: rule paper, σ_V from 1 by 0.975 an epoch, 50 epochs."),
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="How often to go through the data.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Images a step; 16 unless given.")
    ] = None,
    noise: Annotated[
        str | None, typer.Option(help="Observation noise σ_V: a number, or `learned`.", metavar="STD|learned")
    ] = None,
    rule: Annotated[str | None, typer.Option(help=f"The update's rule: {', '.join(RULES)}.")] = None,
    augment: Annotated[
        bool | None,
        typer.Option(
            "--augment/--no-augment",
            help="Vary images at random: digits are shifted, CIFAR-10 is cropped and mirrored. Our default does so "
            "from the second epoch on, the paper for ResNet18.",
            show_default=False,
        ),
    ] = None,
    norm_first: Annotated[
        bool | None,
        typer.Option(
            "--norm-first/--norm-last",
            help="Norm layers before their ReLU, or behind it as in the authors' networks, the default.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            parser=whole_number, metavar="N", help="Of the prior's means and the order of the data; 0 unless given."
        ),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Train on the first so many images only.")
    ] = None,
    test_samples: Annotated[
        int | None, typer.Option(parser=whole_number, metavar="N", help="Test on the first so many images only.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, …; cpu unless given.")] = None,
    threads: Annotated[
        int | None,
        typer.Option(parser=whole_number, metavar="N", help="CPU threads; results depend on it in the last bits."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help=f"What convolutions multiply in: {' or '.join(PRECISIONS)}, which takes two thirds of the time on "
            "processors that have it."
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="The run folder; runs/<task>-<network>-<setting>-seed<k> unless given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run if there is one.")] = False,
    report: Annotated[bool, typer.Option(help="Draw plots and write the report page at the end.")] = True,
    knobs: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any field of the configuration; may be repeated."),
    ] = None,
) -> None:
    """Train a classifier; Ctrl-C stops it cleanly, --resume continues it exactly."""
    if resume and overwrite:
        raise RunError("--resume continues a run, --overwrite replaces it: give one of them")
    if task in GAN_TASKS:
        raise ValueError(f"{task} is a GAN: tagi gan {task}")
    given = {
        "epochs": epochs,
        "batch_size": batch_size,
        "rule": rule,
        "augment": augment,
        "norm_first": norm_first,
        "seed": seed,
        "device": device,
        "threads": threads,
        "precision": precision,
        "samples": samples,
        "test_samples": test_samples,
        **parse_noise(noise),
    }
    given = {name: value for name, value in given.items() if value is not None}
    given = with_changes(TrainConfig, given, knobs or [])
    config = configure(task, arch, paper=paper, **given)
    folder = run or Path("runs") / config.name
    if resume:
        named = {} if arch is None else {"network": arch}
        training = resumed(folder, task, paper, {**given, **named})
    else:
        # the folder's refusal comes before a long download, the folder itself after it
        check_free(folder, overwrite)
        sets = load_sets(task)
        training = Training(config, Run.create(folder, config.as_json(), overwrite), sets)
    show_start(training, folder, f"rule {training.config.rule}")
    lines = Lines(EPOCH_LINE.format(*EPOCH_HEADS), progress_state, epoch_line)
    learn(training, lines, f"tagi train {task} --run {folder} --resume")
    finish(training, report)


def resumed(folder: Path, task: str, paper: bool, given: dict[str, Any]) -> Training:
    """The run in `folder`, if what was asked for on the command line is what it is."""
    run = Run.open(folder)
    if run.method != "tagi":
        raise RunError(f"{folder} is a run of {run.method}; tagi compare continues it")
    before = TrainConfig.from_json(run.config)
    if before.task != task:
        raise RunError(f"{folder} was started with task {before.task}, not {task}")
    if paper and not before.setting.startswith("paper"):
        raise RunError(f"{folder} was started without --paper")
    return Training.resume(run, dataclasses.replace(before, **given), load_sets(task))


def parse_noise(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    if text == "learned":
        return {"learn_noise": True, "noise_std": 0.01, "noise_decay": 1.0}
    try:
        return {"learn_noise": False, "noise_std": float(text)}
    except ValueError:
        raise ValueError(f"--noise must be a number or `learned`, got {text!r}") from None


def progress_state(step: Step) -> str:
    return (
        f"{step.images_per_second:,.0f} img/s  error {step.error:.2f} %  "
        f"noise {step.report['noise_std']:.3f}  α {step.report['alpha']:.2f}"
    )


def epoch_line(row: Row) -> str:
    return EPOCH_LINE.format(
        row["epoch"],
        *((f"{row['error']:.2f} %", f"{row['nll']:.4f}", f"{row['ece']:.4f}") if "error" in row else "–––"),
        f"{row['train_error']:.2f} %",
        f"{row['noise_std']:.3f}",
        f"{row['alpha']:.2f}",
        f"{row['images_per_second']:,.0f}",
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
