"""All commands in one place; the command NAME is the function NAME in the module NAME.

A module is imported when its command is called. The list in `tagi --help` has their docstrings from the sources.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from torchtagi import __version__
from torchtagi.experiments.cli.shared import one_line_errors

COMMANDS = ("train", "gan", "evaluate", "generate", "predict", "report", "results", "record", "compare", "sweep")


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"torchtagi {__version__}")
        raise typer.Exit


def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Bayesian neural networks by closed-form Gaussian inference (TAGI)."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def docstring(command: str) -> str | None:
    """Of a command's function, without importing it."""
    tree = ast.parse(Path(__file__).with_name(f"{command}.py").read_text(encoding="utf-8"))
    found = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == command)
    return ast.get_docstring(next(found))


def build(called: str | None) -> typer.Typer:
    """The application, of whose commands only `called` is imported."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(options)
    for name in COMMANDS:
        if name == called:
            module = importlib.import_module(f"torchtagi.experiments.cli.{name}")
            app.command(name)(one_line_errors(getattr(module, name)))
        else:
            app.command(name, help=docstring(name))(lambda: None)
    return app


def call(arguments: list[str]) -> Any:
    called = next((word for word in arguments if not word.startswith("-")), None)
    return build(called)(arguments, prog_name="tagi", standalone_mode=False)


def run(arguments: list[str] | None = None) -> int:
    """The exit code. Whatever goes wrong is told in one line."""
    try:
        code = one_line_errors(call)(sys.argv[1:] if arguments is None else arguments)
    except typer.Exit as end:
        return end.exit_code
    return code if isinstance(code, int) else 0
