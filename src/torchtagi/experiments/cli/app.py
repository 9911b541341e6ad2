"""All commands in one place."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import torchtagi
from torchtagi.experiments.cli import (
    compare,
    evaluate,
    gan,
    generate,
    predict,
    record,
    report,
    results,
    sweep,
    train,
)

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"torchtagi {torchtagi.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True)
    ] = False,
) -> None:
    """Bayesian neural networks by closed-form Gaussian inference (TAGI)."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command("train")(train.train)
app.command("gan")(gan.gan)
app.command("evaluate")(evaluate.evaluate)
app.command("generate")(generate.generate)
app.command("predict")(predict.predict)
app.command("report")(report.report)
app.command("results")(results.results)
app.command("record")(record.record)
app.command("compare")(compare.compare)
app.command("sweep")(sweep.sweep)


UsageError: Any = typer.BadParameter.__base__


def run(arguments: list[str] | None = None) -> int:
    """The exit code. An option that cannot be understood is told in one line, like every other mistake."""
    try:
        code = app(arguments, prog_name="tagi", standalone_mode=False)
    except UsageError as error:
        asked = error.ctx.command_path if error.ctx else "tagi"
        typer.secho(f"Error: {error.format_message()} ({asked} --help)", fg=typer.colors.RED, err=True)
        return 2
    return code if isinstance(code, int) else 0
