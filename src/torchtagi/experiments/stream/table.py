"""Methods beside each other, and how they went along the rows."""

import statistics
from collections.abc import Sequence

from torchtagi.experiments.report.plots import MAIN, PALETTE, Figure, new_figure
from torchtagi.experiments.report.tables import LABELS, NOTHING, SIGNS, Cell, Table, compared
from torchtagi.experiments.runs.folder import Row
from torchtagi.experiments.stream.learners import LEARNERS
from torchtagi.experiments.stream.runner import STREAMS

COLOURS = dict(zip(LEARNERS, (PALETTE[4], PALETTE[1], MAIN, PALETTE[2], PALETTE[0], PALETTE[6]), strict=True))


def of(rows: Sequence[Row], stream: str, method: str) -> list[Row]:
    return [row for row in rows if (row["stream"], row["method"]) == (stream, method)]


def streams_of(rows: Sequence[Row]) -> list[str]:
    return [name for name in STREAMS if any(row["stream"] == name for row in rows)]


def tables(rows: Sequence[Row]) -> list[Table]:
    """Means over the seeds, a table a measure."""
    return [table_of(rows, measure) for measure in SIGNS]


def table_of(rows: Sequence[Row], measure: str) -> Table:
    columns = {}
    for stream in streams_of(rows):
        values = {method: [float(row[measure]) for row in of(rows, stream, method)] for method in LEARNERS}
        means = {method: statistics.fmean(own) for method, own in values.items() if own}
        columns[stream] = compared({method: shown(mean) for method, mean in means.items()}, means, measure)
    lines = [
        [Cell(method), *(cells.get(method, NOTHING) for cells in columns.values())]
        for method in LEARNERS
        if any(method in cells for cells in columns.values())
    ]
    return Table(LABELS[measure], ["method", *columns], lines)


def shown(value: float) -> str:
    """Three significant digits of what is small."""
    return f"{value:.{2 if abs(value) >= 1 else 3}f}"


def figure(rows: Sequence[Row]) -> Figure:
    """Error and likelihood along the rows, a line of panels a stream, means over the seeds."""
    streams = streams_of(rows)
    with new_figure(10, 2.3 * len(streams) + 0.5, len(streams), 2) as (drawn, axes):
        for (error, likelihood), stream in zip(axes, streams, strict=True):
            lowest = []
            for method in LEARNERS:
                curves = [row["curve"] for row in of(rows, stream, method)]
                if not curves:
                    continue
                points = [[statistics.fmean(part) for part in zip(*each, strict=True)] for each in zip(*curves)]  # noqa: B905
                places, errors, likelihoods = zip(*points, strict=True)
                width = 2.0 if method == "tagi-auto" else 1.2
                for panel, values in ((error, errors), (likelihood, likelihoods)):
                    panel.plot(places, values, color=COLOURS[method], linewidth=width, label=method)
                lowest.append(statistics.quantiles(likelihoods, n=20)[0])
            error.set(title=stream, ylabel=LABELS["rmse"], yscale="log")
            likelihood.set(ylabel=LABELS["log_likelihood"], ylim=(min(lowest) - 0.5, None))
        axes[-1][0].set_xlabel("rows")
        axes[-1][1].set_xlabel("rows")
        drawn.legend(*axes[0][0].get_legend_handles_labels(), ncols=len(LEARNERS), loc="outside upper center")
        return drawn
