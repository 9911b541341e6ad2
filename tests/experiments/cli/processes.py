"""The `tagi` command as a process of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import torchtagi

SOURCE = str(Path(torchtagi.__file__).parents[1])
# A test run in the background of a shell, or under nohup, hands down that Ctrl-C and hangups are to be ignored.
COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "signal.signal(signal.SIGHUP, signal.SIG_DFL);"
    "from torchtagi_command import main; main()"
)


def start(*arguments: str, path: str = SOURCE, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        env={**os.environ, "PYTHONPATH": path, "TAGI_OFFLINE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_until(process: subprocess.Popen, condition) -> None:
    """Until `condition()` holds of what a running process does."""
    deadline = time.monotonic() + 120
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"it did not come to it: {process.communicate()}")
        time.sleep(0.005)
