"""Pictures of a comparison and of a sweep, drawn from their JSON alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from torchtagi.experiments.baselines import METHODS
from torchtagi.experiments.compare.table import Member
from torchtagi.experiments.report.plots import THEMES, Figure, blank_figure, themed
from torchtagi.experiments.runs.folder import Row

# Distinguishable without colour vision too (Okabe & Ito), TAGI in the pages' own blue.
COLOURS = ("#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c6d31", "#7f7f7f")
SWEPT = {"learning rate": "-learning-rate", "σ_V": "-noise", "batch size": "-batch"}  # how a sweep's axes end
DIVERGED_ERROR = 100.0  # where a run that diverged is drawn: beyond chance


def colours(names: Sequence[str], theme: str) -> dict[str, str]:
    """The same for a method in every picture; in a stream, its two batch sizes share it."""
    picked = dict(zip(METHODS, COLOURS, strict=True))
    return {name: picked.get(method_of(name), THEMES[theme]["main"]) for name in names}


def method_of(name: str) -> str:
    """The method of an entry or of a sweep's axis: `adam` of `adam-batch16` and of `adam-learning-rate`."""
    return next((method for method in METHODS if name == method or name.startswith(f"{method}-")), "tagi")


def dashes(name: str) -> str:
    """In a stream, batch 1 is dotted."""
    return ":" if name.endswith("-batch1") else "-"


def error_curves(members: Mapping[str, list[Member]], theme: str = "light") -> Figure:
    """Test error against epochs and against training seconds: the mean of the seeds, each seed faintly."""
    with themed(theme):
        figure = blank_figure(10, 4)
        by_epoch, by_time = figure.subplots(1, 2, sharey=True)
        for name, colour in colours(list(members), theme).items():
            style = {"color": colour, "linestyle": dashes(name)}
            for axes, places in ((by_epoch, epochs_of), (by_time, seconds_of)):
                lines = [measured(member.rows, places(member.rows)) for member in members[name]]
                for line in lines:
                    axes.plot(*line.T, alpha=0.25, linewidth=1, **style)
                shortest = min((len(line) for line in lines if len(line)), default=0)
                if shortest:
                    middle = np.mean([line[:shortest] for line in lines if len(line)], axis=0)
                    axes.plot(*middle.T, marker="o", markersize=4, label=name, **style)
        by_epoch.set(xlabel="epoch", ylabel="test error, %", yscale="log")
        by_epoch.xaxis.get_major_locator().set_params(integer=True)
        by_time.set(xlabel="training seconds", xscale="log")
        plain_log(by_epoch.yaxis)
        plain_log(by_time.xaxis)
        figure.legend(*by_epoch.get_legend_handles_labels(), loc="outside right upper")
    return figure


def stream_curves(members: Mapping[str, list[Member]], theme: str = "light") -> Figure:
    """A stream's error on the images that come next, against images seen and against training seconds."""
    with themed(theme):
        figure = blank_figure(10, 4)
        by_images, by_time = figure.subplots(1, 2, sharey=True)
        for name, colour in colours(list(members), theme).items():
            rows = [member.rows[-1] for member in members[name] if member.rows]
            if not rows:
                continue
            curves = [row["train_curve"] for row in rows]
            images = [statistics.fmean(point[0] for point in points) for points in zip(*curves, strict=False)]
            error = [statistics.fmean(point[1] for point in points) for points in zip(*curves, strict=False)]
            pace = statistics.fmean(row["seconds"] / row["train_curve"][-1][0] for row in rows)
            style = {"color": colour, "linestyle": dashes(name), "label": stream_label(name)}
            by_images.plot(images, error, **style)
            by_time.plot([pace * count for count in images], error, **style)
        by_images.set(xlabel="images seen", ylabel="online error, %", yscale="log")
        by_time.set(xlabel="training seconds", xscale="log")
        plain_log(by_images.yaxis)
        plain_log(by_time.xaxis)
        figure.legend(*by_images.get_legend_handles_labels(), loc="outside right upper")
    return figure


def stream_label(name: str) -> str:
    """Says of a method that learns networks drawn that these few answered, not its prediction."""
    method = METHODS.get(method_of(name))
    return f"{name} (as drawn)" if method is not None and method.learns_drawn else name


def plain_log(axis: Figure) -> None:
    """Ticks of a logarithmic axis as plain numbers, those between the powers of ten only where there is room."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """LogFormatter knows which ticks have room, but writes 0.6 as 6e-01."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(Plain(minor_thresholds=(1.5, 0.5)))


def measured(rows: Sequence[Row], places: Sequence[float]) -> np.ndarray:
    """(place, test error) of the epochs after which it was measured, a line each."""
    found = [(place, row["error"]) for place, row in zip(places, rows, strict=True) if "error" in row]
    return np.array(found).reshape(-1, 2)


def epochs_of(rows: Sequence[Row]) -> list[float]:
    return [row["epoch"] for row in rows]


def seconds_of(rows: Sequence[Row]) -> list[float]:
    """Training seconds up to the end of each epoch."""
    spent, total = [], 0.0
    for row in rows:
        total += row["seconds"]
        spent.append(total)
    return spent


