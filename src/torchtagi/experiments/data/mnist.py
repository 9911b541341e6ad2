"""MNIST, which comes with the package, and Fashion-MNIST, which shares its format.

MNIST is by Yann LeCun and Corinna Cortes, licensed CC BY-SA 3.0 (see `mnist/LICENSE-MNIST.txt`).
"""

from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np
import torch

from torchtagi.experiments.data.download import RemoteFile, fetch, missing_file
from torchtagi.experiments.data.errors import DataError
from torchtagi.experiments.data.idx import read_idx
from torchtagi.experiments.data.image_set import StoredImages
from torchtagi.experiments.data.locations import Locations
from torchtagi.experiments.data.preprocessing import Preprocessing

# Means of the 60,000 training images scaled to [0, 1].
MNIST_MEAN = 0.1306604762738429
FASHION_MEAN = 0.2860405969887955

_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_PREFIX = {"train": "train", "test": "t10k"}


@dataclass(frozen=True)
class _Family:
    """A set in MNIST's format."""

    folder: str
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    remote: dict[str, RemoteFile]
    embedded: bool


_MNIST = _Family(
    folder="mnist",
    classes=tuple("0123456789"),
    preprocessing=Preprocessing.centred(MNIST_MEAN),
    remote={},
    embedded=True,
)

_FASHION = _Family(
    folder="fashion-mnist",
    classes=(
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
    preprocessing=Preprocessing.centred(FASHION_MEAN),
    remote={
        f"{stem}.gz": RemoteFile(f"{_FASHION_URL}/{stem}.gz", f"md5:{md5}")
        for stem, md5 in {
            "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
        }.items()
    },
    embedded=False,
)


def read_mnist(split: str, places: Locations) -> StoredImages:
    """MNIST from the searched folders, or else the copy inside the package."""
    return _read(_MNIST, split, places)


def read_fashion_mnist(split: str, places: Locations) -> StoredImages:
    """Fashion-MNIST from the searched folders, or else from its official site."""
    return _read(_FASHION, split, places)


def _read(family: _Family, split: str, places: Locations) -> StoredImages:
    stems = (f"{_PREFIX[split]}-images-idx3-ubyte", f"{_PREFIX[split]}-labels-idx1-ubyte")
    image_file, label_file = _find(family, stems, places)
    images, labels = read_idx(image_file), read_idx(label_file)
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != (28, 28):
        raise DataError(f"{image_file} must hold uint8 (N, 28, 28), got {images.dtype} {images.shape}")
    if labels.dtype != np.uint8 or labels.shape != images.shape[:1]:
        raise DataError(
            f"{label_file} must hold {len(images)} uint8 labels, one for each image of {image_file}, "
            f"got {labels.dtype} {labels.shape}"
        )
    if labels.size and labels.max() >= len(family.classes):
        raise DataError(f"{label_file} has label {labels.max()}, the classes are 0…{len(family.classes) - 1}")
    return StoredImages(
        images=torch.from_numpy(images[:, None]),
        labels=torch.from_numpy(labels.astype(np.int64)),
        classes=family.classes,
        preprocessing=family.preprocessing,
    )


def _find(family: _Family, stems: tuple[str, str], places: Locations) -> tuple[Traversable, Traversable]:
    """Images and labels from one and the same folder, fetched if they are nowhere."""
    folders: list[Traversable] = [root / family.folder for root in places.search]
    if family.embedded:
        folders.append(files("torchtagi.experiments.data") / family.folder)
    for folder in folders:
        pair = [_plain_or_gzipped(folder, stem) for stem in stems]
        if pair[0] is not None and pair[1] is not None:
            return pair[0], pair[1]

    target = places.target / family.folder
    fetched = []
    for name in (f"{stem}.gz" for stem in stems):
        if name not in family.remote:
            raise DataError(f"{name} is missing from the installed package; reinstall torchtagi")
        remote = family.remote[name]
        if not places.may_download:
            raise missing_file(target / name, remote.url, "downloads are switched off")
        fetched.append(fetch(remote.url, target / name, remote.checksum, places.progress))
    return fetched[0], fetched[1]


def _plain_or_gzipped(folder: Traversable, stem: str) -> Traversable | None:
    for name in (f"{stem}.gz", stem):
        if (folder / name).is_file():
            return folder / name
    return None
