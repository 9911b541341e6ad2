"""CIFAR-10 in its official binary version: records of one label byte and 3 × 32 × 32 pixel bytes."""

import gzip
import hashlib
import os
import tarfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from torchtagi.experiments.data.atomic import replacing
from torchtagi.experiments.data.download import RemoteFile, fetch, missing_file
from torchtagi.experiments.data.errors import DataError
from torchtagi.experiments.data.image_set import StoredImages
from torchtagi.experiments.data.locations import Locations
from torchtagi.experiments.data.preprocessing import Preprocessing

# Per-channel means of the 50,000 training images scaled to [0, 1].
CIFAR10_MEAN = (0.4913996786152028, 0.4821584083946074, 0.4465309144454644)
CIFAR10_PREPROCESSING = Preprocessing.centred(*CIFAR10_MEAN)
CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)

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
_SPLIT_FILES = {
    "train": tuple(name for name in MEMBER_MD5 if name.startswith("data_batch")),
    "test": ("test_batch.bin",),
}
_RECORDS = 10_000
_RECORD_BYTES = 1 + 3 * 32 * 32


def read_cifar10(split: str, places: Locations) -> StoredImages:
    """CIFAR-10 from the searched folders (unpacked or as the archive), or else from its official site."""
    folder = _find(split, places)
    parts = [_read_batch(folder / name) for name in _SPLIT_FILES[split]]
    records = np.concatenate(parts)
    return StoredImages(
        images=torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32)),
        labels=torch.from_numpy(records[:, 0].astype(np.int64)),
        classes=CIFAR10_CLASSES,
        preprocessing=CIFAR10_PREPROCESSING,
    )


def _find(split: str, places: Locations) -> Path:
    for root in places.search:
        if all((root / FOLDER / name).is_file() for name in _SPLIT_FILES[split]):
            return root / FOLDER
    for root in places.search:
        if (root / ARCHIVE_NAME).is_file():
            folder = (root if os.access(root, os.W_OK) else places.target) / FOLDER
            extract(root / ARCHIVE_NAME, folder, MEMBER_MD5)
            return folder
    archive = places.target / ARCHIVE_NAME
    if not places.may_download:
        raise missing_file(archive, ARCHIVE.url, "downloads are switched off")
    fetch(ARCHIVE.url, archive, ARCHIVE.checksum, places.progress)
    extract(archive, places.target / FOLDER, MEMBER_MD5)
    # The archive stays: another process may be reading it, and it is the copy whose checksum is published.
    return places.target / FOLDER


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
                with replacing(folder / name) as temporary:
                    temporary.write_bytes(content)
    except KeyError as error:
        raise DataError(f"{archive} is not the CIFAR-10 binary archive: {error.args[0]}") from error
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read: {error}") from error


def _read_batch(file: Path) -> npt.NDArray[np.uint8]:
    expected = _RECORDS * _RECORD_BYTES
    try:
        content = np.fromfile(file, np.uint8)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    if content.size != expected:
        raise DataError(f"{file} has {content.size} bytes, a CIFAR-10 batch has {expected}")
    records = content.reshape(_RECORDS, _RECORD_BYTES)
    if records[:, 0].max() >= len(CIFAR10_CLASSES):
        raise DataError(f"{file} is not a CIFAR-10 batch: it has label {records[:, 0].max()}")
    return records
