"""Arrays in numpy's own files, which need not be trusted: pickles are refused."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtagi.experiments.data.errors import DataError

SIDE = 32


def read_array(file: Path, *, mapped: bool = False) -> npt.NDArray[Any]:
    """The array in a `.npy` file, left on disk until used if `mapped`."""
    try:
        array = np.load(file, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{file} cannot be read as a .npy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{file} is an archive of several arrays, expected a single .npy array")
    return array


def read_archive(file: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays in a `.npz` file by name."""
    try:
        # Opened here because numpy leaves a damaged file open.
        with open(file, "rb") as content:
            archive = np.load(content, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DataError(f"{file} is a single array, expected a .npz archive")
            with archive:
                return {name: archive[name] for name in archive.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file} cannot be read as a .npz archive: {error}") from error


def read_images(file: Path) -> npt.NDArray[np.uint8]:
    """uint8 images (N, 3, 32, 32), left on disk until used: the whole of CelebA is 600 MB."""
    images = read_array(file, mapped=True)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (3, SIDE, SIDE):
        raise DataError(
            f"{file} must hold uint8 images of shape (N, 3, {SIDE}, {SIDE}), got {images.dtype} {images.shape}"
        )
    if len(images) == 0:
        raise DataError(f"{file} holds no images")
    return images
