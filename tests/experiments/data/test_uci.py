"""UCI splits: the right rows and columns, in their own units."""

from pathlib import Path

import numpy as np
import pytest
import torch

from torchtagi.experiments.data import UCI_SETS, DataError, load_uci

N, N_COLUMNS = 20, 5
FEATURES, TARGET = [0, 1, 3], [4]
N_SPLITS = 2


def example() -> dict[str, np.ndarray]:
    """Column 2 belongs to nothing."""
    rng = np.random.default_rng(0)
    arrays = {
        "data": rng.normal(5.0, 3.0, (N, N_COLUMNS)),
        "index_features": np.array(FEATURES),
        "index_target": np.array(TARGET),
        "n_splits": np.array(N_SPLITS),
        "n_hidden": np.array(50),
        "n_epochs": np.array(40),
    }
    for split in range(N_SPLITS):
        order = rng.permutation(N)
        arrays[f"train_{split}"], arrays[f"test_{split}"] = order[:15], order[15:]
    return arrays


def write_archive(root: Path, arrays: dict[str, np.ndarray], name: str = "yacht") -> Path:
    (root / "uci").mkdir(parents=True, exist_ok=True)
    file = root / "uci" / f"{name}.npz"
    np.savez(file, **arrays)
    return file


def write_texts(root: Path, arrays: dict[str, np.ndarray]) -> None:
    folder = root / "uci" / "yacht" / "data"
    folder.mkdir(parents=True)
    for key, array in arrays.items():
        stem = f"index_{key}" if key.startswith(("train", "test")) else key
        np.savetxt(folder / f"{stem}.txt", np.atleast_1d(array), fmt="%.17g" if key == "data" else "%.18e")


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("write", [write_archive, write_texts])
def test_rows_and_columns_are_those_of_the_split(root: Path, split: int, write) -> None:
    arrays = example()
    write(root, arrays)
    loaded = load_uci("yacht", split)
    train, test = arrays[f"train_{split}"], arrays[f"test_{split}"]
    for found, rows, columns in (
        (loaded.x_train, train, FEATURES),
        (loaded.y_train, train, TARGET),
        (loaded.x_test, test, FEATURES),
        (loaded.y_test, test, TARGET),
    ):
        assert found.dtype == torch.float32
        np.testing.assert_array_equal(found, arrays["data"][np.ix_(rows, columns)].astype(np.float32))
    assert (loaded.n_hidden, loaded.n_splits) == (50, 2)


def test_bad_requests_are_refused(root: Path, empty_world: Path) -> None:
    write_archive(root, example())
    with pytest.raises(ValueError, match=r"no UCI set 'yatch'; there are bostonHousing.*did you mean yacht\?"):
        load_uci("yatch", 0)
    for index in (-1, 2):
        with pytest.raises(IndexError, match=rf"split_index must be in 0…1 for yacht, got {index}"):
            load_uci("yacht", index)
    with pytest.raises(DataError, match=r"UCI set energy is missing.*cannot be downloaded.*github") as caught:
        load_uci("energy", 0)
    assert str(root) in str(caught.value)
    assert str(empty_world / "uci") in str(caught.value)


def test_bad_files_are_refused_by_name(root: Path) -> None:
    without_target = example()
    del without_target["index_target"]
    file = write_archive(root, without_target)
    with pytest.raises(DataError, match=r"yacht\.npz is not a UCI regression set: index_target is not"):
        load_uci("yacht", 0)
    write_archive(root, example() | {"test_0": np.array([N])})
    with pytest.raises(DataError, match=r"yacht\.npz: an index list must hold numbers in 0…19, got \[20\]"):
        load_uci("yacht", 0)
    broken = example()
    broken["data"][3, 0] = np.nan
    write_archive(root, broken)
    with pytest.raises(DataError, match=r"yacht\.npz: data must be a finite table"):
        load_uci("yacht", 0)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"yacht\.npz cannot be read"):
        load_uci("yacht", 0)
    np.save(file.with_suffix(".npy"), np.zeros(3))
    file.with_suffix(".npy").rename(file)
    with pytest.raises(DataError, match=r"yacht\.npz cannot be read"):
        load_uci("yacht", 0)
    file.unlink()
    write_texts(root, {key: value for key, value in example().items() if key != "train_0"})
    with pytest.raises(DataError, match=r"data cannot be read: .*index_train_0\.txt"):
        load_uci("yacht", 0)


@pytest.mark.parametrize("name", UCI_SETS.values())
def test_every_set_of_the_collection_has_disjoint_complete_splits(collection: Path, name: str) -> None:
    """Test rows must be exactly those that training never sees."""
    with np.load(collection / "uci" / f"{name}.npz") as archive:
        n_rows = len(archive["data"])
        n_splits = int(archive["n_splits"])
        for split in range(n_splits):
            rows = np.concatenate([archive[f"train_{split}"], archive[f"test_{split}"]])
            assert sorted(rows.tolist()) == list(range(n_rows))
    last = load_uci(name, n_splits - 1)
    assert last.n_splits == n_splits == (5 if name.startswith("protein") else 20)
    assert len(last.x_train) + len(last.x_test) == n_rows
    assert last.x_train.isfinite().all()
    assert last.y_train.shape == (len(last.x_train), 1)
