"""`tagi report`: one page about a run."""

from __future__ import annotations

from rich.markup import escape

from torchtagi.experiments.cli.shared import Offline, RunFolder, console, say
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.report.gan_page import write_gan_report
from torchtagi.experiments.report.page import write_report
from torchtagi.experiments.runs.folder import Run


def report(run: RunFolder, offline: Offline = False) -> None:
    """Write a self-contained HTML page with the plots of a run."""
    opened = Run.open(run)
    if opened.config["task"] in GAN_TASKS:
        page = write_gan_report(opened, progress=say)
    else:
        page = write_report(opened, download=not offline, progress=say)
    console.print(f"report page: [bold]{escape(str(page))}[/bold]")
