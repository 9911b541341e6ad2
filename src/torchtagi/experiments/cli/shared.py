"""What the commands share: the console, tables, and the options that several have."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchtagi.experiments.report.tables import Table as MeasuredTable
from torchtagi.experiments.runs.folder import without_nan
from torchtagi.nn.affine import PRECISIONS

console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)


def say(message: str) -> None:
    """A line of progress, for terminals only: pipes and logs want results."""
    if console.is_terminal:
        console.print(f"{message} …", style="dim")


def print_json(content: Any) -> None:
    print(json.dumps(without_nan(content), indent=1))


def new_table(*heads: str, title: str = "", texts: int = 1) -> Table:
    """Narrow enough for 80 columns; the first columns, so many as `texts`, are text, the others numbers."""
    table = Table(
        title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for index, head in enumerate(heads):
        table.add_column(head, justify="left" if index < texts else "right", no_wrap=not index, overflow="fold")
    return table


def value_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """What each number is, and the number."""
    table = new_table("", "", title=title)
    table.show_header = False
    for row in rows:
        table.add_row(*row)
    return table


def as_rich(table: MeasuredTable) -> Table:
    shown = new_table(*table.heads, title=table.title)
    for row in table.rows:
        shown.add_row(*(Text(cell.text, style="bold" if cell.best else "") for cell in row))
    return shown


def number(text: str, least: int = 1) -> Any:
    """An option that is a whole number; unlike typer's own, it names the value that is none."""

    def parse(value: str) -> int:
        try:
            found = int(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not a whole number") from None
        if found < least:
            raise typer.BadParameter(f"must be at least {least}, got {found}")
        return found

    return typer.Option(parser=parse, metavar="N", help=text)


def split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def folder_name(text: str) -> Path:
    """An empty name would be the current folder."""
    if not text.strip():
        raise typer.BadParameter("the folder's name is empty")
    return Path(text)


RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, as `tagi train` or `tagi gan` made it.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Epochs = Annotated[int | None, number("How often to go through the data.")]
BatchSize = Annotated[int | None, number("Images a step; 16 unless given.")]
Seed = Annotated[int | None, number("Of the prior's means and the order of the data; 0 unless given.", least=0)]
Samples = Annotated[int | None, number("Train on so many images only.")]
TestSamples = Annotated[int | None, number("Test on the first so many images only.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …; cpu unless given.")]
Threads = Annotated[int | None, number("CPU threads; results depend on it in the last bits.")]
Precision = Annotated[
    str | None,
    typer.Option(
        help=f"What convolutions multiply in: {' or '.join(PRECISIONS)}, which takes two thirds of the time on "
        "processors that have it."
    ),
]
OutFolder = Annotated[
    Path | None,
    typer.Option(
        "--out",
        parser=folder_name,
        metavar="DIR",
        help="The folder; one below runs/ unless given.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where the run stopped.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run if there is one.")]
ReportPage = Annotated[bool, typer.Option(help="Draw plots and write the report page at the end.")]
