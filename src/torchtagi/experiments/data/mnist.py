"""MNIST, which comes with the package, and Fashion-MNIST, which shares its format.

MNIST is by Yann LeCun and Corinna Cortes, licensed CC BY-SA 3.0 (see `mnist/LICENSE-MNIST.txt`).

An idx file is, plain or gzipped, the bytes 0, 0, 8 (for bytes) and the number of dimensions; then each dimension
as a big-endian 32-bit integer; then the values, last dimension fastest.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Iterable
from importlib.resources import files
from importlib.resources.abc import Traversable

import numpy as np
import numpy.typing as npt
import torch

from torchtagi.experiments.data.download import obtain
from torchtagi.experiments.data.files import DataError, Locations
from torchtagi.experiments.data.image_set import Preprocessing, Stored

# Means of the 60,000 training images scaled to [0, 1].
MNIST_MEAN = 0.1306604762738429
FASHION_MEAN = 0.2860405969887955

DIGITS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FASHION_MD5 = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}


def read_mnist(split: str, places: Locations) -> Stored:
    """MNIST from the searched folders, or else the copy inside the package."""
    pair = find("mnist", split, [*places.search, files("torchtagi.experiments.data")])
    if not pair:
        raise DataError("MNIST is missing from the installed package; reinstall torchtagi")
    return read_pair(pair, DIGITS, MNIST_MEAN)


def read_fashion_mnist(split: str, places: Locations) -> Stored:
    """Fashion-MNIST from the searched folders, or else from its official site."""
    pair = find("fashion-mnist", split, places.search)
    if not pair:
        for stem in stems(split):
            url, target = f"{FASHION_URL}/{stem}.gz", places.cache / "fashion-mnist" / f"{stem}.gz"
            pair.append(obtain(url, f"md5:{FASHION_MD5[stem]}", target, places))
    return read_pair(pair, CLOTHES, FASHION_MEAN)


def stems(split: str) -> tuple[str, str]:
    prefix = {"train": "train", "test": "t10k"}[split]
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"


def find(folder: str, split: str, roots: Iterable[Traversable]) -> list[Traversable]:
    """Images and labels from one and the same folder; empty if there is none."""
    for root in roots:
        for ending in (".gz", ""):
            pair = [root / folder / f"{stem}{ending}" for stem in stems(split)]
            if all(file.is_file() for file in pair):
                return pair
    return []


def read_pair(pair: list[Traversable], classes: tuple[str, ...], mean: float) -> Stored:
    of_images, of_labels = pair
    images, labels = read_idx(of_images, 28, 28), read_idx(of_labels)
    if len(labels) != len(images):
        raise DataError(f"{of_labels} holds {len(labels)} labels for the {len(images)} images of {of_images}")
    if labels.size and labels.max() >= len(classes):
        raise DataError(f"{of_labels} has label {labels.max()}, the classes are 0…{len(classes) - 1}")
    whole = torch.from_numpy(labels.astype(np.int64))
    return torch.from_numpy(images[:, None]), whole, classes, Preprocessing.centred(mean)


def read_idx(file: Traversable, *item: int) -> npt.NDArray[np.uint8]:
    """The bytes (N, *item) in an idx file, decompressed first if its content is gzip, whatever its name."""
    try:
        content = file.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    dimensions = 1 + len(item)
    header = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < header:
        raise DataError(f"{file} is not an idx file of bytes in {dimensions} dimensions: it begins {content[:4]!r}")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if shape[1:] != item:
        raise DataError(f"{file} must hold items of shape {item}, got {shape[1:]}")
    if len(content) != header + math.prod(shape):
        problem = "is truncated" if len(content) < header + math.prod(shape) else "has bytes left over"
        raise DataError(f"{file} {problem}: {len(content)} bytes, shape {shape} needs {header + math.prod(shape)}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()
