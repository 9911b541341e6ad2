"""CelebA faces at 32 × 32.

Either the finished array `celeba/images.npy`, uint8 (N, 3, 32, 32), with `partition.npy` (0 train, 1 validation,
2 test) beside it, or the official zip file of aligned JPEGs (178 × 218), from which the array is made once. Of
those the central 148 × 148 pixels are kept, the usual face crop: the alignment puts the face there, and the rest is
background. They are resized with Lanczos, which filters before it samples.
"""

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from tqdm import tqdm

from torchtagi.experiments.data.files import (
    FOR_TERMINALS,
    SIDE,
    DataError,
    Locations,
    read_array,
    read_images,
    write_array,
)
from torchtagi.experiments.data.image_set import Preprocessing, Stored

JPEGS, PARTITION = "img_align_celeba.zip", "list_eval_partition.txt"
PARTS = {"train": 0, "validation": 1, "test": 2}
SIZE, CROP = (178, 218), 148


def read_celeba(split: str, places: Locations) -> Stored:
    """One part of CelebA; without a partition every image is a training image."""
    folder = find_arrays(places)
    images = read_images(folder / "images.npy")
    partition = np.zeros(len(images), np.uint8)
    if (folder / "partition.npy").is_file():
        partition = read_array(folder / "partition.npy")
        if partition.shape != (len(images),) or not np.isin(partition, (0, 1, 2)).all():
            wanted = f"{len(images)} values of 0, 1 or 2"
            raise DataError(f"{folder / 'partition.npy'} must hold {wanted}, got shape {partition.shape}")
    parts = {name: torch.from_numpy(images[partition == PARTS[name]]) for name in {"train", split}}
    for name, part in parts.items():
        if not len(part):
            raise DataError(f"{folder} has no {name} images by its partition.npy (absent: all are for training)")
    return parts[split], None, (), standardisation(parts["train"])


def standardisation(images: Tensor) -> Preprocessing:
    """Per-channel mean and standard deviation, from histograms of bytes: exact, and without a copy as floats."""
    counts = torch.stack([images[:, channel].flatten().bincount(minlength=256) for channel in range(3)]).double()
    share, level = counts / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64) / 255.0
    mean = share @ level
    std = (share * (level - mean[:, None]).square()).sum(1).sqrt()
    return Preprocessing(tuple(mean.tolist()), tuple(torch.where(std > 0, std, 1.0).tolist()))


def find_arrays(places: Locations) -> Path:
    """The folder of the arrays, which are made from the official images if those are all there is."""
    root = places.find("celeba/images.npy")
    if root is not None:
        return root / "celeba"
    target, source = places.cache / "celeba", places.find(f"celeba/{JPEGS}")
    if source is None:
        site = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"
        raise places.missing("CelebA", f"download {JPEGS} and {PARTITION} from {site} and put both into {target}")
    convert(source / "celeba" / JPEGS, target)
    return target


def convert(source: Path, target: Path) -> None:
    """Write the arrays of the official images; `images.npy` comes last: whoever sees it sees the rest."""
    try:
        with zipfile.ZipFile(source) as archive:
            names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
            partition = read_partition(source.parent / PARTITION, names)
            images = np.empty((len(names), 3, SIDE, SIDE), np.uint8)
            for index, name in enumerate(tqdm(names, "CelebA", **FOR_TERMINALS)):
                images[index] = shrink(archive.read(name), name)
    except (zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{source} is not a complete zip file: {error}") from error
    if partition is not None:
        write_array(target / "partition.npy", partition)
    write_array(target / "images.npy", images)


def shrink(jpeg: bytes, origin: str) -> npt.NDArray[np.uint8]:
    """The face in one aligned image, uint8 (3, 32, 32)."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("reading CelebA's JPEG files needs Pillow: pip install 'torchtagi[cli]'") from error
    try:
        with Image.open(io.BytesIO(jpeg)) as image:
            if image.size != SIZE:
                raise DataError(f"{origin} is {image.size[0]} × {image.size[1]}, expected 178 × 218")
            left, top = (SIZE[0] - CROP) // 2, (SIZE[1] - CROP) // 2
            # Cropped first: resizing a box of the image would let its filter reach outside.
            face = image.convert("RGB").crop((left, top, left + CROP, top + CROP))
            face = face.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    except OSError as error:
        raise DataError(f"{origin} is not a readable JPEG: {error}") from error
    return np.asarray(face).transpose(2, 0, 1)


def read_partition(file: Path, names: list[str]) -> npt.NDArray[np.uint8] | None:
    """The official split of `names`, or None where the list is absent."""
    if not file.is_file():
        return None
    part_of: dict[str, int] = {}
    for line in file.read_text(errors="replace").splitlines():
        name, _, part = line.partition(" ")
        if part.strip() not in ("0", "1", "2"):
            raise DataError(f"{file}: expected 'name 0|1|2', got {line!r}")
        part_of[name] = int(part)
    try:
        return np.array([part_of[name.rpartition("/")[2]] for name in names], np.uint8)
    except KeyError as error:
        raise DataError(f"{file} does not list {error.args[0]}") from error