def reliability(members: Mapping[str, list[Member]], theme: str = "light") -> Figure:
    """Accuracy minus confidence by confidence, the seeds' images pooled: on the line at zero, trust is deserved."""
    with themed(theme):
        figure = blank_figure(10, 4)
        diagram, gap = figure.subplots(1, 2)
        diagram.plot([0, 1], [0, 1], color=THEMES[theme]["soft"], linewidth=1)
        gap.axhline(0, color=THEMES[theme]["soft"], linewidth=1)
        for name, colour in colours(list(members), theme).items():
            bins = pooled_bins([m.summary["reliability"] for m in members[name] if m.summary is not None])
            if bins:
                confidence, accuracy = zip(*bins, strict=True)
                style = {"color": colour, "linestyle": dashes(name), "marker": "o", "markersize": 3}
                diagram.plot(confidence, accuracy, label=name, **style)
                gap.plot(confidence, [a - c for c, a in bins], **style)
        diagram.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
        gap.set(xlabel="confidence", ylabel="accuracy − confidence", xlim=(0, 1))
        figure.legend(*diagram.get_legend_handles_labels(), loc="outside right upper")
    return figure


def pooled_bins(tables: Sequence[Row], least: int = 10) -> list[tuple[float, float]]:
    """(confidence, accuracy) of the bins with at least `least` images, over all tables."""
    found = []
    for bins in zip(*(bin_rows(table) for table in tables), strict=True):
        count = sum(row[0] for row in bins)
        if count >= least:
            confidence = sum(n * c for n, c, _ in bins if n) / count
            found.append((confidence, sum(n * a for n, _, a in bins if n) / count))
    return found


def bin_rows(table: Row) -> list[tuple[int, float, float]]:
    """An empty bin has no means; they count for nothing."""
    columns = zip(table["count"], table["confidence"], table["accuracy"], strict=True)
    return [(n, c or 0.0, a or 0.0) for n, c, a in columns]


def risk_coverage(members: Mapping[str, list[Member]], theme: str = "light") -> Figure:
    """The error among the most confident share of the answers."""
    with themed(theme):
        figure = blank_figure(6, 4)
        axes = figure.subplots()
        for name, colour in colours(list(members), theme).items():
            curves = [m.summary["risk_coverage"] for m in members[name] if m.summary is not None]
            if curves:
                risk = [100 * statistics.fmean(values) for values in zip(*(c["risk"] for c in curves), strict=True)]
                axes.plot(
                    [100 * share for share in curves[0]["coverage"]],
                    risk,
                    color=colour,
                    linestyle=dashes(name),
                    label=name,
                )
        axes.set(xlabel="% of the images answered, the most confident first", ylabel="error among them, %")
        axes.set(ylim=(0, None))
        axes.legend()
    return figure


def comparison_figures(
    members: Mapping[str, list[Member]], stream: bool = False
) -> dict[str, Callable[[str], Figure]]:
    """A stream has but one epoch: its course is within it."""
    errors = stream_curves if stream else error_curves
    return {
        "error": lambda theme: errors(members, theme),
        "reliability": lambda theme: reliability(members, theme),
        "risk-coverage": lambda theme: risk_coverage(members, theme),
    }


def sweep_figure(rows: Sequence[Row], theme: str = "light") -> Figure:
    """A panel a kind of axis; a value at which every seed diverged is a cross at the top."""
    shown = {label: ending for label, ending in SWEPT.items() if any(r["axis"].endswith(ending) for r in rows)}
    with themed(theme):
        figure = blank_figure(4.2 * max(len(shown), 1), 3.8)
        panels = figure.subplots(1, max(len(shown), 1), sharey=True, squeeze=False)[0]
        axes_names = [row["axis"] for row in rows]
        palette = colours(list(dict.fromkeys(axes_names)), theme)
        for panel, (label, ending) in zip(panels, shown.items(), strict=False):
            for axis in (name for name in palette if name.endswith(ending)):
                draw_axis(panel, [row for row in rows if row["axis"] == axis], axis, ending, palette[axis])
            panel.set(xlabel=label, xscale="log", yscale="log")
            plain_log(panel.yaxis)
            panel.legend(fontsize=8)
        panels[0].set(ylabel="final test error, %")
        panels[0].set_ylim(top=1.2 * DIVERGED_ERROR)  # once all is drawn: it ends the scaling of the shared axis
    return figure


def draw_axis(panel: Figure, rows: Sequence[Row], axis: str, ending: str, colour: str) -> None:
    numbers = [row for row in rows if row["value"] != "learned"]
    finished = [row for row in numbers if row["error"] is not None]
    panel.plot(
        [float(row["value"]) for row in finished],
        [row["error"] for row in finished],
        marker="o",
        markersize=4,
        color=colour,
        label=axis.removesuffix(ending),
    )
    panel.plot(
        [float(row["value"]) for row in numbers if row["error"] is None],
        [DIVERGED_ERROR for row in numbers if row["error"] is None],
        "x",
        color=colour,
    )
    for row in rows:
        if row["value"] == "learned" and row["error"] is not None:
            panel.axhline(row["error"], color=colour, linestyle="--", linewidth=1, label="learned noise")
