"""Files that appear complete or not at all."""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchtagi.experiments.data.errors import DataError


def publish(finished: Path, destination: Path) -> None:
    """Move a finished file to its final name so that it survives a crash right afterwards."""
    with open(finished, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(finished, destination)
    if os.name == "posix":
        # The new name lives in the folder, which has its own buffer.
        folder = os.open(destination.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def replacing(destination: Path) -> Iterator[Path]:
    """Yield a temporary path beside `destination` that takes its name if the block succeeds.

    The temporary name is unique, so two processes that prepare the same file each publish a
    complete one and the later of two equal files stays.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        # Not mkstemp: its private mode would stick to the final file and shut other users out.
        temporary = destination.with_name(f".{destination.name}.{uuid.uuid4().hex}")
        try:
            yield temporary
            publish(temporary, destination)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DataError(f"no space left on the disk while writing {destination}") from error
        raise
