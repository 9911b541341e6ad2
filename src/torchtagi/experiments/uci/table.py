"""Means over splits with their standard errors, beside what was published; and in how many sets TAGI is ahead."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torchtagi.experiments.jobs.table import Cell, Table
from torchtagi.experiments.runs.folder import Row
from torchtagi.experiments.uci.methods import METHODS
from torchtagi.experiments.uci.published import COLUMNS, PUBLISHED, SETS, TAGI_COLUMNS

SIGNS = {"rmse": -1, "log_likelihood": 1}  # what is large is good, or bad
LABELS = {
    "rmse": "RMSE",
    "log_likelihood": "log-likelihood",
    "coverage": "share of targets in 95 % intervals",
    "seconds": "seconds a split, one core",
}
DIGITS = {"log_likelihood": 2, "coverage": 3, "seconds": 1}
HONEST = (0.93, 0.97)  # shares of targets that a 95 % interval may hold


class Mean(NamedTuple):
    value: float
    error: float | None
    """Its standard error; one split has none."""
    splits: int
    of_splits: int


Means = Mapping[str, Mapping[str, Mapping[str, Mean]]]
"""By set, method and measure."""


def means_of(rows: Iterable[Row]) -> Means:
    """Sets and methods in the order that all tables have."""
    rows = list(rows)
    found: dict[str, dict[str, dict[str, Mean]]] = {}
    for name in SETS:
        for method in METHODS:
            own = [row for row in rows if (row["set"], row["method"]) == (name, method)]
            if own:
                found.setdefault(name, {})[method] = {measure: mean_over(own, measure) for measure in LABELS}
    return found


def mean_over(rows: Sequence[Row], measure: str) -> Mean:
    values = [float(row[measure]) for row in rows]
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Mean(statistics.fmean(values), error, len(values), int(rows[0]["splits"]))


# ---- tables --------------------------------------------------------------------------------------------------


def tables(means: Means) -> list[Table]:
    """Errors and likelihoods beside the published ones, then all measures of the methods that were run here."""
    methods = [method for method in METHODS if any(method in known for known in means.values())]
    beside = [published_table(means, measure) for measure in SIGNS if "tagi" in methods]
    own = [measure for measure in LABELS if methods != ["tagi"] or measure not in SIGNS]
    return beside + [own_table(means, methods, measure) for measure in own]


def published_table(means: Means, measure: str) -> Table:
    rows = []
    for name, known in means.items():
        if "tagi" in known:
            printed = {column: getattr(figures, measure) for column, figures in PUBLISHED[name].items()}
            values = {"tagi": known["tagi"][measure].value} | {col: float(text) for col, text in printed.items()}
            texts = {"tagi": shown(known["tagi"][measure], measure), **printed}
            rows.append(row_of(name, ("tagi", *COLUMNS), texts, values, measure))
    return Table(f"{LABELS[measure]}, beside published figures", ["set", "tagi", *COLUMNS], rows)


def own_table(means: Means, methods: Sequence[str], measure: str) -> Table:
    rows = []
    for name, known in means.items():
        texts = {method: shown(found[measure], measure) for method, found in known.items()}
        values = {method: found[measure].value for method, found in known.items()}
        rows.append(row_of(name, methods, texts, values, measure))
    return Table(LABELS[measure], ["set", *methods], rows)


def row_of(
    name: str, columns: Sequence[str], texts: Mapping[str, str], values: Mapping[str, float], measure: str
) -> list[Cell]:
    """A dash where nothing is known; several may be the best."""
    sign = SIGNS.get(measure, 0)
    best = max(sign * value for value in values.values())
    cells = [
        Cell(texts[column].replace("-", "−"), bool(sign and len(values) > 1 and sign * values[column] == best))
        if column in texts
        else Cell("–")
        for column in columns
    ]
    return [Cell(name), *cells]


def shown(mean: Mean, measure: str) -> str:
    """`2.90 ± 0.18`; the number of splits if they are not all. An RMSE has three significant digits at least, and
    two decimals."""
    digits = DIGITS.get(measure)
    if digits is None:
        digits = max(2, 2 - math.floor(math.log10(mean.value))) if mean.value > 0 else 2
    text = f"{mean.value:.{digits}f}"
    if measure in SIGNS and mean.error is not None:
        text += f" ± {mean.error:.{digits}f}"
    return text if mean.splits == mean.of_splits else f"{text} ({mean.splits})"


# ---- where TAGI is ahead -------------------------------------------------------------------------------------


def ahead_of_published(means: Means, measure: str) -> list[str]:
    """Sets in which it is better than each published figure of TAGI."""
    found = []
    for name, known in means.items():
        if "tagi" in known:
            others = [float(getattr(PUBLISHED[name][column], measure)) for column in TAGI_COLUMNS]
            if all(SIGNS[measure] * (known["tagi"][measure].value - other) > 0 for other in others):
                found.append(name)
    return found


def at_the_top(means: Means, measure: str) -> list[str]:
    """Sets in which it is the best of all, published or run here, or within its own standard error of the best."""
    found = []
    for name, known in means.items():
        if "tagi" in known:
            others = [float(getattr(figures, measure)) for figures in PUBLISHED[name].values()]
            others += [scores[measure].value for method, scores in known.items() if method != "tagi"]
            own = known["tagi"][measure]
            if all(SIGNS[measure] * (other - own.value) <= (own.error or 0.0) for other in others):
                found.append(name)
    return found


def honest(means: Means) -> list[str]:
    """Sets in which its intervals hold about as many targets as they should."""
    low, high = HONEST
    return [
        name for name, known in means.items() if "tagi" in known and low <= known["tagi"]["coverage"].value <= high
    ]


def verdicts(means: Means) -> list[str]:
    """A line for each question; none without TAGI."""
    count = sum("tagi" in known for known in means.values())
    if not count:
        return []

    def of_sets(names: list[str]) -> str:
        return f"{len(names)} of {count} sets" + (f" ({', '.join(names)})" if names else "")

    lines = []
    for measure in SIGNS:
        lines.append(
            f"{LABELS[measure]} better than TAGI's and TAGI-V's: {of_sets(ahead_of_published(means, measure))}"
        )
        lines.append(
            f"{LABELS[measure]} the best of all, or within a standard error of it: "
            f"{of_sets(at_the_top(means, measure))}"
        )
    low, high = HONEST
    return [*lines, f"95 % intervals that hold {low:.2f} to {high:.2f} of the targets: {of_sets(honest(means))}"]
