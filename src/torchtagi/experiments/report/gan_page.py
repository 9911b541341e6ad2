"""One HTML page about a GAN: what it draws, what its codes do, and the measures (the paper's Figures 3 to 5)."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchtagi.experiments.data import Preprocessing
from torchtagi.experiments.gan.build import open_gan
from torchtagi.experiments.gan.drawing import STRIP, as_png, sample_sheet_latents, sheet
from torchtagi.experiments.gan.latent import Latents
from torchtagi.experiments.gan.model import Gan
from torchtagi.experiments.gan.request import code_of_digit, latent_grid
from torchtagi.experiments.gan.tasks import find_gan_task
from torchtagi.experiments.report import plots
from torchtagi.experiments.report.page import card_row, config_table, document, picture, plural, section, table
from torchtagi.experiments.runs.folder import PLOTS, REPORT, Row, Run, RunError

MEASURES = {
    "accuracy": "Qnet's accuracy on real test digits",
    "own_codes": "digits with a code of their own",
    "read_error": "generated digits misclassified by the judge",
    "frechet": "Fréchet distance to real images",
    "c1_slant": "correlation of c1 with slant",
    "c1_width": "correlation of c1 with stroke width",
    "c2_slant": "correlation of c2 with slant",
    "c2_width": "correlation of c2 with stroke width",
    "fake_as_fake": "Pnet's P(generated) for generated images",
    "real_as_fake": "Pnet's P(generated) for real images",
    "neighbour_ratio": "distance to the nearest training image, relative to real images'",
    "neighbour_closest_share": "share closer to a training image than 99 % of real ones",
}
EPOCH_COLUMNS = {
    "epoch": "epoch",
    "accuracy": "Qnet acc.",
    "own_codes": "own codes",
    "read_error": "judge err.",
    "frechet": "Fréchet",
    "fake_as_fake": "P, gen.",
    "real_as_fake": "P, real",
    "train_discriminator_alpha": "α of D",
    "train_generator_alpha": "α of G",
    "samples_per_second": "img/s",
    "seconds": "seconds",
}
WHOLE = ("epoch", "own_codes", "samples_per_second", "seconds")
SWEEP = torch.linspace(-1, 1, 9).tolist()
REPORT_SEED = 3


def shown_measure(name: str, value: float | None) -> str:
    if value is None or value != value:
        return "–"
    if name == "read_error":
        return f"{value:.1f} %"
    return f"{value:,.0f}" if name in WHOLE else f"{value:.3f}"


def write_gan_report(run: Run, progress: Callable[[str], None] | None = None) -> Path:
    """Draw the run's images and curves and write its page; returns the page's path."""
    plots.require_matplotlib()
    rows = run.metrics()
    if not rows:
        raise RunError(f"{run.folder} has not finished an epoch yet: nothing to report")
    if progress:
        progress("drawing")
    return run.write(REPORT, page(run, rows, *open_gan(run)).encode())


def page(run: Run, rows: list[Row], gan: Gan, pixels: Preprocessing) -> str:
    config, by_tagi = run.config, run.method == "tagi"
    title = f"{config['task']} · {config['network']} · {config['setting']} · seed {config['seed']}"
    how = "closed-form Gaussian inference (TAGI)" if by_tagi else "backprop with Adam"
    weights = sum(parameter.numel() for parameter in gan.networks.parameters()) // (2 if by_tagi else 1)
    reads = " and reads the codes back from them" if gan.space.has_codes else ""
    measured = {**rows[-1], **(run.evaluation() or {})}
    strip = run.folder / STRIP
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="soft">{len(rows)} {plural("epoch", len(rows))} of {how}: a generator draws, a discriminator '
        f"tells its images from real ones{reads}. {weights:,} weights.</p>",
        card_row(
            (shown_measure(name, measured[name]), label) for name, label in MEASURES.items() if name in measured
        ),
        *drawings(run, gan, pixels),
        section(
            "Over the training",
            "The same latent points from the prior on, a moment a column.",
            embedded(strip.read_bytes(), "the filmstrip") if strip.is_file() else "<p>Not drawn.</p>",
        ),
        section("How it learned", "", curves(rows), epoch_table(rows)),
        section("Configuration", "", config_table(config)),
    ]
    return document(title, parts)


def drawings(run: Run, gan: Gan, pixels: Preprocessing) -> list[str]:
    """The generated images: samples, and each code varied alone."""
    space, parts = gan.space, []

    def draw(title: str, text: str, latents: Latents, columns: int) -> None:
        name = title.lower().replace(" ", "-")
        png = as_png(sheet(pixels.to_uint8(gan.draw(latents)), columns))
        run.write(f"{PLOTS}/{name}.png", png)
        parts.append(section(title, text, embedded(png, title)))

    if find_gan_task(run.config["task"]).has_digits and space.categories:
        codes = code_of_digit(run)
        latents, _ = latent_grid(space, {}, {0: codes}, samples=10, seed=REPORT_SEED)
        rows = latents[torch.arange(100).view(10, 10).t().flatten()]  # a grid has the codes along its columns
        text = "One digit a row, by the code that real digits assign to it; every column has its own noise."
        draw("Reference digits", text, rows, 10)
        for place in range(space.continuous):
            slant, width = (
                shown_measure("", run.metrics()[-1].get(f"c{place + 1}_{n}")) for n in ("slant", "width")
            )
            text = "From −1 on the left to 1 on the right; correlation with measured slant "
            text += f"{slant}, with stroke width {width}."
            grid = latent_grid(space, {place: SWEEP}, {0: codes}, seed=REPORT_SEED)
            draw(f"Code c{place + 1} varied", text, *grid)
        return parts
    draw("Samples", "Random noise, the first code a row where there are codes.", sample_sheet_latents(space), 10)
    for place, classes in enumerate(space.categories):
        points = space.sample(4, REPORT_SEED)[torch.arange(4).repeat_interleave(classes)]
        points = points.with_category(place, torch.arange(classes).repeat(4))
        draw(f"Category {place + 1}", "One class a column, all else alike within a row.", points, classes)
    return parts


def curves(rows: list[Row]) -> str:
    """Learning curves of the measures, light and dark."""
    figure, dark = draw_curves(rows, "light"), draw_curves(rows, "dark")
    return picture("measures by epoch", round(96 * figure.get_figwidth()), plots.as_png(figure), plots.as_png(dark))


def draw_curves(rows: list[Row], theme: str) -> Any:
    with plots.themed(theme):
        figure = plots.blank_figure(10, 3.2)
        codes, real, labels = figure.subplots(1, 3)
        for axes, name, label, factor in (
            (codes, "accuracy", "Qnet's accuracy", 1.0),
            (codes, "own_codes", "digits with own code / 10", 0.1),
            (codes, "read_error", "judge's error", 0.01),
            (real, "frechet", "Fréchet distance", 1.0),
            (labels, "fake_as_fake", "P(generated), generated", 1.0),
            (labels, "real_as_fake", "P(generated), real", 1.0),
            (labels, "train_generator_alpha", "α of G", 1.0),
        ):
            values = [float("nan") if row.get(name) is None else factor * row[name] for row in rows]
            if any(value == value for value in values):
                axes.plot([row["epoch"] for row in rows], values, marker="o", markersize=3, label=label)
        for axes in (codes, real, labels):
            axes.set(xlabel="epoch", ylim=(0, None if axes is real else 1.02))
            axes.xaxis.get_major_locator().set_params(integer=True)
            if axes.lines:
                axes.legend(fontsize=8)
    return figure


def epoch_table(rows: list[Row]) -> str:
    names = [name for name in EPOCH_COLUMNS if any(row.get(name) is not None for row in rows)]
    body = [[shown_measure(name, row.get(name)) for name in names] for row in rows]
    return table([EPOCH_COLUMNS[name] for name in names], body)


def embedded(png: bytes, alt: str) -> str:
    """A sheet is the same on light and dark screens; its width is in the file's own header."""
    return f'<div class="wide">{picture(alt, int.from_bytes(png[16:20], "big"), png, png)}</div>'
