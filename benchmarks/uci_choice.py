"""Choose between settings of the UCI benchmark, without its test parts.

    python benchmarks/uci_choice.py --out results/uci/choice.jsonl tagi:epochs=100 tagi:noise=predicted,depth=2

A candidate is a method, and what is changed of its default setting. It learns four fifths of the first training
parts of each set and is measured on the last fifth. What the file holds already is not measured again.

Printed is a row a candidate: its mean log-likelihood over the sets less the default's, in nats; its RMSE in the
default's, a geometric mean over the sets; its worst set by log-likelihood; coverage; seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path
from typing import Any

from torchtagi.experiments.data import UCI_SETS, find_named
from torchtagi.experiments.jobs import complete, read_rows, rows_of
from torchtagi.experiments.report.tables import LABELS
from torchtagi.experiments.uci.methods import METHODS
from torchtagi.experiments.uci.runner import IDENTITY, Job, jobs_of
from torchtagi.experiments.uci.table import Mean, mean_over

SPLITS = 5
Scores = dict[str, dict[str, Mean]]


def read_candidate(text: str) -> tuple[str, dict[str, Any]]:
    """`tagi:epochs=100,noise=predicted` → ("tagi", its setting with these changes)."""
    method, _, changes = text.partition(":")
    usual = find_named("method", method, METHODS).setting
    kinds = {name: type(value) for name, value in usual.items()}
    changed = {}
    for name, _, value in (change.partition("=") for change in filter(None, changes.split(","))):
        kind = find_named(f"setting of {method}", name, kinds)
        changed[name] = value == "True" if kind is bool else kind(value)
    return method, usual | changed


def scores_of(rows: list[dict[str, Any]]) -> Scores:
    """Means over the splits, by set and measure."""
    by_set: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_set.setdefault(row["set"], []).append(row)
    return {name: {measure: mean_over(own, measure) for measure in LABELS} for name, own in by_set.items()}


def compared(found: Scores, usual: Scores) -> str:
    """A candidate beside the default, over the sets that both have learned."""
    names = [name for name in found if name in usual]
    gains = {name: found[name]["log_likelihood"].value - usual[name]["log_likelihood"].value for name in names}
    ratio = statistics.geometric_mean(found[name]["rmse"].value / usual[name]["rmse"].value for name in names)
    worst = min(gains, key=gains.__getitem__)
    means = {measure: statistics.fmean(found[name][measure].value for name in names) for measure in LABELS}
    return (
        f"log-likelihood {statistics.fmean(gains.values()):+.3f}, RMSE × {ratio:.3f}, worst {gains[worst]:+.2f} "
        f"({worst}), coverage {means['coverage']:.3f}, {means['seconds']:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("candidates", nargs="+", metavar="METHOD:NAME=VALUE,…")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sets", default=",".join(UCI_SETS))
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    asked = [read_candidate(text) for text in options.candidates]
    defaults = [(method, METHODS[method].setting) for method, _ in asked]
    jobs: dict[str, list[Job]] = {}
    for method, setting in [*defaults, *asked]:
        whole = jobs_of(options.sets.split(","), [method], options.splits)
        jobs[f"{method} {setting}"] = [dataclasses.replace(j, setting=setting, validation=True) for j in whole]
    for row in complete(options.out, [job for each in jobs.values() for job in each], options.jobs, lambda: False):
        print(f"{row['set']}, {row['method']}, split {row['split']}: {row['seconds']} s", flush=True)
    rows = read_rows(options.out, IDENTITY)
    for name, own in jobs.items():
        method = name.partition(" ")[0]
        usual = scores_of(rows_of(jobs[f"{method} {METHODS[method].setting}"], rows))
        print(f"{name}\n    {compared(scores_of(rows_of(own, rows)), usual)}")


if __name__ == "__main__":
    main()
