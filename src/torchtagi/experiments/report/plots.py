"""Pictures of a run: how it learned, how far its probabilities can be trusted, what it finds hard, what it learned.

Each function draws one figure in a theme, `light` or `dark`. matplotlib is imported when the first one is drawn,
and only its objects are used, not pyplot, which keeps figures in a global list and may want a display.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi import metrics
from torchtagi.experiments.classify.evaluation import Evaluation
from torchtagi.experiments.runs.folder import Row
from torchtagi.parameter import GaussianParameter

Figure = Any
# The grounds are those of the report page, so that figures melt into it.
THEMES = {
    "light": {"ink": "#1c2330", "soft": "#8a93a3", "main": "#2563c9", "accent": "#d4691e", "ground": "#ffffff"},
    "dark": {"ink": "#e4e8ef", "soft": "#7d8798", "main": "#7fb0ff", "accent": "#ffab66", "ground": "#161a21"},
}
FURTHER = ("#009e73", "#cc79a7")  # of Okabe & Ito, where three lines are not enough; read on either ground
GALLERY = 24
LAYERS = 5  # of a deep network, evenly spread: more would be too small to read


class PlotsUnavailableError(RuntimeError):
    """matplotlib is not installed."""


def require_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotsUnavailableError("plots need matplotlib: pip install 'torchtagi[plots]'")


def themed(theme: str) -> AbstractContextManager[Any]:
    """matplotlib's settings for the time a figure is drawn."""
    require_matplotlib()
    import matplotlib
    from cycler import cycler

    colours = THEMES[theme]
    soft, ink = colours["soft"], colours["ink"]
    settings: Any = {
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink),
        **{
            "axes.edgecolor": soft,
            "grid.color": soft,
            "grid.alpha": 0.25,
            "axes.grid": True,
            "axes.axisbelow": True,
        },
        **{"axes.facecolor": "none", "figure.facecolor": colours["ground"], "legend.frameon": False},
        **{"axes.spines.top": False, "axes.spines.right": False, "font.size": 10},
        **{"axes.titlesize": 11, "axes.titlelocation": "left"},
        "axes.prop_cycle": cycler(color=[colours["main"], colours["accent"], soft, *FURTHER]),
    }
    return matplotlib.rc_context(settings)


def blank_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure as MatplotlibFigure

    return MatplotlibFigure(figsize=(width, height), layout="constrained")


def as_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    # No date and no version inside: the same run draws the same bytes.
    figure.savefig(buffer, format="png", dpi=144, metadata={"Software": None})
    return buffer.getvalue()


def learning_curves(rows: Sequence[Row], paper_error: Mapping[int, float], theme: str = "light") -> Figure:
    """Error and negative log-likelihood over the epochs; the training error at a finer scale."""
    colours = THEMES[theme]
    measured = [row for row in rows if row.get("error") is not None]
    epochs = [row["epoch"] for row in measured]
    last = max(epochs, default=1)
    known = {epoch: value for epoch, value in paper_error.items() if epoch <= last}
    with themed(theme):
        from matplotlib.ticker import LogFormatter

        figure = blank_figure(9, 3.6)
        error, other = figure.subplots(1, 2)
        error.plot(
            *training_curve(rows), color=colours["soft"], linewidth=1.2, label="training, before learning it"
        )
        error.plot(epochs, column(measured, "error"), "o-", markersize=4, label="test")
        if known:
            paper = {"color": colours["accent"], "markersize": 8, "label": "paper, test"}
            error.plot(list(known), list(known.values()), "x", **paper)
        error.set(ylabel="error, %")
        other.plot(epochs, column(measured, "nll"), "o-", markersize=4, label="negative log-likelihood")
        other.plot(epochs, column(measured, "ece"), "s-", markersize=4, label="calibration error")
        for axes in (error, other):
            axes.set(xlabel="epoch", yscale="log", xlim=(0, last + 0.05))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.grid(which="minor", alpha=0.12)
            axes.xaxis.get_major_locator().set_params(integer=len(epochs) > 3)
            axes.legend()
        error.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))  # some labels within a decade
    return figure


