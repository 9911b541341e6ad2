"""The idx format of the MNIST family, plain or gzipped.

A file is the bytes 0, 0, type code, number of dimensions; then each dimension as a big-endian 32-bit
integer; then the values, big-endian, last dimension fastest.
"""

import gzip
import math
import struct
import zlib
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtagi.experiments.data.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def parse_idx(content: bytes, origin: str) -> npt.NDArray[Any]:
    """The array in `content`; `origin` names the file in error messages."""
    if len(content) < 4 or content[:2] != b"\0\0":
        raise DataError(f"{origin} is not an idx file: it starts with {content[:4]!r}")
    code, n_dimensions = content[2], content[3]
    if code not in _TYPES:
        raise DataError(f"{origin} is not an idx file: unknown type code 0x{code:02x}")
    if n_dimensions == 0:
        raise DataError(f"{origin} is not an idx file: it has no dimensions")
    header = 4 + 4 * n_dimensions
    if len(content) < header:
        raise DataError(f"{origin} is truncated: {len(content)} bytes, its header alone needs {header}")
    shape = struct.unpack(f">{n_dimensions}I", content[4:header])
    dtype = np.dtype(_TYPES[code])
    expected = header + math.prod(shape) * dtype.itemsize
    if len(content) != expected:
        problem = "is truncated" if len(content) < expected else "has bytes left over"
        raise DataError(f"{origin} {problem}: {len(content)} bytes, shape {shape} needs {expected}")
    return np.frombuffer(content, dtype, offset=header).reshape(shape).astype(dtype.newbyteorder("="))


def read_idx(file: Traversable) -> npt.NDArray[Any]:
    """The array in `file`, decompressed first if its content is gzip, whatever its name."""
    try:
        content = file.read_bytes()
        if content[:2] == _GZIP_MAGIC:
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    return parse_idx(content, str(file))
