"""Means over splits with their standard errors, beside what was published; and in how many sets TAGI is ahead."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torchtagi.experiments.data import UCI_SETS
from torchtagi.experiments.report.tables import LABELS, NOTHING, SIGNS, Cell, Table, compared
from torchtagi.experiments.runs.folder import Row
from torchtagi.experiments.uci.methods import METHODS

DIGITS = {"log_likelihood": 2, "coverage": 3, "seconds": 1}
HONEST = (0.93, 0.97)  # shares of targets that a 95 % interval may hold


COLUMNS = ("TAGI", "TAGI-V", "MC-dropout", "PBP", "deep ensemble")
TAGI_COLUMNS = COLUMNS[:2]
# RMSE/log-likelihood of each column, as printed
FIGURES = """
boston     3.15/-2.58  3.33/-2.57  2.90/-2.40   3.54/-2.82  3.72/-2.50
concrete   5.87/-3.20  6.27/-3.19  4.83/-2.94   5.83/-3.20  5.35/-2.96
energy     1.32/-1.81  2.24/-1.66  0.54/-1.21   -           2.58/-2.19
kin8nm     0.095/0.89  0.122/0.94  0.079/1.14   0.099/0.89  0.077/1.22
naval      0.007/3.54  0.007/3.74  0.0007/4.45  -           0.0037/3.84
power      4.13/-2.88  4.16/-2.83  4.01/-2.81   4.15/-2.84  4.13/-2.82
protein    4.62/-2.95  4.73/-2.89  4.27/-2.87   -           4.59/-2.86
wine       0.639/-0.98 0.638/-0.98 0.622/-0.93  0.633/-0.97 0.633/-0.97
yacht      1.04/-1.60  1.50/-1.42  0.67/-1.25   1.07/-1.66  0.93/-1.19
"""


class Figures(NamedTuple):
    """Both as printed, for a number's digits say how exact it is."""

    rmse: str
    log_likelihood: str


def read_figures(text: str) -> dict[str, dict[str, Figures]]:
    """By set and column; a column has nothing for the sets that its authors left out."""
    found = {}
    for name, *cells in map(str.split, text.strip().splitlines()):
        pairs = zip(COLUMNS, cells, strict=True)
        found[name] = {column: Figures(*cell.split("/")) for column, cell in pairs if cell != "-"}
    return found


PUBLISHED = read_figures(FIGURES)


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
    for name in UCI_SETS:
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
            cells = compared({"tagi": shown(known["tagi"][measure], measure), **printed}, values, measure)
            rows.append([Cell(name), *(cells.get(column, NOTHING) for column in ("tagi", *COLUMNS))])
    return Table(f"{LABELS[measure]}, beside published figures", ["set", "tagi", *COLUMNS], rows)


def own_table(means: Means, methods: Sequence[str], measure: str) -> Table:
    rows = []
    for name, known in means.items():
        texts = {method: shown(found[measure], measure) for method, found in known.items()}
        cells = compared(texts, {method: found[measure].value for method, found in known.items()}, measure)
        rows.append([Cell(name), *(cells.get(method, NOTHING) for method in methods)])
    return Table(LABELS[measure], ["set", *methods], rows)


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


def verdicts(means: Means) -> list[str]:
    """Where TAGI is ahead, a line for each question: in which sets it is better than each published figure of TAGI;
    the best of all, published or run here, or within its own standard error of the best; and in which its intervals
    hold about as many targets as they should. None without it."""
    own = {name: known["tagi"] for name, known in means.items() if "tagi" in known}

    def line(question: str, names: Iterable[str]) -> str:
        found = list(names)
        return f"{question}: {len(found)} of {len(own)} sets" + (f" ({', '.join(found)})" if found else "")

    lines = []
    for measure, sign in SIGNS.items():
        ahead, best = [], []
        for name, scores in own.items():
            mean = scores[measure]
            printed = {column: float(getattr(figures, measure)) for column, figures in PUBLISHED[name].items()}
            here = [found[measure].value for method, found in means[name].items() if method != "tagi"]
            if all(sign * (mean.value - printed[column]) > 0 for column in TAGI_COLUMNS):
                ahead.append(name)
            if all(sign * (other - mean.value) <= (mean.error or 0.0) for other in (*printed.values(), *here)):
                best.append(name)
        lines.append(line(f"{LABELS[measure]} better than TAGI's and TAGI-V's", ahead))
        lines.append(line(f"{LABELS[measure]} the best of all, or within a standard error of it", best))
    low, high = HONEST
    honest = (name for name, scores in own.items() if low <= scores["coverage"].value <= high)
    lines.append(line(f"95 % intervals that hold {low:.2f} to {high:.2f} of the targets", honest))
    return lines if own else []
