"""`tagi record`: keep a run's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from torchtagi.experiments.cli.shared import RunFolder, console
from torchtagi.experiments.compare.recording import record_folder
from torchtagi.experiments.compare.sweep import SWEEP
from torchtagi.experiments.gan.drawing import keep_drawings
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.runs.folder import STUDY, Run


def record(
    run: RunFolder,
    results: Annotated[Path, typer.Option(help="The folder of recorded runs.")] = Path("results"),
) -> None:
    """Copy a run's configuration, metrics and, of a GAN, drawings into the recorded results; or the outcome of a
    comparison or a sweep."""
    if (run / STUDY).is_file() or (run / SWEEP).is_file():
        target = record_folder(run, results)
    else:
        opened = Run.open(run)
        target = opened.record(results)
        if opened.config["task"] in GAN_TASKS:
            keep_drawings(opened, target)
    console.print(f"recorded in [bold]{escape(str(target))}[/bold]")
