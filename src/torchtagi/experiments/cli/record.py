"""`tagi record`: keep a run's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.cli.shared import RunFolder, console
from torchtagi.experiments.compare import collect, collect_sweep
from torchtagi.experiments.compare.runner import COMPARISON, SWEEP, read_study, reading, write_study
from torchtagi.experiments.gan.drawing import keep_drawings
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.runs.folder import Run


def record(
    run: RunFolder,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of recorded runs.")] = Path("results"),
) -> None:
    """Copy a run's configuration, metrics and, of a GAN, drawings into the recorded results; or the outcome of a
    comparison or a sweep."""
    if (run / COMPARISON).is_file() or (run / SWEEP).is_file():
        target = record_study(run, out)
    else:
        opened = Run.open(run)
        with reading(run):
            target = opened.record(out)
            if opened.config["task"] in GAN_TASKS:
                keep_drawings(opened, target)
    console.print(f"recorded in [bold]{escape(str(target))}[/bold]")


def record_study(folder: Path, results: Path) -> Path:
    """What came of a comparison's or sweep's runs, and the pictures; of a comparison it can be gone on with."""
    target = results / folder.resolve().name
    if (folder / COMPARISON).is_file():
        write_study(target, COMPARISON, collect(folder))
    else:
        write_study(target, SWEEP, {**read_study(folder, SWEEP), "rows": collect_sweep(folder)})
    for picture in sorted((folder / "plots").glob("*.png")):
        write_atomically(target / "plots" / picture.name, picture.read_bytes())
    return target
