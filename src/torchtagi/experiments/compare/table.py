"""A comparison's numbers: one row an entry, means over the seeds, taken from the runs and from nowhere else."""

import statistics
from collections.abc import Mapping, Sequence

from torchtagi.experiments.baselines.methods import METHODS
from torchtagi.experiments.compare.study import method_of
from torchtagi.experiments.runs.folder import Row

COLUMNS: Mapping[str, str] = {
    "error": "error %",
    "nll": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "auroc_misclassification": "AUROC errors",
    "ood_auroc": "AUROC OOD",
    "train_error": "online error %",
    "seconds_per_epoch": "s/epoch",
    "relative_cost": "× Adam",
    "predict_seconds_per_1000": "s/1000 predictions",
}
SCORES, COSTS = tuple(COLUMNS)[:6], tuple(COLUMNS)[6:]
DIGITS = {"error": 2, "train_error": 2, "seconds_per_epoch": 1, "relative_cost": 2}


def runs_of(content: Row) -> dict[str, list[Row]]:
    """What came of the runs of each entry, TAGI's first, then the baselines' as `METHODS` has them."""
    order = ["tagi", *METHODS]
    names = sorted(
        content["entries"], key=lambda n: (order.index(method_of(n)), content["entries"][n]["batch_size"])
    )
    return {name: [run for key, run in content["runs"].items() if key.startswith(f"{name}/seed")] for name in names}


def rows_of(content: Row) -> list[Row]:
    """The table of what comparison.json holds. An epoch's cost is the fastest one's of all seeds: runs may have
    been made beside other work. It is given in Adam's, in a stream of the same batch size."""
    runs, rows = runs_of(content), []
    costs = {name: fastest_epoch(found) for name, found in runs.items()}
    for name, found in runs.items():
        known, adam = content["entries"][name], costs.get(name.replace(method_of(name), "adam", 1))
        row = entry_row(name, found)
        row["relative_cost"] = (costs[name] or 0.0) / adam if costs[name] and adam else None
        chosen = {"batch_size": known["batch_size"], "hyperparameters": dict(known["hyperparameters"])}
        doubts = {"chosen_by": known["chosen_by"], "at_edge": known.get("tuning", {}).get("at_edge", [])}
        rows.append({**row, **chosen, **doubts})
    return rows


def fastest_epoch(runs: Sequence[Row]) -> float | None:
    return min((row["seconds"] for run in runs if "epochs" in run for row in run["epochs"]), default=None)


def entry_row(name: str, runs: Sequence[Row]) -> Row:
    """Means and standard deviations over the finished seeds; a value that no seed has is None."""
    method = METHODS.get(method_of(name))
    finished = [values_of(run) for run in runs if "diverged" not in run]
    row: Row = {"entry": name, "seeds": len(finished), "diverged": len(runs) - len(finished)}
    for column in COLUMNS:
        known = [value[column] for value in finished if value.get(column) is not None]
        if column == "train_error" and method is not None and method.learns_drawn:
            known = []  # one or two networks drawn answered, which is not the method's prediction
        row[column] = statistics.fmean(known) if known else None
        row[f"{column}_std"] = statistics.stdev(known) if len(known) > 1 else None
    return row


def values_of(run: Row) -> Row:
    epochs, summary = run["epochs"], run["summary"]
    detection = summary["out_of_distribution"]
    return {
        **summary["scores"],
        "ood_auroc": detection["entropy"]["auroc"] if detection else None,
        "train_error": epochs[-1]["train_error"],
        "seconds_per_epoch": statistics.fmean(row["seconds"] for row in epochs),
        "predict_seconds_per_1000": summary["predict_seconds_per_1000"],
    }


def cell(row: Row, column: str, spread: bool = True) -> str:
    """`1.23 ± 0.04`, or a dash for what is not known."""
    value, deviation, digits = row.get(column), row.get(f"{column}_std"), DIGITS.get(column, 4)
    if value is None:
        return "–"
    return f"{value:.{digits}f}" + (f" ± {deviation:.{digits}f}" if deviation is not None and spread else "")


def chosen_text(row: Row) -> str:
    """`adam, 3 seeds: batch 64, learning_rate 0.003 (tuning)`, and what there is to doubt."""
    chosen = ", ".join(f"{name} {value}" for name, value in row["hyperparameters"].items()) or "no changes"
    seeds = "1 seed" if row["seeds"] == 1 else f"{row['seeds']} seeds"
    seeds += f" and {row['diverged']} diverged" if row["diverged"] else ""
    doubt = f", {', '.join(row['at_edge'])} at the grid's edge" if row["at_edge"] else ""
    return f"{row['entry']}, {seeds}: batch {row['batch_size']}, {chosen} ({row['chosen_by']}{doubt})"
