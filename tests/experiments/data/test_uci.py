"""UCI splits: the right rows, standardised by the training rows alone."""

from pathlib import Path

import numpy as np
import pytest
import torch

from torchtagi.experiments.data import DataError, load_uci, uci_names

N, N_COLUMNS = 20, 5
FEATURES, TARGET = [0, 1, 3], [4]
N_SPLITS = 2


def example() -> dict[str, np.ndarray]:
    """Column 1 is a constant whose mean is inexact; column 2 belongs to nothing."""
    rng = np.random.default_rng(0)
    data = rng.normal(5.0, 3.0, (N, N_COLUMNS))
    data[:, 1] = 0.1
    arrays = {
        "data": data,
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
def test_rows_are_those_of_the_split_standardised_by_its_training_part(tmp_path: Path, split: int) -> None:
    arrays = example()
    write_archive(tmp_path, arrays)
    loaded = load_uci("yacht", split, tmp_path)
    train, test = arrays[f"train_{split}"], arrays[f"test_{split}"]
    for column, feature in ((0, 0), (2, 3)):
        values = arrays["data"][:, feature]
        mean, std = values[train].mean(), values[train].std()
        np.testing.assert_allclose(loaded.x_train[:, column], (values[train] - mean) / std, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(loaded.x_test[:, column], (values[test] - mean) / std, rtol=1e-5, atol=1e-6)
    restored, _ = loaded.to_original_units(loaded.y_test, torch.ones_like(loaded.y_test))
    np.testing.assert_allclose(restored, arrays["data"][test][:, TARGET], rtol=1e-5)
    assert loaded.y_train.shape == (15, 1)
    assert (loaded.n_hidden, loaded.n_epochs, loaded.n_splits) == (50, 40, 2)


def test_a_constant_column_becomes_zero_and_keeps_std_one(tmp_path: Path) -> None:
    arrays = example()
    assert arrays["data"][arrays["train_0"], 1].std() > 0, "rounding is the trap this test is about"
    write_archive(tmp_path, arrays)
    loaded = load_uci("yacht", 0, tmp_path)
    assert loaded.x_std[1] == 1.0
    assert loaded.x_train[:, 1].abs().max() < 1e-6
    assert loaded.x_test[:, 1].abs().max() < 1e-6


def test_variances_scale_with_the_square_of_the_unit(tmp_path: Path) -> None:
    write_archive(tmp_path, example())
    loaded = load_uci("yacht", 0, tmp_path)
    mean, var = loaded.to_original_units(torch.zeros(1, 1), torch.ones(1, 1))
    assert float(mean) == pytest.approx(float(loaded.y_mean))
    assert float(var) == pytest.approx(float(loaded.y_std) ** 2)


def test_the_published_text_files_read_the_same(tmp_path: Path) -> None:
    arrays = example()
    write_archive(tmp_path / "archive", arrays)
    write_texts(tmp_path / "texts", arrays)
    for split in range(N_SPLITS):
        first = load_uci("yacht", split, tmp_path / "archive")
        second = load_uci("yacht", split, tmp_path / "texts")
        for field in ("x_train", "y_train", "x_test", "y_test", "x_std"):
            assert torch.equal(getattr(first, field), getattr(second, field))
        assert second.n_hidden == 50


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    write_archive(tmp_path, example())
    with pytest.raises(ValueError, match="unknown UCI set 'boston'; known are bostonHousing"):
        load_uci("boston", 0, tmp_path)
    for index in (-1, 2):
        with pytest.raises(IndexError, match=rf"split_index must be in 0…1 for yacht, got {index}"):
            load_uci("yacht", index, tmp_path)
    with pytest.raises(DataError, match="UCI set energy is missing") as caught:
        load_uci("energy", 0, tmp_path)
    assert str(tmp_path / "uci") in str(caught.value)


def test_bad_files_are_refused_by_name(tmp_path: Path) -> None:
    without_target = example()
    del without_target["index_target"]
    file = write_archive(tmp_path, without_target)
    with pytest.raises(DataError, match=r"yacht\.npz is not a UCI regression set: it has no .*index_target"):
        load_uci("yacht", 0, tmp_path)
    write_archive(tmp_path, example() | {"test_0": np.array([N])})
    with pytest.raises(DataError, match=r"yacht\.npz: an index list must hold numbers in 0…19, got \[20\]"):
        load_uci("yacht", 0, tmp_path)
    broken = example()
    broken["data"][3, 0] = np.nan
    write_archive(tmp_path, broken)
    with pytest.raises(DataError, match=r"yacht\.npz: data must be a finite table"):
        load_uci("yacht", 0, tmp_path)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"yacht\.npz cannot be read"):
        load_uci("yacht", 0, tmp_path)


@pytest.mark.parametrize("name", uci_names())
def test_every_set_of_the_collection_has_disjoint_complete_splits(collection: Path, name: str) -> None:
    """Test rows must be exactly those that training never sees."""
    with np.load(collection / "uci" / f"{name}.npz") as archive:
        n_rows = len(archive["data"])
        n_splits = int(archive["n_splits"])
        for split in range(n_splits):
            rows = np.concatenate([archive[f"train_{split}"], archive[f"test_{split}"]])
            assert sorted(rows.tolist()) == list(range(n_rows))
    last = load_uci(name, n_splits - 1, collection)
    assert last.n_splits == n_splits == (5 if name.startswith("protein") else 20)
    assert len(last.x_train) + len(last.x_test) == n_rows
    assert last.x_train.isfinite().all()
    assert last.x_test.isfinite().all()
    assert last.y_train.double().mean().abs() < 1e-5
    assert last.y_train.double().std(correction=0) == pytest.approx(1.0, abs=1e-5)


def test_the_constant_columns_of_naval_are_tamed(collection: Path) -> None:
    naval = load_uci("naval-propulsion-plant", 0, collection)
    constant = naval.x_train.abs().amax(0) < 1e-6
    assert int(constant.sum()) == 2
    assert naval.x_std[constant].tolist() == [1.0, 1.0]
