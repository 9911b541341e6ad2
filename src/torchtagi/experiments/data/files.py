"""Where data sets are looked for, what is said when one is missing, and arrays in numpy's own files."""

import difflib
import errno
import importlib.util
import io
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from torchtagi.checkpoint import write_atomically

FOR_TERMINALS: Any = {"leave": False, "disable": None}  # a bar of tqdm that others do not see

SIDE = 32
EXTRAS = {"sklearn": ("scikit-learn", "sklearn"), "ivon": ("ivon-opt", "baselines")}

T = TypeVar("T")


class DataError(RuntimeError):
    """Data are missing, cannot be fetched, or are not what their name promises.

    The message names the file and, where a person can help, says where it comes from and where to put it.
    """


def find_named(kind: str, name: str, known: Mapping[str, T]) -> T:
    """What has this name; an error lists the names there are, and the one that was probably meant."""
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"there is no {kind} {name!r}; there are {', '.join(known)}{meant}")


def find_each(kind: str, names: Iterable[str], known: Mapping[str, T]) -> dict[str, T]:
    """What has these names, each once."""
    found = {name: find_named(kind, name, known) for name in names}
    if not found:
        raise ValueError(f"name at least one {kind}; there are {', '.join(known)}")
    return found


def check_installed(name: str, package: str | None) -> None:
    """Whether there is the package that `name` needs, if it needs one."""
    if package and importlib.util.find_spec(package) is None:
        title, extra = EXTRAS[package]
        raise ValueError(f"{name} needs {title}: pip install 'torchtagi[{extra}]', or leave it out")


def cache_folder() -> Path:
    """The user's cache folder for data sets, following the platform's convention."""
    windows = sys.platform == "win32"
    base = os.environ.get("LOCALAPPDATA" if windows else "XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ("AppData/Local" if windows else ".cache")) / "torchtagi"


@dataclass(frozen=True)
class Locations:
    """Folders to search, best first; new files are written to the cache, the last of them."""

    search: tuple[Path, ...]
    may_download: bool

    @classmethod
    def resolve(cls, download: bool = True) -> "Locations":
        """`$TAGI_DATA`, then the cache folder.

        Nothing is written to `$TAGI_DATA`: it is often a collection shared between users.
        """
        collection = os.environ.get("TAGI_DATA")
        if collection and not Path(collection).is_dir():
            problem = "is a file" if Path(collection).exists() else "does not exist"
            raise DataError(
                f"TAGI_DATA must name a folder of data sets; {collection} {problem}: correct or unset it"
            )
        offline = os.environ.get("TAGI_OFFLINE", "").strip().lower() not in ("", "0", "false", "no")
        folders = (Path(collection), cache_folder()) if collection else (cache_folder(),)
        return cls(folders, download and not offline)

    @property
    def cache(self) -> Path:
        return self.search[-1]

    def find(self, *names: str) -> Path | None:
        """The first folder that holds all of these files."""
        return next((root for root in self.search if all((root / name).is_file() for name in names)), None)

    def missing(self, what: str, remedy: str) -> DataError:
        """Of a set that has to be brought by hand."""
        searched = ", ".join(str(folder) for folder in self.search)
        return DataError(f"{what} is missing (searched: {searched}) and cannot be downloaded for you: {remedy}")


def reason(error: OSError) -> str:
    """Why a file could not be written, with what helps against it."""
    if error.errno == errno.ENOSPC:
        return "no space left on the disk; free some, or move the cache by XDG_CACHE_HOME"
    return str(error)


def write_array(path: Path, array: npt.NDArray[Any]) -> None:
    """The whole file or none of it."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    try:
        write_atomically(path, buffer.getvalue())
    except OSError as error:
        raise DataError(f"{path} cannot be written: {reason(error)}") from error


def read_array(file: Path) -> npt.NDArray[Any]:
    """The array in a `.npy` file, left on disk until used; pickles are refused, so it need not be trusted."""
    try:
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{file} cannot be read as a .npy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{file} is an archive of several arrays, expected a single .npy array")
    return array


def read_images(file: Path) -> npt.NDArray[np.uint8]:
    """uint8 images (N, 3, 32, 32), left on disk until used: the whole of CelebA is 600 MB."""
    images = read_array(file)
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (3, SIDE, SIDE) or not len(images):
        expected = f"uint8 images of shape (N, 3, {SIDE}, {SIDE}), at least one"
        raise DataError(f"{file} must hold {expected}, got {images.dtype} {images.shape}")
    return images
