"""The `tagi` command: parses, calls the experiments, shows."""

from __future__ import annotations

import importlib.util
import io
import os
import sys

NEEDED = {"typer": "typer", "rich": "rich", "PIL": "pillow"}


def main() -> None:
    """Run the command, or say in one line what is missing for it."""
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        needs = ", ".join(missing)
        print(f"Error: the tagi command needs {needs}: pip install 'torchtagi[cli]'", file=sys.stderr)
        raise SystemExit(1)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # α and ± where the output is not UTF-8
    from torchtagi.experiments.cli.app import run
    from torchtagi.experiments.cli.memory import keep_freed_memory

    keep_freed_memory()
    code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone, as `head` does: nothing to say, and nothing left to flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code)
