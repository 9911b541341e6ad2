"""Pictures of a comparison and of a sweep, drawn from their JSON alone."""

from __future__ import annotations

import io
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torchtagi.experiments.baselines import METHODS
from torchtagi.experiments.compare.study import method_of
from torchtagi.experiments.compare.sweep import AXES
from torchtagi.experiments.report.plots import THEMES, Figure, as_png, blank_figure, themed
from torchtagi.experiments.runs.folder import Row

# Distinguishable without colour vision too (Okabe & Ito), TAGI in the pages' own blue.
PALETTE = ("#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c6d31", "#7f7f7f")
COLOURS = dict(zip(METHODS, PALETTE, strict=True))
LEAST_IMAGES = 10  # of a bin of confidence, to be shown
DIVERGED_ERROR = 100.0  # where a run that diverged is drawn: beyond chance

Points = list[tuple[float, float]]
Runs = Mapping[str, Sequence[Row]]


@dataclass
class Panel:
    """A line a name, and behind it faint ones: single seeds."""

    xlabel: str
    ylabel: str
    lines: dict[str, Points] = field(default_factory=dict)
    faint: dict[str, list[Points]] = field(default_factory=dict)
    xlog: bool = False
    ylog: bool = False
    marker: str = "o"
    reference: Points = field(default_factory=list)


def colour_of(name: str) -> str:
    """The same for a method in every picture; in a stream, its two batch sizes share it."""
    return COLOURS.get(method_of(name), THEMES["light"]["main"])


def style_of(name: str) -> dict[str, str]:
    """In a stream, batch 1 is dotted."""
    return {"color": colour_of(name), "linestyle": ":" if name.endswith("-batch1") else "-"}


def drawn(panels: Sequence[Panel], sharey: bool = False) -> Figure:
    """The panels side by side, with one legend."""
    with themed("light"):
        figure = blank_figure(2 + 4 * len(panels), 4)
        subplots = figure.subplots(1, len(panels), sharey=sharey, squeeze=False)[0]
        for axes, panel in zip(subplots, panels, strict=True):
            axes.plot(*columns(panel.reference), color=THEMES["light"]["soft"], linewidth=1)
            for name, points in panel.lines.items():
                for line in panel.faint.get(name, []):
                    axes.plot(*columns(line), alpha=0.25, linewidth=1, **style_of(name))
                axes.plot(*columns(points), marker=panel.marker, markersize=3, label=name, **style_of(name))
            axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
            for logarithmic, axis in ((panel.xlog, "x"), (panel.ylog, "y")):
                if logarithmic:
                    axes.set(**{f"{axis}scale": "log"})
                    plain_log(getattr(axes, f"{axis}axis"))
            if sharey:
                axes.label_outer()
        found = [axes.get_legend_handles_labels() for axes in subplots]
        labels = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
        figure.legend(labels.values(), labels.keys(), loc="outside right upper")
    return figure


def columns(points: Points) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def plain_log(axis: Figure) -> None:
    """Ticks of a logarithmic axis as plain numbers, those between the powers of ten only where there is room."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """LogFormatter knows which ticks have room, but writes 0.6 as 6e-01."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(Plain(minor_thresholds=(1.5, 0.5)))


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
        seconds = [list(itertools.accumulate(row["seconds"] for row in rows)) for rows in epochs]
        by_epoch.faint[name] = [measured(rows, [row["epoch"] for row in rows]) for rows in epochs]
        by_time.faint[name] = [measured(rows, spent) for rows, spent in zip(epochs, seconds, strict=True)]
        for panel in (by_epoch, by_time):
            panel.lines[name] = mean_line(panel.faint[name])
    figure = drawn([by_epoch, by_time], sharey=True)
    figure.axes[0].xaxis.get_major_locator().set_params(integer=True)
    return figure


def measured(rows: Sequence[Row], xs: Sequence[float]) -> Points:
    """The test error of the epochs after which it was measured."""
    return [(x, row["error"]) for x, row in zip(xs, rows, strict=True) if row.get("error") is not None]


def stream_curves(runs: Runs) -> Figure:
    """A stream's error on the images that come next, against images seen and against training seconds. Without the
    methods that learn networks drawn: these few answered, which is not the method's prediction."""
    by_images = Panel("images seen", "online error, %", ylog=True, marker="")
    by_time = Panel("training seconds", "online error, %", xlog=True, ylog=True, marker="")
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
    return drawn([by_images, by_time], sharey=True)


def reliability(runs: Runs) -> Figure:
    """Accuracy, and accuracy minus confidence, by confidence, the seeds' images pooled."""
    pooled = {
        name: pooled_bins([run["summary"]["reliability"] for run in found if "summary" in run])
        for name, found in runs.items()
    }
    gaps = {name: [(c, a - c) for c, a in bins] for name, bins in pooled.items()}
    return drawn(
        [
            Panel("confidence", "accuracy", pooled, reference=[(0, 0), (1, 1)]),
            Panel("confidence", "accuracy − confidence", gaps, reference=[(0, 0), (1, 0)]),
        ]
    )


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
    return drawn(panels, sharey=True)


def small_png(figure: Figure) -> bytes:
    """With a palette: a third of the size."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.open(io.BytesIO(as_png(figure))).convert("RGB").quantize(128).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