def column(rows: Sequence[Row], name: str) -> list[float]:
    """NaN where it was not measured."""
    return [float("nan") if row.get(name) is None else row[name] for row in rows]


def training_curve(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Training error in % against epochs as a continuous number; without a zero, which a log scale lacks."""
    seen: list[float] = []
    error: list[float] = []
    for row in rows:
        points = row.get("train_curve") or []
        for images, value in points:
            seen.append(row["epoch"] - 1 + images / points[-1][0])
            error.append(value if value > 0 else float("nan"))
        if not points:
            seen.append(row["epoch"])
            error += column([row], "train_error")
    return seen, error


def reliability(evaluation: Evaluation, theme: str = "light") -> Figure:
    """Accuracy against confidence, with the number of images behind each point below."""
    colours = THEMES[theme]
    bins = metrics.reliability_bins(evaluation.prediction.probs, evaluation.labels)
    filled = bins.counts > 0
    accuracy, counts = bins.accuracy[filled], bins.counts[filled]
    middle = ((bins.edges[:-1] + bins.edges[1:]) / 2)[filled]
    spread = (accuracy * (1 - accuracy) / counts).sqrt()
    with themed(theme):
        figure = blank_figure(4.6, 5)
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        above.plot([0, 1], [0, 1], color=colours["soft"], linewidth=1, label="perfect")
        style = {"marker": "o", "markersize": 5, "linewidth": 1.2, "capsize": 2, "label": "this network"}
        confidence = bins.confidence[filled].tolist()
        above.errorbar(confidence, accuracy.tolist(), spread.tolist(), color=colours["main"], **style)
        above.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
        above.set_title(f"expected calibration error {evaluation.scores['ece']:.4f}")
        above.legend(loc="upper left")
        width = 0.9 * float(bins.edges[1] - bins.edges[0])
        below.bar(middle.tolist(), counts.tolist(), width=width, color=colours["main"], alpha=0.7)
        below.set(xlabel="confidence", ylabel="images", yscale="log", ylim=(0.7, None))
    return figure


def most_uncertain(evaluation: Evaluation, theme: str = "light") -> Figure:
    """The test images of largest entropy."""
    return gallery(evaluation, evaluation.prediction.entropy.argsort(descending=True)[:GALLERY], theme)


def confidently_wrong(evaluation: Evaluation, theme: str = "light") -> Figure | None:
    """The errors made with most confidence; None if there are no errors."""
    wrong = torch.nonzero(evaluation.prediction.labels != evaluation.labels)[:, 0]
    if not len(wrong):
        return None
    order = evaluation.prediction.confidence[wrong].argsort(descending=True)
    return gallery(evaluation, wrong[order[:GALLERY]], theme)


def gallery(evaluation: Evaluation, chosen: Tensor, theme: str) -> Figure:
    """Images with the truth and the two likeliest answers."""
    colours, names = THEMES[theme], evaluation.test.classes
    pictures = evaluation.test.to_uint8(evaluation.test.images[chosen]).permute(0, 2, 3, 1).numpy()
    short = max(len(name) for name in names) <= 2
    # A cell is one wide and so much high: the title above the picture has two lines, or three.
    columns, pitch = 8, 1.38 if short else 1.5
    rows = -(-len(chosen) // columns)
    with themed(theme):
        figure = blank_figure(10, 10 / columns * pitch * rows)
        figure.set_layout_engine("none")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        for cell, (pixels, i) in enumerate(zip(pictures, chosen.tolist(), strict=True)):
            left, bottom = cell % columns, (cell // columns + 1) * pitch
            probs, truth = evaluation.prediction.probs[i], int(evaluation.labels[i])
            best = probs.argsort(descending=True)[:2].tolist()
            guess = ("   " if short else "\n").join(f"{names[c]}: {100 * float(probs[c]):.0f}%" for c in best)
            extent = (left + 0.04, left + 0.96, bottom, bottom - 0.92)
            axes.imshow(pixels.squeeze(), cmap="gray", vmin=0, vmax=255, extent=extent)
            style = {"fontsize": 8, "ha": "center", "va": "bottom"}
            colour = colours["ink" if best[0] == truth else "accent"]
            axes.text(left + 0.5, bottom - 0.95, f"is {names[truth]}\n{guess}", color=colour, **style)
        axes.set(xlim=(0, columns), ylim=(rows * pitch + 0.02, 0), aspect="auto")
    return figure


def ood_entropies(evaluation: Evaluation, theme: str = "light") -> Figure | None:
    """The entropies of test and out-of-distribution images; None if there are none of the latter."""
    if evaluation.ood is None:
        return None
    entropies = {
        evaluation.task.name: evaluation.prediction.entropy,
        evaluation.task.ood: evaluation.ood.entropy,
    }
    edges = torch.linspace(0, float(torch.cat(list(entropies.values())).max()) * 1.001, 41).tolist()
    with themed(theme):
        figure = blank_figure(6, 3.4)
        axes = figure.subplots()
        for colour, (label, values) in zip(("main", "accent"), entropies.items(), strict=True):
            weights = torch.full_like(values, 100 / len(values)).numpy()
            axes.hist(values.numpy(), edges, weights=weights, color=THEMES[theme][colour], alpha=0.55, label=label)
        axes.set(xlabel="entropy of the prediction, nats", ylabel="% of the images", yscale="log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.legend()
    return figure


def weights(prior: nn.Module, posterior: nn.Module, theme: str = "light") -> Figure:
    """Per layer: the weights' means before and after, and how far their standard deviations shrank."""
    colours = THEMES[theme]
    pairs = spread_out(weight_pairs(prior, posterior))
    with themed(theme):
        figure = blank_figure(2.4 * len(pairs) + 0.6, 4.6)
        grid = figure.subplots(2, len(pairs), squeeze=False)
        for (top, bottom), (name, before, after) in zip(grid.T, pairs, strict=True):
            means = [part.mean.detach().flatten() for part in (before, after)]
            limit = quantile(torch.cat(means).abs())
            edges = torch.linspace(-limit, limit, 51).tolist()
            top.hist(means[0].numpy(), edges, density=True, histtype="step", color=colours["soft"], label="prior")
            top.hist(means[1].numpy(), edges, density=True, color=colours["main"], alpha=0.6, label="posterior")
            top.set_title(f"{name}\n{means[0].numel():,} weights", fontsize=9)
            top.set(xlabel="mean")
            shrink = (after.var.detach() / before.var.detach()).sqrt().flatten()
            bottom.hist(shrink.numpy(), torch.linspace(0, 1, 41).tolist(), color=colours["accent"], alpha=0.75)
            bottom.axvline(float(shrink.median()), color=colours["ink"], linewidth=1, linestyle=":")
            bottom.set(xlabel="std, posterior/prior", xlim=(0, 1))
            for axes in (top, bottom):
                axes.set_yticks([])
                axes.grid(visible=False)
        grid[0][0].legend(fontsize=8)
    return figure


def weight_pairs(prior: nn.Module, posterior: nn.Module) -> list[tuple[str, GaussianParameter, GaussianParameter]]:
    """The weights, not the biases, of both networks with their layer's name."""
    after = dict(posterior.named_modules())
    found: list[tuple[str, GaussianParameter, GaussianParameter]] = []
    for name, part in prior.named_modules():
        if isinstance(part, GaussianParameter) and name.endswith("weight"):
            kind = type(prior.get_submodule(name.rpartition(".")[0])).__name__
            twin = after[name]
            assert isinstance(twin, GaussianParameter)
            found.append((f"{len(found) + 1}: {kind}", part, twin))
    return found


def spread_out(pairs: list[Any]) -> list[Any]:
    if len(pairs) <= LAYERS:
        return pairs
    return [pairs[round(i * (len(pairs) - 1) / (LAYERS - 1))] for i in range(LAYERS)]


def quantile(values: Tensor, share: float = 0.999) -> float:
    """Without `torch.quantile`'s limit on the number of values."""
    return float(values.kthvalue(max(1, int(share * len(values)))).values)
