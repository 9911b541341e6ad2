"""Freed memory is used again: pages are not fetched anew from the system."""

import os
import platform
import subprocess
import sys

import pytest

from torchtagi.experiments.cli import memory

SCRIPT = """
import resource, runpy, sys

asked = runpy.run_path(sys.argv[2])["keep_freed_memory"]() if sys.argv[1] == "keep" else None
faults = []
for _ in range(8):
    b"x" * (1 << 26)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(asked, faults[-1] - faults[2])
"""

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked")


def faults(choice: str, **environment: str) -> tuple[str, int]:
    """What was answered, and the pages that five blocks of 64 MB took anew after three before them."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", SCRIPT, choice, memory.__file__]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True)
    asked, count = done.stdout.split()
    return asked, int(count)


@glibc
def test_a_block_takes_the_pages_of_the_last_one() -> None:
    asked, kept = faults("keep")
    assert asked == "True"
    assert 10 * kept < faults("leave")[1]


@glibc
def test_what_the_user_set_is_left_alone() -> None:
    assert faults("keep", MALLOC_TOP_PAD_="0")[0] == "False"
