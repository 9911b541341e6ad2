"""The `tagi` command: parses, calls the library, shows."""

from __future__ import annotations

import importlib.util
import sys

NEEDED = ("typer", "rich", "PIL")


def main() -> None:
    """Run the command, or say in one line what is missing for it."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        names = ", ".join(missing).replace("PIL", "pillow")
        print(f"Error: the tagi command needs {names}: pip install 'torchtagi[cli]'", file=sys.stderr)
        raise SystemExit(1)
    from torchtagi.experiments.cli.app import run
    from torchtagi.experiments.cli.memory import keep_freed_memory

    keep_freed_memory()
    raise SystemExit(run())
