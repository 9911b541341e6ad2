"""One HTML page about a game: what it draws, what its codes do, and the measures (the paper's Figures 3 to 5)."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchtagi.experiments.data import Preprocessing
from torchtagi.experiments.gan.drawing import as_png, sample_sheet_latents, sheet
from torchtagi.experiments.gan.engine import Engine
from torchtagi.experiments.gan.filmstrip import STRIP
from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.gan.request import Request, code_of_digit
from torchtagi.experiments.gan.tasks import GanTask, find_gan_task
from torchtagi.experiments.gan.training import open_engine
from torchtagi.experiments.report import plots
from torchtagi.experiments.report.page import card_row, config_table, document, picture, plural, section, table
from torchtagi.experiments.runs.folder import PLOTS, REPORT, Row, Run, RunError

MEASURES = {
    "accuracy": "Qnet's accuracy on real test digits",
    "own_codes": "digits with a code of their own",
    "digits_drawn": "different digits drawn by the codes",
    "read_error": "generated digits misread by the judge",
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
WHOLE = ("own_codes", "digits_drawn", "images_per_second")
SWEEP = torch.linspace(-1, 1, 9).tolist()
REPORT_SEED = 3


def shown_measure(name: str, value: float | None) -> str:
    if value is None or value != value:
        return "–"
    if name == "read_error":
        return f"{value:.1f} %"
    return f"{value:.0f}" if name in WHOLE else f"{value:.3f}"


def write_gan_report(run: Run, progress: Callable[[str], None] | None = None) -> Path:
    """Draw the run's images and curves and write its page; returns the page's path."""
    plots.require_matplotlib()
    say = progress or (lambda message: None)
    rows = run.metrics()
    if not rows:
        raise RunError(f"{run.folder} has not finished an epoch yet: nothing to report")
    task = find_gan_task(run.config["task"])
    say("drawing")
    engine, pixels = open_engine(run)
    return run.write(REPORT, page(run, rows, task, engine, pixels).encode())


def page(run: Run, rows: list[Row], task: GanTask, engine: Engine, pixels: Preprocessing) -> str:
    config = run.config
    title = f"{config['task']} · {config['network']} · {config['setting']} · seed {config['seed']}"
    how = "closed-form Gaussian inference (TAGI)" if config["method"] == "tagi" else "backprop with Adam"
    weights = sum(parameter.numel() for parameter in engine.players.parameters())
    measured = {**rows[-1], **(run.evaluation() or {})}
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="soft">{len(rows)} {plural("epoch", len(rows))} of a game played by {how}: a generator draws, a '
        f"discriminator tells its images from real ones{reads(task)}. "
        f"{weights // (2 if config['method'] == 'tagi' else 1):,} weights.</p>",
        card_row(
            (shown_measure(name, measured[name]), label) for name, label in MEASURES.items() if name in measured
        ),
        *drawings(run, task, engine, pixels),
        section(
            "Over the training",
            "The same latent points from the prior on, a moment a column.",
            stored(run, STRIP, "the same latent points over the training"),
        ),
        section("How it learned", "", curves(rows), epoch_table(rows)),
        section("Configuration", "", config_table(config)),
    ]
    return document(title, parts)


def reads(task: GanTask) -> str:
    return " and reads the codes back from them" if task.space.has_codes else ""


def drawings(run: Run, task: GanTask, engine: Engine, pixels: Preprocessing) -> list[str]:
    """The generated images: references, and each code varied alone."""

    def draw(name: str, latents: Latents, columns: int) -> str:
        images: Tensor = pixels.to_uint8(engine.draw(latents))
        png = as_png(sheet(images, columns))
        run.write(f"{PLOTS}/{name}.png", png)
        return embedded(png, name.replace("-", " "))

    space = task.space
    if not space.has_codes:
        return [section("Samples", "Random noise.", draw("samples", sample_sheet_latents(space), 10))]
    if not task.has_digits:
        return [
            section("Samples", "Random noise and codes.", draw("samples", random_points(space, 64), 16)),
            *(
                section(
                    f"Category {place + 1}",
                    "One class a column, all else alike within a row.",
                    draw(f"category-{place + 1}", varied_category(space, place), space.categories[place]),
                )
                for place in range(len(space.categories))
            ),
        ]
    codes = code_of_digit(run)
    parts = [
        section(
            "Reference digits",
            "One digit a row, by the code that real digits assign to it; every column has its own noise.",
            draw("reference-digits", by_digit(space, codes, 10), 10),
        )
    ]
    for place in range(space.continuous):
        request = Request({place: SWEEP}, {0: codes}, seed=REPORT_SEED)
        latents, columns = request.latents(space)
        text = f"From −1 on the left to 1 on the right{effects(run, place + 1)}."
        parts.append(section(f"Code c{place + 1} varied", text, draw(f"c{place + 1}-swept", latents, columns)))
    return parts


def by_digit(space: LatentSpace, codes: Sequence[int], columns: int) -> Latents:
    latents, _ = Request({}, {0: codes}, samples=columns, seed=REPORT_SEED).latents(space)
    # a request puts the code along the columns; here a digit is a row
    order = torch.arange(len(latents)).view(columns, len(codes)).t().flatten()
    return latents[order]


def random_points(space: LatentSpace, n: int) -> Latents:
    return space.sample(n, torch.Generator().manual_seed(REPORT_SEED))


def varied_category(space: LatentSpace, place: int, rows: int = 4) -> Latents:
    """Every class of one category along the columns, random points down the rows."""
    classes = space.categories[place]
    points = random_points(space, rows)[torch.arange(rows).repeat_interleave(classes)]
    categories = points.categories.clone()
    categories[:, place] = torch.arange(classes).repeat(rows)
    return Latents(points.noise, categories, points.continuous)


def effects(run: Run, code: int) -> str:
    row = run.metrics()[-1]
    if row.get(f"c{code}_slant") is None:
        return ""
    slant, width = (shown_measure("", row.get(f"c{code}_{name}")) for name in ("slant", "width"))
    return f"; correlation with measured slant {slant}, with stroke width {width}"


def curves(rows: list[Row]) -> str:
    """Learning curves of the measures, light and dark."""
    figure, dark = draw_curves(rows, "light"), draw_curves(rows, "dark")
    return picture("measures by epoch", round(96 * figure.get_figwidth()), plots.as_png(figure), plots.as_png(dark))


def draw_curves(rows: list[Row], theme: str) -> Any:
    epochs = [row["epoch"] for row in rows]

    def line(axes: Any, name: str, label: str, factor: float = 1.0) -> None:
        values = [row.get(name) for row in rows]
        if any(value is not None for value in values):
            shown = [float("nan") if value is None else factor * value for value in values]
            axes.plot(epochs, shown, marker="o", markersize=3, label=label)

    with plots.themed(theme):
        figure = plots.blank_figure(10, 3.2)
        knows, real, game = figure.subplots(1, 3)
        line(knows, "accuracy", "Qnet's accuracy")
        line(knows, "own_codes", "digits with own code / 10", 0.1)
        line(knows, "read_error", "share misread", 0.01)
        line(real, "frechet", "Fréchet distance")
        line(game, "fake_as_fake", "P(generated), generated")
        line(game, "real_as_fake", "P(generated), real")
        line(game, "train_generator_alpha", "α of G")
        for axes in (knows, real, game):
            axes.set(xlabel="epoch")
            axes.xaxis.get_major_locator().set_params(integer=True)
            if axes.lines:
                axes.legend(fontsize=8)
        for axes in (knows, game):
            axes.set(ylim=(0, 1.02))
        real.set(ylim=(0, None))
    return figure


def epoch_table(rows: list[Row]) -> str:
    names = {
        "accuracy": "Q accuracy",
        "own_codes": "own codes",
        "digits_drawn": "drawn",
        "read_error": "misread",
        "frechet": "Fréchet",
        "fake_as_fake": "P(gen.) gen.",
        "real_as_fake": "P(gen.) real",
        "pixel_largest": "largest pixel",
        "train_code_error": "codes misread in training",
        "train_generator_alpha": "α of G",
        "images_per_second": "img/s",
    }
    names = {name: head for name, head in names.items() if any(row.get(name) is not None for row in rows)}
    body = [[str(row["epoch"]), *(shown_measure(name, row.get(name)) for name in names)] for row in rows]
    return table(["epoch", *names.values()], body)


def stored(run: Run, name: str, alt: str) -> str:
    path = run.folder / name
    return embedded(path.read_bytes(), alt) if path.is_file() else "<p>Not drawn.</p>"


def embedded(png: bytes, alt: str) -> str:
    """A sheet is the same on light and dark screens."""
    return f'<div class="wide">{picture(alt, png_width(png), png, png)}</div>'


def png_width(png: bytes) -> int:
    """From the file's own header."""
    return int.from_bytes(png[16:20], "big")
