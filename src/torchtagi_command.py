"""The `tagi` command's first step.

It stands beside the package because importing any part of that imports torch, which takes a second, and Ctrl-C
within it must not end in a traceback.
"""

import importlib.util
import os
import signal
import sys
from types import FrameType

NEEDED = {"typer": "typer", "rich": "rich", "PIL": "pillow", "matplotlib": "matplotlib", "filelock": "filelock"}


def leave(number: int, frame: FrameType | None) -> None:
    """Not by a KeyboardInterrupt: extension modules may swallow it, or make it an ImportError."""
    os.write(2, b"Error: stopped\n")
    os._exit(128 + number)


def main() -> None:
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        needs = ", ".join(missing)
        print(f"Error: the tagi command needs {needs}: pip install 'torchtagi[cli]'", file=sys.stderr)
        raise SystemExit(1)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where Ctrl-C is to be ignored, as in the background of a shell
        signal.signal(signal.SIGINT, leave)
    from torchtagi.experiments.cli.app import main as command

    signal.signal(signal.SIGINT, before)
    command()


if __name__ == "__main__":
    main()
