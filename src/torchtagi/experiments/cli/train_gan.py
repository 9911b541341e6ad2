"""`tagi train infogan-mnist | infogan-celeba | gan-mnist`: the same loop for a game."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from torchtagi.experiments.cli.shared import console, say
from torchtagi.experiments.cli.train import Lines, learn, load_sets, show_start
from torchtagi.experiments.gan.config import GanConfig, configure_gan
from torchtagi.experiments.gan.filmstrip import SAMPLES
from torchtagi.experiments.gan.tasks import find_gan_task
from torchtagi.experiments.gan.training import GanStep, GanTraining
from torchtagi.experiments.report.gan_page import MEASURES, shown_measure, write_gan_report
from torchtagi.experiments.report.plots import PlotsUnavailableError
from torchtagi.experiments.runs.config import with_changes
from torchtagi.experiments.runs.folder import Row, Run, RunError, check_free

LINE = "{:>6} {:>9} {:>6} {:>9} {:>9} {:>8} {:>8} {:>7} {:>7} {:>7} {:>8}"
HEADS = (
    "epoch",
    "Q acc.",
    "codes",
    "misread",
    "Fréchet",
    "P(fake)",
    "P(real)",
    "α of D",
    "α of G",
    "img/s",
    "seconds",
)


def train_gan(
    task: str,
    paper: bool,
    asked: dict[str, Any],
    knobs: list[str],
    run: Path | None,
    resume: bool,
    overwrite: bool,
    report: bool,
) -> None:
    """What `tagi train` does for a game."""
    given = {name: value for name, value in asked.items() if value is not None}
    if given.get("judge") == "none":
        given["judge"] = None
    given = with_changes(GanConfig, given, knobs)
    config = configure_gan(task, paper=paper, **given)
    folder = run or Path("runs") / config.name
    if resume:
        training = resumed(folder, task, paper, given)
    else:
        check_free(folder, overwrite)
        if config.judge not in (None, "quick"):
            Run.open(str(config.judge))  # a wrong name is told before anything is loaded
        sets = load_sets(find_gan_task(task).data)
        training = GanTraining(config, Run.create(folder, config.as_json(), overwrite), sets)
    by = f"rule {training.config.rule}" if training.config.method == "tagi" else "backprop by Adam"
    show_start(training, folder, by)
    if not training.done:
        learn(training, folder, Lines(LINE.format(*HEADS), progress_state, epoch_line))
    finish(training, folder, report)


def resumed(folder: Path, task: str, paper: bool, given: dict[str, Any]) -> GanTraining:
    """The run in `folder`, if what was asked for on the command line is what it is."""
    run = Run.open(folder)
    if run.config["task"] != task:
        raise RunError(f"{folder} was started with task {run.config['task']}, not {task}")
    before = GanConfig.from_json(run.config)
    if paper and not before.setting.startswith("paper"):
        raise RunError(f"{folder} was started without --paper")
    return GanTraining.resume(run, dataclasses.replace(before, **given), load_sets(find_gan_task(task).data))


def progress_state(step: GanStep) -> str:
    report = step.report
    text = f"{step.images_per_second:,.0f} img/s  P real {report.real:+.2f} fake {report.fake:+.2f}"
    if report.generator_alpha == report.generator_alpha:
        text += f"  α {report.discriminator_alpha:.2f} {report.generator_alpha:.2f}"
    return text + f"  |pixel| ≤ {report.largest_pixel:.1f}"


def epoch_line(row: Row) -> str:
    def number(name: str, form: str) -> str:
        value = row.get(name)
        return "–" if value is None or value != value else format(value, form)

    return LINE.format(
        row["epoch"],
        number("accuracy", ".3f"),
        number("own_codes", "d"),
        "–" if row.get("read_error") is None else f"{row['read_error']:.1f} %",
        number("frechet", ".2f"),
        number("fake_as_fake", ".3f"),
        number("real_as_fake", ".3f"),
        number("train_discriminator_alpha", ".2f"),
        number("train_generator_alpha", ".2f"),
        number("images_per_second", ",.0f"),
        number("seconds", ".0f"),
    )


def finish(training: GanTraining, folder: Path, report: bool) -> None:
    """The measures, and where to look further."""
    run = training.run
    assert run is not None
    row = run.metrics()[-1]
    console.print(measure_table(row, f"after {row['epoch']} epoch{'s' if row['epoch'] > 1 else ''}"))
    samples = folder / SAMPLES / f"epoch-{row['epoch']:04d}.png"
    console.print(f"samples: [bold]{escape(str(samples))}[/bold]")
    if not report:
        return
    try:
        page = write_gan_report(run, progress=say)
    except PlotsUnavailableError as error:
        console.print(f"no report page: {error}")
        return
    console.print(f"report page: [bold]{escape(str(page))}[/bold]")


def measure_table(measures: Row, title: str = "measures") -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    for name, label in MEASURES.items():
        if measures.get(name) is not None:
            table.add_row(label, shown_measure(name, measures[name]))
    return table
