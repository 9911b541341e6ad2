"""`tagi report`: one page about a run."""

from __future__ import annotations

from rich.markup import escape

from torchtagi.cli.shared import Offline, RunFolder, console, one_line_errors, say
from torchtagi.report import write_report
from torchtagi.runs import Run


@one_line_errors
def report(run: RunFolder, offline: Offline = False) -> None:
    """Write a self-contained HTML page with the plots of a run."""
    page = write_report(Run.open(run), download=not offline, progress=say)
    console.print(f"report page: [bold]{escape(str(page))}[/bold]")
