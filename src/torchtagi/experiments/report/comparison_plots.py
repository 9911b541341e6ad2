"""Pictures of a comparison and of a sweep, drawn from their JSON alone."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchtagi.experiments.baselines.methods import METHODS
from torchtagi.experiments.compare.study import method_of
from torchtagi.experiments.compare.sweep import AXES
from torchtagi.experiments.report.plots import MAIN, PALETTE, Figure, Panel, Points, course, line_figure
from torchtagi.experiments.runs.folder import Row

COLOURS = dict(zip(METHODS, PALETTE, strict=True))
LEAST_IMAGES = 10  # of a bin of confidence, to be shown
DIVERGED_ERROR = 100.0  # where a run that diverged is drawn: beyond chance

Runs = Mapping[str, Sequence[Row]]


def colour_of(name: str) -> str:
    """The same for a method in every picture; in a stream, its two batch sizes share it."""
    return COLOURS.get(method_of(name), MAIN)


def styles_of(names: Iterable[str], **style: Any) -> dict[str, dict[str, Any]]:
    """In a stream, batch 1 is dotted."""
    return {
        name: {"color": colour_of(name), "linestyle": ":" if name.endswith("-batch1") else "-", **style}
        for name in names
    }


def mean_line(lines: Iterable[Points]) -> Points:
    """Point by point, as far as all of them go."""
    return [
        (statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points))
        for points in zip(*lines, strict=False)
    ]


def error_curves(runs: Runs) -> Figure:
    """Test error against epochs and against training seconds: the mean of the seeds, each seed faintly."""
    by_epoch = Panel("epoch", "test error, %", ylog=True)
    by_time = Panel("training seconds", "test error, %", xlog=True, ylog=True)
    for name, found in runs.items():
        epochs = [run["epochs"] for run in found if "epochs" in run]
        by_epoch.faint[name] = [course(rows, "error") for rows in epochs]
        by_time.faint[name] = [course(by_seconds(rows), "error") for rows in epochs]
        for panel in (by_epoch, by_time):
            panel.lines[name] = mean_line(panel.faint[name])
    return line_figure([by_epoch, by_time], styles_of(runs), sharey=True)


def by_seconds(rows: Sequence[Row]) -> list[Row]:
    """The rows with the seconds of training until then in place of the epoch."""
    spent = itertools.accumulate(row["seconds"] for row in rows)
    return [{**row, "epoch": seconds} for row, seconds in zip(rows, spent, strict=True)]


def stream_curves(runs: Runs) -> Figure:
    """A stream's error on the images that come next, against images seen and against training seconds. Without the
    methods that learn networks drawn: these few answered, which is not the method's prediction."""
    by_images = Panel("images seen", "online error, %", ylog=True)
    by_time = Panel("training seconds", "online error, %", xlog=True, ylog=True)
    for name, found in runs.items():
        method = METHODS.get(method_of(name))
        if method is not None and method.learns_drawn:
            continue
        rows = [run["epochs"][-1] for run in found if "epochs" in run]
        by_images.lines[name] = mean_line(row["train_curve"] for row in rows)
        by_time.lines[name] = mean_line(
            [(images * row["seconds"] / row["train_curve"][-1][0], error) for images, error in row["train_curve"]]
            for row in rows
        )
    return line_figure([by_images, by_time], styles_of(runs, marker=""), sharey=True)


def reliability(runs: Runs) -> Figure:
    """Accuracy, and accuracy minus confidence, by confidence, the seeds' images pooled."""
    pooled = {
        name: pooled_bins([run["summary"]["reliability"] for run in found if "summary" in run])
        for name, found in runs.items()
    }
    gaps = {name: [(c, a - c) for c, a in bins] for name, bins in pooled.items()}
    panels = [
        Panel("confidence", "accuracy", pooled, reference=[(0, 0), (1, 1)]),
        Panel("confidence", "accuracy − confidence", gaps, reference=[(0, 0), (1, 0)]),
    ]
    return line_figure(panels, styles_of(runs))


def pooled_bins(tables: Sequence[Row]) -> Points:
    """(confidence, accuracy) of the bins with enough images, over all tables. An empty bin has no means."""
    found = []
    for bins in zip(*(zip(t["count"], t["confidence"], t["accuracy"], strict=True) for t in tables), strict=True):
        count = sum(n for n, _, _ in bins)
        if count >= LEAST_IMAGES:
            confidence, accuracy = (sum(n * (row[i] or 0.0) for n, *row in bins) / count for i in (0, 1))
            found.append((confidence, accuracy))
    return found


def sweep_figure(rows: Sequence[Row]) -> Figure:
    """A panel a kind of axis; a value at which every seed diverged is at 100 %, the learned noise a line across."""
    panels = []
    for end, label in AXES.items():
        panel = Panel(label, "final test error, %", xlog=True, ylog=True)
        for row in (row for row in rows if row["axis"].endswith(f"-{end}") and row["value"] != "learned"):
            error = DIVERGED_ERROR if row["error"] is None else row["error"]
            panel.lines.setdefault(row["axis"].removesuffix(f"-{end}"), []).append((float(row["value"]), error))
        values = [value for points in panel.lines.values() for value, _ in points]
        learned = [row["error"] for row in rows if end == "noise" and row["value"] == "learned"]
        if values:
            panel.reference = [(value, error) for error in learned if error for value in (min(values), max(values))]
            panels.append(panel)
    return line_figure(panels, styles_of(name for panel in panels for name in panel.lines), sharey=True)
