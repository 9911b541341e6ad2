"""From CelebA's official aligned JPEGs (178 × 218) to one array of 32 × 32 faces.

The central 148 × 148 pixels are kept, the usual face crop: the alignment puts the face there, and the
rest is background. They are resized with Lanczos, which filters before it samples.
"""

import hashlib
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from torchtagi.experiments.data.arrays import SIDE
from torchtagi.experiments.data.atomic import replacing
from torchtagi.experiments.data.errors import DataError
from torchtagi.experiments.data.locations import Locations

FOLDER = "img_align_celeba"
_SIZE = (178, 218)
_CROP = 148
_PROGRESS_EVERY = 1000

_ReadJpeg = Callable[[str], bytes]


def find_jpegs(folder: Path) -> Path | None:
    """The official images in `folder`, as a folder or as the zip file they are published in."""
    for source in (folder / FOLDER, folder / f"{FOLDER}.zip"):
        if source.exists():
            return source
    return None


def prepare(source: Path, places: Locations) -> Path:
    """Convert `source` once and return the folder of the finished arrays.

    They go beside the source, or into the download folder under a name derived from the source's
    path where the source is read-only. `images.npy` comes last: whoever sees it sees the rest.
    """
    folder = source.parent
    if not os.access(folder, os.W_OK):
        folder = places.target / f"celeba-{hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:12]}"
    if (folder / "images.npy").is_file():
        return folder
    with _open(source) as (names, read):
        if not names:
            raise DataError(f"{source} holds no .jpg files")
        partition = _read_partition(source.parent / "list_eval_partition.txt", names)
        if partition is not None:
            with replacing(folder / "partition.npy") as temporary, open(temporary, "wb") as file:
                np.save(file, partition)
        with replacing(folder / "images.npy") as temporary:
            _convert(names, read, temporary, places)
    return folder


def _convert(names: list[str], read: _ReadJpeg, destination: Path, places: Locations) -> None:
    images = np.lib.format.open_memmap(destination, "w+", np.uint8, (len(names), 3, SIDE, SIDE))
    for index, name in enumerate(names):
        if places.progress and index % _PROGRESS_EVERY == 0:
            places.progress(index, len(names))
        images[index] = shrink(read(name), name)
    images.flush()
    if places.progress:
        places.progress(len(names), len(names))


def shrink(jpeg: bytes, origin: str) -> npt.NDArray[np.uint8]:
    """The face in one aligned image, uint8 (3, 32, 32)."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("reading CelebA's JPEG files needs Pillow: pip install 'torchtagi[cli]'") from error
    try:
        with Image.open(io.BytesIO(jpeg)) as image:
            if image.size != _SIZE:
                raise DataError(f"{origin} is {image.size[0]} × {image.size[1]}, expected 178 × 218")
            left, top = (_SIZE[0] - _CROP) // 2, (_SIZE[1] - _CROP) // 2
            # Cropped first: resizing a box of the image would let its filter reach outside.
            face = image.convert("RGB").crop((left, top, left + _CROP, top + _CROP))
            face = face.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    except OSError as error:
        raise DataError(f"{origin} is not a readable JPEG: {error}") from error
    return np.asarray(face).transpose(2, 0, 1)


@contextmanager
def _open(source: Path) -> Iterator[tuple[list[str], _ReadJpeg]]:
    """The sorted names of the images in a folder or zip file, and a function that reads one."""
    if source.is_dir():
        yield (
            sorted(path.name for path in source.glob("*.jpg")),
            lambda name: (source / name).read_bytes(),
        )
        return
    try:
        with zipfile.ZipFile(source) as archive:
            yield sorted(name for name in archive.namelist() if name.endswith(".jpg")), archive.read
    except (zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{source} is not a complete zip file: {error}") from error


def _read_partition(file: Path, names: list[str]) -> npt.NDArray[np.uint8] | None:
    """The official split of `names`, or None where the list is absent."""
    if not file.is_file():
        return None
    part_of: dict[str, int] = {}
    for line in file.read_text(errors="replace").splitlines():
        fields = line.split()
        if len(fields) != 2 or fields[1] not in ("0", "1", "2"):
            raise DataError(f"{file}: expected 'name 0|1|2', got {line!r}")
        part_of[fields[0]] = int(fields[1])
    files = [name.rpartition("/")[2] for name in names]
    unknown = next((name for name in files if name not in part_of), None)
    if unknown is not None:
        raise DataError(f"{file} does not list {unknown}")
    return np.array([part_of[name] for name in files], np.uint8)
