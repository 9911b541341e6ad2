"""Figures in one style: how a run learned, how far its probabilities can be trusted, what its weights became.

matplotlib is imported when the first figure is drawn, and only its objects are used, not pyplot, which keeps
figures in a global list and may want a display.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchtagi.experiments.runs.folder import Row
from torchtagi.parameter import GaussianParameter

INK, SOFT, MAIN, ACCENT = "#1c2330", "#8a93a3", "#2563c9", "#d4691e"
# Distinguishable without colour vision too (Okabe & Ito).
PALETTE = ("#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c6d31", "#7f7f7f")
STYLE: Any = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), SOFT),
    **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "grid.alpha": 0.25,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.prop_cycle": f"cycler(color={[MAIN, ACCENT, PALETTE[1], PALETTE[3]]})",
}
COLOURS_IN_PNG = 128  # a palette makes the file a third of the size
LAYERS = 5  # of a deep network, evenly spread: more would be too small to read
TRAINING, PAPER = "training, before learning it", "paper, test"

Figure = Any
Points = list[tuple[float, float]]


@contextmanager
def new_figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[Figure, Any]]:
    """A figure and its axes, an array (rows, columns), in our style as long as it is drawn."""
    import matplotlib
    from matplotlib.figure import Figure as MatplotlibFigure

    with matplotlib.rc_context(STYLE):
        figure = MatplotlibFigure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **options)


def as_png(figure: Figure) -> bytes:
    """No date and no version inside: the same run draws the same bytes."""
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=144)
    Image.open(drawn).convert("RGB").quantize(COLOURS_IN_PNG).save(small, "PNG", optimize=True)
    return small.getvalue()


@dataclass
class Panel:
    """A line a name, and behind it faint ones: single seeds."""

    xlabel: str
    ylabel: str
    lines: dict[str, Points] = field(default_factory=dict)
    faint: dict[str, list[Points]] = field(default_factory=dict)
    xlog: bool = False
    ylog: bool = False
    reference: Points = field(default_factory=list)


def line_figure(
    panels: Sequence[Panel], styles: Mapping[str, dict[str, Any]] | None = None, sharey: bool = False
) -> Figure:
    """The panels side by side; if all have the same lines, with one legend beside them."""
    styles = styles or {}
    alike = len(panels) > 1 and len({tuple(panel.lines) for panel in panels}) == 1
    width = min(4.2 * len(panels), 10.2)  # as wide as the page
    with new_figure(width + 2 * alike, 3.8, 1, len(panels), sharey=sharey) as (figure, subplots):
        for axes, panel in zip(subplots[0], panels, strict=True):
            axes.plot(*np.reshape(panel.reference, (-1, 2)).T, color=SOFT, linewidth=1)
            for name, points in panel.lines.items():
                style = {"marker": "o", "markersize": 3, **styles.get(name, {})}
                for seed in panel.faint.get(name, []):
                    axes.plot(
                        *np.reshape(seed, (-1, 2)).T, **{**style, "alpha": 0.25, "linewidth": 1, "marker": ""}
                    )
                axes.plot(*np.reshape(points, (-1, 2)).T, **style, label=name if points else None)
            axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
            if panel.xlabel == "epoch":
                axes.xaxis.get_major_locator().set_params(integer=True)
            for logarithmic, letter in ((panel.xlog, "x"), (panel.ylog, "y")):
                if logarithmic:
                    axes.set(**{f"{letter}scale": "log"})
                    write_plainly(getattr(axes, f"{letter}axis"))
            if sharey:
                axes.label_outer()
            if any(panel.lines.values()) and not alike:
                axes.legend(fontsize=9)
        if alike:
            figure.legend(*subplots[0][0].get_legend_handles_labels(), loc="outside right upper")
    return figure


def write_plainly(axis: Any) -> None:
    """Ticks of a logarithmic axis as plain numbers, those between the powers of ten only where there is room."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        """LogFormatter knows which ticks have room, but writes 0.6 as 6e-01."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.get_major_locator().set_params(numticks=6)
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(Plain(minor_thresholds=(1.5, 0.5)))
    axis.grid(which="minor", alpha=0.12)


def course(rows: Sequence[Row], name: str, factor: float = 1.0) -> Points:
    """A measure by epoch, where it was measured."""
    return [(row["epoch"], factor * row[name]) for row in rows if row.get(name) is not None]


def learning_curves(rows: Sequence[Row], paper_error: Mapping[int, float]) -> Figure:
    """Error and negative log-likelihood over the epochs; the training error at a finer scale."""
    last = max(row["epoch"] for row in rows)
    known: Points = [(epoch, error) for epoch, error in paper_error.items() if epoch <= last]
    errors = {TRAINING: training_curve(rows), "test": course(rows, "error"), PAPER: known}
    others = {"negative log-likelihood": course(rows, "nll"), "calibration error": course(rows, "ece")}
    styles = {
        TRAINING: {"color": SOFT, "linewidth": 1.2, "marker": ""},
        PAPER: {"color": ACCENT, "linestyle": "none", "marker": "x", "markersize": 8},
    }
    panels = [Panel("epoch", "error, %", errors, ylog=True), Panel("epoch", "", others, ylog=True)]
    return line_figure(panels, styles)


