"""A comparison's numbers: one row an entry, means over the seeds, taken from the runs and from nowhere else."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchtagi.experiments.runs.folder import Row

COLUMNS: Mapping[str, str] = {
    "error": "error %",
    "nll": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "auroc_ovr": "AUROC classes",
    "auroc_misclassification": "AUROC mistakes",
    "ood_auroc": "AUROC foreign",
    "train_error": "online error %",
    "seconds_per_epoch": "s/epoch",
    "relative_cost": "× Adam",
    "seconds_to_target": "s to target",
    "predict_seconds_per_1000": "s/1000 predictions",
}
DIGITS = {"error": 2, "train_error": 2, "seconds_per_epoch": 1, "relative_cost": 2, "seconds_to_target": 0}


@dataclass(frozen=True)
class Member:
    """A run of an entry: its seed, its epochs' rows and its summary; no summary if it diverged or is unfinished."""

    seed: int
    rows: list[Row]
    summary: Row | None
    diverged: bool = False

    def values(self, target_error: float) -> dict[str, float | None]:
        assert self.summary is not None
        detection = self.summary["out_of_distribution"]
        return {
            **self.summary["scores"],
            "ood_auroc": detection["entropy"]["auroc"] if detection else None,
            "train_error": self.rows[-1]["train_error"],
            "seconds_per_epoch": sum(row["seconds"] for row in self.rows) / len(self.rows),
            "seconds_to_target": seconds_to(self.rows, target_error),
            "predict_seconds_per_1000": self.summary["predict_seconds_per_1000"],
        }


def seconds_to(rows: Iterable[Row], error: float) -> float | None:
    """Training seconds up to the end of the first measured epoch whose test error is at most `error` %."""
    spent = 0.0
    for row in rows:
        spent += float(row["seconds"])
        if row.get("error", math.inf) <= error:
            return spent
    return None


def entry_row(
    name: str, members: list[Member], target_error: float, relative_cost: float | None, drawn: bool = False
) -> Row:
    """Means and standard deviations over the finished seeds; a value that no seed has is None.

    TAGI, backpropagation and ensembles answer for each image of the last epoch before they learn it. A method that
    learns networks `drawn` does so with one or two of them, which is not its prediction: left out.
    """
    finished = [member.values(target_error) for member in members if member.summary is not None]
    if drawn:
        finished = [{**values, "train_error": None} for values in finished]
    row: Row = {
        "entry": name,
        "seeds": len(finished),
        "diverged": sum(member.diverged for member in members),
        "reached_target": sum(value["seconds_to_target"] is not None for value in finished),
        "relative_cost": relative_cost,
    }
    for column in COLUMNS:
        if column == "relative_cost":
            continue
        found = [value[column] for value in finished]
        known = [value for value in found if value is not None]
        row[column] = statistics.fmean(known) if known else None
        row[f"{column}_std"] = statistics.stdev(known) if len(known) > 1 else None
    return row


def cell(row: Row, column: str, spread: bool = True) -> str:
    """`1.23 ± 0.04`, or a dash for what is not known."""
    value, deviation = row.get(column), row.get(f"{column}_std")
    if value is None:
        return "–"
    digits = DIGITS.get(column, 4)
    text = f"{value:.{digits}f}"
    if deviation is not None and spread:
        text += f" ± {deviation:.{digits}f}"
    if column == "seconds_to_target" and row["reached_target"] < row["seeds"]:
        text += f" ({row['reached_target']} of {row['seeds']} seeds)"
    return text


def chosen_text(row: Row) -> str:
    """An entry's hyperparameters, where they come from, and what there is to doubt."""
    values = row["hyperparameters"] or {}
    chosen = ", ".join(f"{name} {value}" for name, value in values.items()) or "no changes"
    doubts = [f"{', '.join(row['at_edge'])} at the grid's edge"] if row["at_edge"] else []
    if row["near_chance"]:
        doubts.append("the best cell is near chance")
    return f"batch {row['batch_size']}, {chosen} ({', '.join([row['chosen_by'], *doubts])})"


def markdown(rows: list[Row], target_error: float) -> str:
    """The table, and below it what each entry was trained with."""
    lines = [
        "| method | seeds | diverged | " + " | ".join(COLUMNS.values()) + " |",
        "|---|" + "---:|" * (len(COLUMNS) + 2),
    ]
    for row in rows:
        cells = [row["entry"], str(row["seeds"]), str(row["diverged"]), *(cell(row, column) for column in COLUMNS)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        f"Seconds to target: training seconds to a test error of {target_error:g} %, the mean of the seeds that "
        "reached it.",
        "",
    ]
    lines += [f"- {row['entry']}: {chosen_text(row)}" for row in rows]
    return "\n".join(lines) + "\n"
