"""`tagi record`: keep a run's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from torchtagi.cli.shared import RunFolder, console, one_line_errors
from torchtagi.gan.filmstrip import keep_drawings
from torchtagi.gan.tasks import GAN_TASKS
from torchtagi.runs import Run


@one_line_errors
def record(
    run: RunFolder,
    results: Annotated[Path, typer.Option(help="The folder of recorded runs.")] = Path("results"),
) -> None:
    """Copy a run's configuration and metrics, and what a GAN drew, into the recorded results."""
    opened = Run.open(run)
    target = opened.record(results)
    if opened.config["task"] in GAN_TASKS:
        keep_drawings(opened, target)
    console.print(f"recorded in [bold]{escape(str(target))}[/bold]")
