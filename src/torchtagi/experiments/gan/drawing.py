"""Sheets of generated images, and the filmstrip: the same latent points over the training, a frame every quarter of
an epoch, side by side."""

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.runs.folder import PLOTS, Run

GAP, GREY = 2, 128  # lines between the images
SCALE = 2  # 28 pixels are small on a screen
SAMPLE_SEED = 7  # sheets of every epoch and every run show the same latent points
FRAMES_PER_EPOCH = 4
SHOWN = 16  # frames of a long training, evenly spread
FRAMES, STRIP, SAMPLES = f"{PLOTS}/frames", f"{PLOTS}/filmstrip.png", f"{PLOTS}/samples"


def sheet(images: Tensor, columns: int) -> Tensor:
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


def read_png(path: Path) -> Tensor:
    """A sheet (C, H, W) back from a file of scale 1."""
    from PIL import Image

    with Image.open(path) as image:
        pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def sample_sheet_latents(space: LatentSpace, columns: int = 10) -> Latents:
    """For each class of the first categorical code a row of random points; without codes, ten rows of them."""
    rows = space.categories[0] if space.categories else 10
    latents = space.sample(rows * columns, SAMPLE_SEED)
    return latents.with_category(0, torch.arange(rows).repeat_interleave(columns)) if space.categories else latents


def reference_latents(space: LatentSpace) -> Latents:
    """One point for each class of the first categorical code, alike in all else; without codes, ten random ones."""
    if not space.categories:
        return space.sample(10, SAMPLE_SEED)
    classes = torch.arange(space.categories[0])
    one = space.sample(1, SAMPLE_SEED)[torch.zeros_like(classes)].with_category(0, classes)
    return Latents(one.noise, one.categories, torch.zeros_like(one.continuous))


def frame_after(batch: int, batches: int) -> int | None:
    """The number within its epoch, 1 to FRAMES_PER_EPOCH, of the frame that is due after `batch` of `batches`."""
    due = (-(-batches * number // FRAMES_PER_EPOCH) for number in range(1, FRAMES_PER_EPOCH + 1))
    return next((number for number, last in enumerate(due, 1) if batch == last), None)


def add_frame(run: Run, epoch: int, number: int, images: Tensor) -> None:
    """Keep the images (n, C, H, W), uint8, of one moment; epochs count from 0."""
    run.write(f"{FRAMES}/{epoch:04d}-{number}.png", as_png(sheet(images, 1), scale=1))


def write_strip(run: Run, epochs: int) -> None:
    """Put the frames of the first `epochs` epochs together; later ones were drawn before a run was resumed."""
    files = sorted((run.folder / FRAMES).glob("[0-9]*.png"))
    files = [file for file in files if file.name < f"{epochs:04d}-1"]
    if not files:
        return
    chosen = [files[round(i * (len(files) - 1) / (SHOWN - 1))] for i in range(SHOWN)]
    columns = [read_png(file) for file in dict.fromkeys(chosen)]
    line = torch.full_like(columns[0][..., :GAP], GREY)
    # a frame has a line on both sides; side by side they share one
    run.write(STRIP, as_png(torch.cat([*(column[..., :-GAP] for column in columns), line], -1)))


def keep_drawings(run: Run, target: Path) -> None:
    """Copy the strip and the last epoch's sheet of samples to a recorded run."""
    last = sorted((run.folder / SAMPLES).glob("epoch-*.png"))[-1:]
    for file in (run.folder / STRIP, *last):
        if file.is_file():
            write_atomically(target / ("samples.png" if file in last else file.name), file.read_bytes())
