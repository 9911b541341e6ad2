"""The `tagi` command's first step.

It stands beside the package because importing any part of that imports torch, which takes a second, and Ctrl-C
within it must not end in a traceback.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def leave(number: int, frame: FrameType | None) -> None:
    """Not by a KeyboardInterrupt: extension modules may swallow it, or make it an ImportError."""
    os.write(2, b"Error: stopped\n")
    os._exit(128 + number)


def main() -> None:
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # not where Ctrl-C is to be ignored, as in the background of a shell
        signal.signal(signal.SIGINT, leave)
    from torchtagi.experiments.cli import main as command

    signal.signal(signal.SIGINT, before)
    command()


if __name__ == "__main__":
    main()
