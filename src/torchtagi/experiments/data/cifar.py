"""CIFAR-10 in its official binary version, records of one label byte and 3 × 32 × 32 pixel bytes, and Tiny
ImageNet's validation images at 32 × 32, an out-of-distribution set for it."""

import gzip
import tarfile
import zlib

import numpy as np
import numpy.typing as npt
import torch

from torchtagi.experiments.data.download import obtain
from torchtagi.experiments.data.files import SIDE, DataError, Locations, read_images
from torchtagi.experiments.data.image_set import Preprocessing, Stored

# Per-channel means of the 50,000 training images scaled to [0, 1].
CIFAR10_MEAN = (0.4913996786152028, 0.4821584083946074, 0.4465309144454644)
CIFAR10_PREPROCESSING = Preprocessing.centred(*CIFAR10_MEAN)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

ARCHIVE_NAME = "cifar-10-binary.tar.gz"
URL, CHECKSUM = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE_NAME}", "md5:c32a1d4ab5d03f1284b67883e8d87530"
FOLDER = "cifar-10-batches-bin"
RECORDS, RECORD_BYTES = 10_000, 1 + 3 * 32 * 32


def read_cifar10(split: str, places: Locations) -> Stored:
    """CIFAR-10 from the searched folders, unpacked or as the archive, or else from its official site."""
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] if split == "train" else ["test_batch.bin"]
    root = places.find(*(f"{FOLDER}/{name}" for name in names))
    if root is not None:
        contents = {str(root / FOLDER / name): (root / FOLDER / name).read_bytes() for name in names}
    else:
        contents = read_archive(names, places)
    records = np.concatenate([records_of(content, origin) for origin, content in contents.items()])
    images, labels = records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)
    return torch.from_numpy(images), torch.from_numpy(labels), CIFAR10_CLASSES, CIFAR10_PREPROCESSING


def read_archive(names: list[str], places: Locations) -> dict[str, bytes]:
    """The batches inside the archive, which is read anew each time (a second) and never unpacked: one copy on the
    disk, the one whose checksum is published."""
    holder = places.find(ARCHIVE_NAME)
    if holder is not None:
        archive = holder / ARCHIVE_NAME
    else:
        folders = [root / FOLDER for root in places.search if (root / FOLDER).is_dir()]
        lacks = {folder: [name for name in names if not (folder / name).is_file()] for folder in folders}
        note = "".join(f"{folder} lacks {', '.join(absent)}; " for folder, absent in lacks.items())
        archive = obtain(URL, CHECKSUM, places.cache / ARCHIVE_NAME, places, note)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = {name: tar.extractfile(f"{FOLDER}/{name}") for name in names}
            return {f"{archive}: {name}": file.read() if file else b"" for name, file in members.items()}
    except KeyError as error:
        raise DataError(f"{archive} is not the CIFAR-10 binary archive: {error.args[0]}") from error
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{archive} cannot be read: {error}; remove it, and it is downloaded again") from error


def records_of(content: bytes, origin: str) -> npt.NDArray[np.uint8]:
    if len(content) != RECORDS * RECORD_BYTES:
        expected = f"a CIFAR-10 batch has {RECORDS * RECORD_BYTES}; remove the file"
        raise DataError(f"{origin} has {len(content)} bytes, {expected}")
    records = np.frombuffer(content, np.uint8).reshape(RECORDS, RECORD_BYTES)
    if records[:, 0].max() >= len(CIFAR10_CLASSES):
        raise DataError(f"{origin} is not a CIFAR-10 batch: it has label {records[:, 0].max()}")
    return records


def read_tinyimagenet(split: str, places: Locations) -> Stored:
    """The images, unlabelled, preprocessed like CIFAR-10: no network here trains on them, so a mean of their own
    would have no use."""
    root = places.find("tinyimagenet/images.npy")
    if root is None:
        raise places.missing(
            f"Tiny ImageNet ({split})",
            "downscale the validation images of http://cs231n.stanford.edu/tiny-imagenet-200.zip to uint8 "
            f"(N, 3, {SIDE}, {SIDE}) and save the array as {places.cache / 'tinyimagenet' / 'images.npy'}",
        )
    images = torch.from_numpy(np.array(read_images(root / "tinyimagenet" / "images.npy")))
    return images, None, (), CIFAR10_PREPROCESSING
