"""`tagi generate`: draw what the user asks for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.cli.shared import RunFolder, console, number
from torchtagi.experiments.gan.config import open_gan
from torchtagi.experiments.gan.drawing import as_png, sheet
from torchtagi.experiments.gan.request import code_of_digit, latent_grid, parse_classes, parse_numbers
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.runs.folder import Run, RunError

VALUES = "A number, several with commas, or from:to:count."


def generate(
    run: RunFolder,
    digit: Annotated[
        str | None, typer.Option(help="The digits to draw: one, several with commas, or `all`.", metavar="DIGITS")
    ] = None,
    c1: Annotated[str | None, typer.Option(help=f"The first continuous code. {VALUES}", metavar="VALUES")] = None,
    c2: Annotated[str | None, typer.Option(help=f"The second continuous code. {VALUES}", metavar="VALUES")] = None,
    samples: Annotated[int | None, number("How many times to draw the noise.")] = None,
    seed: Annotated[int, number("Of the noise.", least=0)] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="The PNG file.")] = Path("generated.png"),
) -> None:
    """Draw a grid of generated images. At most two things vary: codes, or the noise."""
    opened = Run.open(run)
    if opened.config["task"] not in GAN_TASKS:
        raise RunError(f"{run} is not a GAN: it was trained on {opened.config['task']}")
    if out.suffix.lower() != ".png":
        raise ValueError(f"the drawing is a PNG file, so its name must end in .png: {out}")
    task = GAN_TASKS[opened.config["task"]]
    continuous = {
        place: parse_numbers(f"--c{place + 1}", text) for place, text in enumerate((c1, c2)) if text is not None
    }
    if digit is not None and not (task.has_digits and task.space.categories):
        raise ValueError(f"--digit is for infogan-mnist; {task.name} has no code for digits")
    digits = [] if digit is None else parse_classes("--digit", digit, 10)
    if samples is None:
        samples = 1 if max(len(digits), *map(len, continuous.values()), 1) > 1 else 10
    classes: Sequence[int] = digits
    if task.space.categories and not digits and not continuous:
        classes = range(task.space.categories[0])
    if task.has_digits and classes:
        code_of = code_of_digit(opened)
        classes = [code_of[value] for value in classes]
    categories = {0: classes} if classes else {}
    latents, columns = latent_grid(task.space, continuous, categories, samples, seed)
    gan, pixels = open_gan(opened)
    images = pixels.to_uint8(gan.draw(latents))
    write_atomically(out, as_png(sheet(images, columns)))
    console.print(f"{len(images)} images, {columns} a row: {out}")
