"""CelebA faces at 32 × 32.

Either the finished array `celeba/images.npy`, uint8 (N, 3, 32, 32), with `partition.npy` (0 train,
1 validation, 2 test) and `attributes.npz` beside it where known, or the official aligned images, from
which the array is made once (`celeba_jpeg`).
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchtagi.experiments.data.arrays import read_archive, read_array, read_images
from torchtagi.experiments.data.celeba_jpeg import FOLDER as JPEG_FOLDER
from torchtagi.experiments.data.celeba_jpeg import find_jpegs, prepare
from torchtagi.experiments.data.errors import DataError
from torchtagi.experiments.data.image_set import StoredImages
from torchtagi.experiments.data.locations import Locations
from torchtagi.experiments.data.preprocessing import Preprocessing

_PARTITION = {"train": 0, "validation": 1, "test": 2}
_CHUNK_IMAGES = 4096


def read_celeba(split: str, places: Locations) -> StoredImages:
    """One part of CelebA; without a partition every image is a training image."""
    folder = _find(places)
    images = read_images(folder / "images.npy")
    partition = _read_partition(folder / "partition.npy", len(images))
    members = np.flatnonzero(partition == _PARTITION[split])
    if members.size == 0:
        counts = np.bincount(partition, minlength=len(_PARTITION)).tolist()
        raise DataError(
            f"{folder} has no {split} images: by partition.npy (absent: all training) it has {counts} "
            f"{', '.join(_PARTITION)} images"
        )
    return StoredImages(
        images=torch.from_numpy(images[members]),
        labels=None,
        classes=(),
        preprocessing=standardisation(images, np.flatnonzero(partition == _PARTITION["train"])),
        attributes=_read_attributes(folder / "attributes.npz", len(images), members),
    )


def standardisation(images: npt.NDArray[np.uint8], training: npt.NDArray[np.int64]) -> Preprocessing:
    """Per-channel mean and standard deviation of the images at the indices `training`.

    Counted as histograms of bytes: exact, and in the memory of a few thousand images.
    """
    if training.size == 0:
        raise DataError("CelebA is standardised by its training images, and partition.npy marks none as such")
    counts = np.zeros((3, 256), np.int64)
    for start in range(0, len(training), _CHUNK_IMAGES):
        chunk = images[training[start : start + _CHUNK_IMAGES]]
        for channel in range(3):
            counts[channel] += np.bincount(chunk[:, channel].ravel(), minlength=256)
    share = counts / counts.sum(1, keepdims=True)
    level = np.arange(256) / 255.0
    mean = share @ level
    std = np.sqrt((share * (level - mean[:, None]) ** 2).sum(1))
    return Preprocessing(mean=tuple(mean.tolist()), std=tuple(np.where(std > 0, std, 1.0).tolist()))


def _find(places: Locations) -> Path:
    for root in places.search:
        folder = root / "celeba"
        if (folder / "images.npy").is_file():
            return folder
        source = find_jpegs(folder)
        if source is not None:
            return prepare(source, places)
    raise DataError(
        f"CelebA is missing (searched: {places.describe()}). It cannot be fetched automatically: download "
        f"{JPEG_FOLDER}.zip and list_eval_partition.txt from "
        f"https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html and put both into {places.target / 'celeba'}"
    )


def _read_partition(file: Path, n_images: int) -> npt.NDArray[np.int64]:
    if not file.is_file():
        return np.zeros(n_images, np.int64)
    partition = read_array(file)
    if partition.shape != (n_images,) or not np.isin(partition, (0, 1, 2)).all():
        raise DataError(f"{file} must hold {n_images} values of 0, 1 or 2, got shape {partition.shape}")
    return partition.astype(np.int64)


def _read_attributes(file: Path, n_images: int, members: npt.NDArray[np.int64]) -> dict[str, Tensor]:
    if not file.is_file():
        return {}
    marks = read_archive(file)
    for name, mark in marks.items():
        if mark.shape != (n_images,):
            raise DataError(f"{file}: {name} must have one value for each of {n_images} images, got {mark.shape}")
    return {name: torch.from_numpy(mark[members].astype(bool)) for name, mark in marks.items()}
