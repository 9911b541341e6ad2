"""Many splits, each a job; what they measure is in one file.

splits.jsonl    a line a split: set, method, setting and the like, and what was measured
"""

import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import torch

from torchtagi import metrics
from torchtagi.experiments.data import UCI_SETS, RegressionSplit, check_installed, find_each, load_uci
from torchtagi.experiments.runs.config import versions
from torchtagi.experiments.runs.folder import Row
from torchtagi.experiments.uci.methods import METHODS, Problem
from torchtagi.fitting import epoch_order

SPLITS = "splits.jsonl"
IDENTITY = ("set", "method", "split", "validation", "setting")
VALIDATION = 5  # one row in so many of a training part is held out to choose between settings


@dataclass(frozen=True)
class Job:
    """A split to be learned by a method."""

    set: str
    method: str
    split: int
    setting: Row
    validation: bool = False
    """Whether it is measured on a part of the training part, and the test part is left alone."""

    @property
    def name(self) -> str:
        return f"{self.set}, {self.method}, split {self.split}"

    @property
    def seed(self) -> int:
        """The same for every method and setting."""
        return zlib.crc32(f"{self.set}/{self.split}".encode())

    def measure(self) -> Row:
        """Learn and predict, in the target's units."""
        parts = load_uci(UCI_SETS[self.set], self.split)
        parts = held_out(parts, self.seed) if self.validation else parts
        problem = Problem(parts.x_train, parts.y_train[:, 0], parts.x_test, parts.n_hidden, self.seed)
        torch.manual_seed(self.seed)
        start = time.perf_counter()
        mean, var = METHODS[self.method].predict(problem, **self.setting)
        seconds = time.perf_counter() - start
        scores = metrics.regression_scores(mean, var, parts.y_test[:, 0])
        return {
            **asdict(self),
            "rmse": scores["rmse"],
            "log_likelihood": -scores["nll"],
            "coverage": scores["coverage_95"],
            "seconds": round(seconds, 3),
            "splits": parts.n_splits,
            "seed": self.seed,
            "versions": versions(),
        }


def held_out(parts: RegressionSplit, seed: int) -> RegressionSplit:
    """A fifth of the training part in the test part's place."""
    order = epoch_order(len(parts.x_train), seed, -1)
    size = max(1, len(order) // VALIDATION)
    test, train = order[:size], order[size:]
    x, y = parts.x_train, parts.y_train
    return replace(parts, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])


def jobs_of(sets: Sequence[str], methods: Sequence[str], splits: int | None) -> list[Job]:
    """The first `splits` splits of each set, or all, by each method that can learn from so many rows. Raises if
    there is no such set or method, or if data are missing."""
    files, chosen = find_each("set", sets, UCI_SETS), find_each("method", methods, METHODS)
    for name, method in chosen.items():
        check_installed(name, method.package)
    known = {name: load_uci(file, 0) for name, file in files.items()}
    return [
        Job(name, by, split, method.setting)
        for by, method in chosen.items()
        for name, parts in known.items()
        if len(parts.x_train) <= (method.most_rows or len(parts.x_train))
        for split in range(min(splits or parts.n_splits, parts.n_splits))
    ]


def current(rows: Iterable[Row]) -> list[Row]:
    """Those of test parts with the settings that methods have today."""
    settings = {name: method.setting for name, method in METHODS.items()}
    return [row for row in rows if not row["validation"] and row["setting"] == settings.get(row["method"])]
