"""A writer of the idx format, independent of the reader under test."""

import struct

import numpy as np

CODES = {"u1": 0x08, "i4": 0x0C, "f4": 0x0D}


def encode(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()