def training_curve(rows: Sequence[Row]) -> Points:
    """Training error in % against epochs as a continuous number."""
    found: Points = []
    for row in rows:
        curve = row.get("train_curve") or []
        found += [(row["epoch"] - 1 + images / curve[-1][0], error) for images, error in curve]
        found += [] if curve else course([row], "train_error")
    return found


def gan_curves(rows: Sequence[Row]) -> Figure:
    """The measures of a GAN over the epochs."""
    codes = {
        "Qnet's accuracy": course(rows, "accuracy"),
        "digits with own code / 10": course(rows, "own_codes", 0.1),
        "judge's error": course(rows, "read_error", 0.01),
    }
    labels = {
        "P(generated), generated": course(rows, "fake_as_fake"),
        "P(generated), real": course(rows, "real_as_fake"),
        "α of G": course(rows, "train_generator_alpha"),
    }
    panels = [Panel("epoch", "", lines) for lines in (codes, {"Fréchet distance": course(rows, "frechet")}, labels)]
    figure = line_figure([panel for panel in panels if any(panel.lines.values())])
    for axes in figure.axes:
        axes.set_ylim(bottom=0)
    return figure


def reliability(bins: Sequence[Row]) -> Figure:
    """Accuracy against confidence."""
    confidence, accuracy = ([found[name] for found in bins] for name in ("confidence", "accuracy"))
    spread = [(found["accuracy"] * (1 - found["accuracy"]) / found["images"]) ** 0.5 for found in bins]
    with new_figure(4.6, 4.2) as (figure, ((axes,),)):
        axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1, label="perfect")
        style = {"marker": "o", "markersize": 5, "linewidth": 1.2, "capsize": 2, "label": "this network"}
        axes.errorbar(confidence, accuracy, spread, color=MAIN, **style)
        axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.02))
        axes.legend(loc="upper left")
    return figure


def ood_entropies(names: tuple[str, str], entropies: tuple[Tensor, Tensor]) -> Figure:
    """The entropies of predictions for test and out-of-distribution images."""
    edges = torch.linspace(0, float(torch.cat(entropies).max()) * 1.001, 41).tolist()
    with new_figure(6, 3.4) as (figure, ((axes,),)):
        for name, values in zip(names, entropies, strict=True):
            weights = torch.full_like(values, 100 / len(values)).numpy()
            axes.hist(values.numpy(), edges, weights=weights, alpha=0.55, label=name)
        axes.set(xlabel="entropy of the prediction, nats", ylabel="% of the images", yscale="log")
        write_plainly(axes.yaxis)
        axes.legend()
    return figure


def weights(prior: nn.Module, posterior: nn.Module) -> Figure:
    """Per layer: the weights' means before and after, and how far their standard deviations shrank."""
    pairs = weight_pairs(prior, posterior)
    with new_figure(2.4 * len(pairs) + 0.6, 4.6, 2, len(pairs)) as (figure, grid):
        for (top, bottom), (name, before, after) in zip(grid.T, pairs, strict=True):
            means = [part.mean.detach().flatten() for part in (before, after)]
            limit = 4 * float(torch.cat(means).std())
            edges = torch.linspace(-limit, limit, 51).tolist()
            top.hist(means[0].numpy(), edges, density=True, histtype="step", color=SOFT, label="prior")
            top.hist(means[1].numpy(), edges, density=True, color=MAIN, alpha=0.6, label="posterior")
            top.set_title(f"{name}\n{means[0].numel():,} weights", fontsize=9)
            top.set(xlabel="mean")
            shrink = (after.var.detach() / before.var.detach()).sqrt().flatten()
            bottom.hist(shrink.numpy(), torch.linspace(0, 1, 41).tolist(), color=ACCENT, alpha=0.75)
            bottom.axvline(float(shrink.median()), color=INK, linewidth=1, linestyle=":")
            bottom.set(xlabel="std, posterior/prior", xlim=(0, 1))
            for axes in (top, bottom):
                axes.set_yticks([])
                axes.grid(visible=False)
        grid[0][0].legend(fontsize=8)
    return figure


def weight_pairs(prior: nn.Module, posterior: nn.Module) -> list[tuple[str, GaussianParameter, GaussianParameter]]:
    """The weights, not the biases, of both networks with their layer's name; of many layers, some."""
    found: list[tuple[str, GaussianParameter, GaussianParameter]] = []
    for name, part in prior.named_modules():
        if isinstance(part, GaussianParameter) and name.endswith("weight"):
            kind = type(prior.get_submodule(name.rpartition(".")[0])).__name__
            twin = posterior.get_submodule(name)
            assert isinstance(twin, GaussianParameter)
            found.append((f"{len(found) + 1}: {kind}", part, twin))
    chosen = torch.linspace(0, len(found) - 1, min(LAYERS, len(found))).round().int().tolist()
    return [found[index] for index in chosen]
