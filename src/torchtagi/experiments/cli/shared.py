"""What the commands share: the console, the options that several have, and errors in one line."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from torchtagi.nn.affine import PRECISIONS

console = Console(highlight=False, soft_wrap=True)

P = ParamSpec("P")
T = TypeVar("T")

UsageError: Any = typer.BadParameter.__base__
EXPECTED = (ValueError, RuntimeError, OSError, ArithmeticError)
"""What our own checks, the file system and torch raise: their message says enough."""


def whole_number(text: str) -> int:
    """For options: unlike typer's own parser, it names the value that is none."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def folder_name(text: str) -> Path:
    """For options: an empty name would be the current folder."""
    if not text.strip():
        raise typer.BadParameter("the folder's name is empty")
    return Path(text)


def number_option(text: str) -> Any:
    """A whole number as an option."""
    return typer.Option(parser=whole_number, metavar="N", help=text)


RunFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, as `tagi train` or `tagi gan` made it.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Do not download the out-of-distribution set if it is absent.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Epochs = Annotated[int | None, number_option("How often to go through the data.")]
BatchSize = Annotated[int | None, number_option("Images a step; 16 unless given.")]
Seed = Annotated[int | None, number_option("Of the prior's means and the order of the data; 0 unless given.")]
Samples = Annotated[int | None, number_option("Train on the first so many images only.")]
TestSamples = Annotated[int | None, number_option("Test on the first so many images only.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …; cpu unless given.")]
Threads = Annotated[int | None, number_option("CPU threads; results depend on it in the last bits.")]
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
        help="The run folder; one named after the run below runs/ unless given.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where the run stopped.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the run if there is one.")]
ReportPage = Annotated[bool, typer.Option(help="Draw plots and write the report page at the end.")]


def one_line_errors(command: Callable[P, T]) -> Callable[P, T]:
    """Every error is told in one line and by the exit code; `TAGI_DEBUG=1` shows where it came from."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except (typer.Exit, BrokenPipeError):
            raise
        except UsageError as error:
            asked = error.ctx.command_path if error.ctx else "tagi"
            fail(f"{error.format_message()} ({asked} --help)", code=2)
        except (KeyboardInterrupt, typer.Abort):
            fail("stopped", code=130)
        except Exception as error:
            if os.environ.get("TAGI_DEBUG"):
                raise
            fail(describe(error))

    return guarded


def describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        remedy = "; free some and run the command again" if error.errno == errno.ENOSPC else ""
        return f"{where}{error.strerror}{remedy}"
    if isinstance(error, EXPECTED) and str(error).strip():
        return str(error)
    return f"{type(error).__name__}: {error} (unexpected; with TAGI_DEBUG=1 the same command shows where)"


def fail(message: str, code: int = 1) -> NoReturn:
    typer.secho(f"Error: {' '.join(message.split())}", fg=typer.colors.RED, err=True)
    raise typer.Exit(code)


def say(message: str) -> None:
    """A line of progress, for terminals only: pipes and logs want results."""
    if console.is_terminal:
        console.print(f"[dim]{escape(message)} …[/dim]")
