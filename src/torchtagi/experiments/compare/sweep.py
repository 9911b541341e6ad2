"""How much a hyperparameter matters: the final error over a rival's learning rate, over TAGI's σ_V and batch size.

sweep.json               what is swept, and what was found
<axis>/<value>/seed<k>/  a run a value and seed; values that ask for the same run share the first one's
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtagi.experiments import data
from torchtagi.experiments.baselines import configure_rival, find_method
from torchtagi.experiments.baselines.methods import Hyperparameters
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.compare.compare import FORMAT, check_format, write_json
from torchtagi.experiments.compare.running import (
    AnyConfig,
    Watch,
    complete_all,
    is_complete,
    is_diverged,
    is_foreign,
    last_row,
)
from torchtagi.experiments.runs.config import whole
from torchtagi.experiments.runs.folder import CONFIG, Row, RunError, read_json
from torchtagi.inference.conditioning import CHUNK

SWEEP = "sweep.json"
FACTORS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Of a rival's default learning rate."""
NOISES: Mapping[str, dict[str, Any]] = {
    "learned": {},
    **{f"{noise:g}": {"learn_noise": False, "noise_std": noise} for noise in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)},
}
BATCHES = (1, 4, 16, 64, 256)
"""Learned whole: in the chunks of the defaults, large ones would do as batches of 16 do."""


@dataclass(frozen=True)
class Sweep:
    """What every run of a sweep has in common."""

    task: str
    network: str
    epochs: int
    samples: int | None
    test_samples: int | None

    def __post_init__(self) -> None:
        find_task(self.task).network(self.network)
        whole("epochs", self.epochs, 1)
        for name in ("samples", "test_samples"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1)

    @property
    def name(self) -> str:
        size = "" if self.samples is None else f"-samples{self.samples}"
        return f"sweep-{self.task}-{self.network}-epochs{self.epochs}{size}"

    def axes(self, methods: list[str]) -> dict[str, dict[str, Callable[[int, int], AnyConfig]]]:
        """Axis → value → the configuration for a seed and a number of threads."""
        found: dict[str, dict[str, Callable[[int, int], AnyConfig]]] = {}
        for method in methods:
            if method == "tagi":
                found["tagi-noise"] = {name: self.ours(**changes) for name, changes in NOISES.items()}
                found["tagi-batch"] = {
                    str(size): self.ours(batch_size=size, chunk=max(size, CHUNK)) for size in BATCHES
                }
                continue
            rate = float(find_method(method).defaults["learning_rate"])
            found[f"{method}-learning-rate"] = {
                f"{rate * factor:.3g}": self.theirs(method, float(f"{rate * factor:.3g}")) for factor in FACTORS
            }
        return found

    def ours(self, **changes: Any) -> Callable[[int, int], AnyConfig]:
        return lambda seed, threads: configure(
            self.task, self.network, seed=seed, threads=threads, **self.shared, **changes
        )

    def theirs(self, method: str, rate: float) -> Callable[[int, int], AnyConfig]:
        kind = find_method(method)
        hyperparameters: Hyperparameters = {"learning_rate": rate}
        if kind.draws_networks:  # the loop's last row is all that a sweep has
            hyperparameters["curve_draws"] = kind.defaults["draws"]
        return lambda seed, threads: configure_rival(
            self.task, method, self.network, hyperparameters, seed=seed, threads=threads, **self.shared
        )

    def homes(self, methods: list[str]) -> dict[tuple[str, str], Path]:
        """Below the sweep's folder, where the runs of an axis and value are: with the first that is the same."""
        configs: list[AnyConfig] = []
        places: list[Path] = []
        found = {}
        for axis, values in self.axes(methods).items():
            for value, make in values.items():
                config = make(0, 1)
                if config not in configs:
                    configs.append(config)
                    places.append(Path(axis) / value)
                found[axis, value] = places[configs.index(config)]
        return found

    @property
    def shared(self) -> dict[str, Any]:
        sizes = {"epochs": self.epochs, "samples": self.samples, "test_samples": self.test_samples}
        return {**sizes, "measure_every": self.epochs}


def sweep(
    asked: Sweep,
    methods: list[str],
    seeds: list[int],
    folder: str | Path,
    threads: int = 1,
    watch: Watch = lambda name, event: False,
) -> list[Row]:
    """Train what is missing; a row an axis and value of all that the folder has."""
    folder = Path(folder)
    axes, homes = asked.axes(methods), asked.homes(methods)
    open_sweep(folder, asked)
    loaded: list[data.TrainTest] = []

    def sets() -> data.TrainTest:
        if not loaded:
            loaded.append(data.load_train_test(asked.task))
        return loaded[0]

    configs = {
        folder / place / f"seed{seed}": axes[axis][value](seed, threads)
        for seed in seeds
        for (axis, value), place in homes.items()
    }
    complete_all(configs, sets, watch)
    return collect_sweep(folder)


def open_sweep(folder: Path, asked: Sweep) -> None:
    content = {"format": FORMAT, "sweep": dataclasses.asdict(asked), "rows": []}
    if (folder / SWEEP).is_file():
        kept = read_json(folder / SWEEP)
        check_format(folder, kept)
        before = kept.get("sweep")
        if before != content["sweep"]:
            raise RunError(f"{folder} sweeps with {before}, not {content['sweep']}")
        return
    if is_foreign(folder, SWEEP):
        raise RunError(f"{folder} is not empty and is not a sweep; choose another folder")
    write_json(folder / SWEEP, content)


def collect_sweep(folder: Path) -> list[Row]:
    """The final errors of the finished runs below `folder`; writes them into sweep.json."""
    if not (folder / SWEEP).is_file():
        raise RunError(f"{folder} is not a sweep: it has no {SWEEP}")
    content = read_json(folder / SWEEP)
    asked = Sweep(**content["sweep"])
    rows = []
    for (axis, value), place in asked.homes(["tagi", *rivals_in(folder)]).items():
        row = value_row(folder / place, asked.epochs)
        if row is not None:
            rows.append({"axis": axis, "value": value, **row})
    write_json(folder / SWEEP, {**content, "rows": rows})
    return rows


def rivals_in(folder: Path) -> list[str]:
    ending = "-learning-rate"
    return sorted(place.name.removesuffix(ending) for place in folder.glob(f"*{ending}") if place.is_dir())


def value_row(place: Path, epochs: int) -> Row | None:
    """Errors of the seeds of one value; a run that diverged has none and is counted."""
    runs = sorted(path.parent for path in place.glob(f"seed*/{CONFIG}"))
    diverged = [run for run in runs if is_diverged(run)]
    done = [run for run in runs if run not in diverged and is_complete(run, epochs)]
    if not diverged and not done:
        return None
    last = [row for row in map(last_row, done) if row is not None]
    errors = [row["error"] for row in last]
    return {
        "seeds": len(done),
        "diverged": len(diverged),
        "error": statistics.fmean(errors) if errors else None,
        "error_min": min(errors, default=None),
        "error_max": max(errors, default=None),
        "nll": statistics.fmean(row["nll"] for row in last) if last else None,
    }
