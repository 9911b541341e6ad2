"""How much a hyperparameter matters: the final error over a baseline's learning rate and TAGI's σ_V.

sweep.json               what is swept, and the error and NLL at the end of each run
<axis>/<value>/seed<k>/  the runs
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchtagi.experiments.baselines.methods import METHODS
from torchtagi.experiments.compare.runner import AnyConfig, Runner, read_study
from torchtagi.experiments.runs.folder import SWEEP, Row, reading

FACTORS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Of a baseline's default learning rate."""
NOISES: Mapping[str, dict[str, Any]] = {
    "learned": {},
    **{f"{noise:g}": {"noise": noise} for noise in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)},
}
AXES: Mapping[str, str] = {"learning-rate": "learning rate", "noise": "σ_V"}


def sweep(runner: Runner, methods: Sequence[str], seeds: Sequence[int]) -> list[Row]:
    """Train what is missing; a row an axis and value of all that the folder has."""
    configs = {name: config for seed in seeds for name, config in configs_of(runner, methods, seed).items()}
    runner.open()
    collect_sweep(runner.folder)  # tells at once if it cannot be read
    runner.complete(configs)
    return collect_sweep(runner.folder)


def configs_of(runner: Runner, methods: Sequence[str], seed: int) -> dict[str, AnyConfig]:
    """The runs of one seed by name."""
    study, threads = runner.study, runner.threads
    found: dict[str, AnyConfig] = {}
    for method in study.entries(methods):
        if method == "tagi":
            for name, changes in NOISES.items():
                found[f"tagi-noise/{name}/seed{seed}"] = study.config(method, seed, threads, **changes)
        else:
            usual = float(METHODS[method].defaults["learning_rate"])
            for rate in (float(f"{usual * factor:.3g}") for factor in FACTORS):
                name = f"{method}-learning-rate/{rate:.3g}/seed{seed}"
                found[name] = study.config(method, seed, threads, {"learning_rate": rate})
    return found


def collect_sweep(folder: Path) -> list[Row]:
    """The final errors in sweep.json, in the order of axes and values; a recorded one may have `rows` only."""
    with reading(folder / SWEEP):
        content = read_study(folder, SWEEP)
        groups: dict[tuple[str, str], list[Row]] = {}
        for name, run in content["runs"].items():
            axis, value, _ = name.split("/")
            groups.setdefault((axis, value), []).append(run)
        rows = {(row["axis"], row["value"]): row for row in content.get("rows", [])}
        rows |= {group: value_row(*group, found) for group, found in groups.items()}
        return [rows[group] for group in sorted(rows, key=order_of)]


def order_of(group: tuple[str, str]) -> tuple[bool, str, float]:
    """TAGI's axes first; the learned noise before those that are set."""
    axis, value = group
    return not axis.startswith("tagi-"), axis, 0.0 if value == "learned" else float(value)


def value_row(axis: str, value: str, runs: Sequence[Row]) -> Row:
    """Errors of the seeds of one value; a run that diverged has none and is counted."""
    done = [run for run in runs if "diverged" not in run]
    errors = [run["error"] for run in done]
    return {
        "axis": axis,
        "value": value,
        "seeds": len(done),
        "diverged": len(runs) - len(done),
        "error": statistics.fmean(errors) if done else None,
        "error_max": max(errors, default=None),
        "nll": statistics.fmean(run["nll"] for run in done) if done else None,
    }
