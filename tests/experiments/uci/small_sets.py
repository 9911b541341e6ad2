"""Tiny UCI sets, whose first feature numbers their rows."""

from pathlib import Path

import numpy as np

ROWS, TEST_ROWS = 40, 8


def write_set(root: Path, name: str, rows: int = ROWS, splits: int = 3, seed: int = 0) -> None:
    """A plane with noise; splits partition the rows."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.arange(rows), rng.normal(size=(rows, 2))])
    y = 0.1 * x[:, :1] + 3 * x[:, 1:2] + rng.normal(0, 0.3, (rows, 1)) + 7
    parts = {}
    for split in range(splits):
        order = rng.permutation(rows)
        parts |= {f"test_{split}": order[:TEST_ROWS], f"train_{split}": order[TEST_ROWS:]}
    sizes = {"n_splits": splits, "n_hidden": 4, "n_epochs": 40}
    columns = {"index_features": np.arange(3), "index_target": np.array([3])}
    (root / "uci").mkdir(parents=True, exist_ok=True)
    arrays = {name: np.array(size) for name, size in sizes.items()} | columns | parts
    np.savez(root / "uci" / f"{name}.npz", data=np.hstack([x, y]), **arrays)
