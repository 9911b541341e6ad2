"""The `tagi` command: its subcommands, and whatever goes wrong in one line."""

import errno
import io
import os
import sys
from typing import Annotated, Any

import typer

from torchtagi import __version__, distributed
from torchtagi.experiments.cli.compare import compare, sweep
from torchtagi.experiments.cli.generate import generate
from torchtagi.experiments.cli.memory import keep_freed_memory
from torchtagi.experiments.cli.predict import predict
from torchtagi.experiments.cli.progress import Interrupted
from torchtagi.experiments.cli.regression import stream, uci
from torchtagi.experiments.cli.results import evaluate, record, report, results
from torchtagi.experiments.cli.train import gan, train

COMMANDS = (train, gan, evaluate, generate, predict, report, results, record, compare, sweep, uci, stream)
EXPECTED = (ValueError, RuntimeError, OSError, ArithmeticError)
"""What our own checks, the file system and torch raise: their message says enough."""
UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)
for command in COMMANDS:
    app.command()(command)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"torchtagi {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Bayesian neural networks by closed-form Gaussian inference (TAGI)."""
    if distributed.launched() and context.invoked_subcommand != "train":
        raise ValueError("torchrun is for tagi train: the other commands run in one process")
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: list[str] | None = None) -> int:
    """The exit code. An error is told in one line; `TAGI_DEBUG=1` shows where it came from."""
    try:
        code = app(sys.argv[1:] if arguments is None else arguments, prog_name="tagi", standalone_mode=False)
    except Interrupted as stop:
        return stop.code
    except UsageError as error:
        asked = error.ctx.command_path if error.ctx else "tagi"
        return fail(f"{error.format_message()} ({asked} --help)", code=2)
    except distributed.ElsewhereError:
        return 1  # it has been told where it happened
    except Exception as error:
        if os.environ.get("TAGI_DEBUG"):
            raise
        return fail(describe(error))
    if code == 130:  # typer's, after a KeyboardInterrupt
        return fail("stopped", code)
    return code if isinstance(code, int) else 0


def describe(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        remedy = "; free some and run the command again" if error.errno == errno.ENOSPC else ""
        return f"{where}{error.strerror}{remedy}"
    if isinstance(error, EXPECTED) and str(error).strip():
        return str(error)
    return f"{type(error).__name__}: {error} (unexpected; with TAGI_DEBUG=1 the same command shows where)"


def fail(message: str, code: int = 1) -> int:
    typer.secho(f"Error: {' '.join(message.split())}", fg=typer.colors.RED, err=True)
    return code


def main() -> None:
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # α and ± where the output is not UTF-8
    keep_freed_memory()
    code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as `head` does: nothing to say, and nothing left to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code)
