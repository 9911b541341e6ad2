"""CIFAR-10 in its official binary version: records of one label byte and 3 × 32 × 32 pixel bytes."""

import gzip
import hashlib
import tarfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from torchtagi.experiments.data.download import RemoteFile, obtain
from torchtagi.experiments.data.files import DataError, Locations, write_file
from torchtagi.experiments.data.image_set import Preprocessing, StoredImages

# Per-channel means of the 50,000 training images scaled to [0, 1].
CIFAR10_MEAN = (0.4913996786152028, 0.4821584083946074, 0.4465309144454644)
CIFAR10_PREPROCESSING = Preprocessing.centred(*CIFAR10_MEAN)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

ARCHIVE_NAME = "cifar-10-binary.tar.gz"
ARCHIVE = RemoteFile(f"https://www.cs.toronto.edu/~kriz/{ARCHIVE_NAME}", "md5:c32a1d4ab5d03f1284b67883e8d87530")
FOLDER = "cifar-10-batches-bin"
MEMBER_MD5 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
_RECORDS = 10_000
_RECORD_BYTES = 1 + 3 * 32 * 32


def read_cifar10(split: str, places: Locations) -> StoredImages:
    """CIFAR-10 from the searched folders (unpacked or as the archive), or else from its official site."""
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] if split == "train" else ["test_batch.bin"]
    folder = _find(names, places)
    records = np.concatenate([_read_batch(folder / name) for name in names])
    return StoredImages(
        images=torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32)),
        labels=torch.from_numpy(records[:, 0].astype(np.int64)),
        classes=CIFAR10_CLASSES,
        preprocessing=CIFAR10_PREPROCESSING,
    )


def _find(names: list[str], places: Locations) -> Path:
    """The folder of the batches, unpacked first if need be."""
    root = places.find(*(f"{FOLDER}/{name}" for name in names))
    if root is not None:
        return root / FOLDER
    holder = places.find(ARCHIVE_NAME)
    if holder is None:
        note = "".join(_lacks(root / FOLDER, names) for root in places.search)
        # The archive stays: another process may be reading it, and it is the copy whose checksum is published.
        archive = obtain(ARCHIVE, places.cache / ARCHIVE_NAME, places, note)
    else:
        archive = holder / ARCHIVE_NAME
    extract(archive, places.cache / FOLDER, MEMBER_MD5)
    return places.cache / FOLDER


def _lacks(folder: Path, names: list[str]) -> str:
    absent = [name for name in names if not (folder / name).is_file()]
    return f"{folder} lacks {', '.join(absent)}; " if folder.is_dir() else ""


def extract(archive: Path, folder: Path, member_md5: dict[str, str]) -> None:
    """Write the named members into `folder`, each checked and moved into place whole.

    Members are read by name and written under names of our own choice, so nothing in the archive can
    decide where a file goes.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for name, md5 in member_md5.items():
                source = tar.extractfile(f"{FOLDER}/{name}")
                if source is None:
                    raise DataError(f"{archive}: {FOLDER}/{name} is not a regular file")
                content = source.read()
                found = hashlib.md5(content, usedforsecurity=False).hexdigest()
                if found != md5:
                    raise DataError(f"{archive}: {FOLDER}/{name} has md5 {found}, expected {md5}")
                write_file(folder / name, content)
    except KeyError as error:
        raise DataError(f"{archive} is not the CIFAR-10 binary archive: {error.args[0]}") from error
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read: {error}; remove it, and it is downloaded again") from error


def _read_batch(file: Path) -> npt.NDArray[np.uint8]:
    expected = _RECORDS * _RECORD_BYTES
    try:
        content = np.fromfile(file, np.uint8)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if content.size != expected:
        raise DataError(f"{file} has {content.size} bytes, a CIFAR-10 batch has {expected}; remove the file")
    records = content.reshape(_RECORDS, _RECORD_BYTES)
    if records[:, 0].max() >= len(CIFAR10_CLASSES):
        raise DataError(f"{file} is not a CIFAR-10 batch: it has label {records[:, 0].max()}")
    return records
