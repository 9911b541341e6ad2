"""A lock between processes."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.1

if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def attempt(lock_file: Path) -> Iterator[bool]:
    """Hold `lock_file` for the duration of the block unless somebody else does; yields whether it is held.

    The operating system drops the lock when its holder dies, so a killed process never leaves others
    waiting, which a "lock file exists" convention would. The empty file itself stays: deleting it
    would let a third process lock a new file of the same name while the second holds the old one.
    """
    handle = os.open(lock_file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield _try_lock(handle)
    finally:
        os.close(handle)


@contextmanager
def exclusive(lock_file: Path) -> Iterator[None]:
    """Hold `lock_file` for the duration of the block, waiting for whoever has it; by polling, so that Ctrl-C works
    on every platform."""
    while True:
        with attempt(lock_file) as held:
            if held:
                yield
                return
        time.sleep(_POLL_SECONDS)
