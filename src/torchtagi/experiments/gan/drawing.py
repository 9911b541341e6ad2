"""Sheets of generated images, one an epoch, and the filmstrip: the same latent points over the training, the first
column of each epoch's sheet, side by side."""

import io
from pathlib import Path

import torch
from torch import Tensor

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.runs.folder import PLOTS, Run

GAP, GREY = 2, 128  # lines between the images
SCALE = 2  # 28 pixels are small on a screen
COLUMNS = 10
SAMPLE_SEED = 7  # sheets of every epoch and every run show the same latent points
SHOWN = 16  # epochs of a long training, evenly spread
STRIP, SAMPLES = f"{PLOTS}/filmstrip.png", f"{PLOTS}/samples"


def sheet(images: Tensor, columns: int = COLUMNS) -> Tensor:
    """uint8 images (n, C, H, W) in rows of `columns` on one sheet (C, H′, W′); the last row may be short."""
    n, channels, height, width = images.shape
    rows = -(-n // columns)
    page = torch.full((channels, rows * (height + GAP) + GAP, columns * (width + GAP) + GAP), GREY).byte()
    for place, image in enumerate(images):
        row, column = divmod(place, columns)
        top, left = GAP + row * (height + GAP), GAP + column * (width + GAP)
        page[:, top : top + height, left : left + width] = image
    return page


def as_png(page: Tensor, scale: int = SCALE) -> bytes:
    """A sheet as the bytes of a PNG file."""
    from PIL import Image

    pixels = page.repeat_interleave(scale, 1).repeat_interleave(scale, 2).permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, "PNG")
    return buffer.getvalue()


def sample_sheet_latents(space: LatentSpace) -> Latents:
    """For each class of the first categorical code a row of random points; without codes, ten rows of them."""
    rows = space.categories[0] if space.categories else 10
    latents = space.sample(rows * COLUMNS, SAMPLE_SEED)
    return latents.with_category(0, torch.arange(rows).repeat_interleave(COLUMNS)) if space.categories else latents


def draw_epoch(run: Run, epoch: int, images: Tensor) -> None:
    """Write the sheet of `images` (n, C, H, W), uint8, and the strip of the sheets so far; epochs count from 1."""
    from PIL import Image

    run.write(f"{SAMPLES}/epoch-{epoch:04d}.png", as_png(sheet(images)))
    files = sorted((run.folder / SAMPLES).glob("epoch-*.png"))[:epoch]  # later ones are of before a resume
    chosen = dict.fromkeys(files[round(i * (len(files) - 1) / (SHOWN - 1))] for i in range(SHOWN))
    sheets = [Image.open(file) for file in chosen]
    gap, height = GAP * SCALE, sheets[0].height
    width = (sheets[0].width - gap) // COLUMNS
    strip = Image.new(sheets[0].mode, (width * len(sheets) + gap, height), sheets[0].getpixel((0, 0)))
    for place, each in enumerate(sheets):
        strip.paste(each.crop((0, 0, width, height)), (place * width, 0))
    buffer = io.BytesIO()
    strip.save(buffer, "PNG")
    run.write(STRIP, buffer.getvalue())


def keep_drawings(run: Run, target: Path) -> None:
    """Copy the strip and the last epoch's sheet of samples to a recorded run."""
    last = sorted((run.folder / SAMPLES).glob("epoch-*.png"))[-1:]
    for file in (run.folder / STRIP, *last):
        if file.is_file():
            write_atomically(target / ("samples.png" if file in last else file.name), file.read_bytes())
