"""The same latent points over the training: a frame every quarter of an epoch, side by side on one strip."""

from __future__ import annotations

from pathlib import Path

import torch

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.gan.drawing import GAP, GROUND, as_png, read_png, sheet
from torchtagi.experiments.runs.folder import PLOTS, Run

FRAMES_PER_EPOCH = 4
SHOWN = 16  # of a long training, evenly spread
FOLDER, STRIP = f"{PLOTS}/frames", f"{PLOTS}/filmstrip.png"
SAMPLES = f"{PLOTS}/samples"


def frame_after(batch: int, batches: int) -> int | None:
    """The number within its epoch, 1 to FRAMES_PER_EPOCH, of the frame that is due after `batch` of `batches`."""
    for number in range(1, FRAMES_PER_EPOCH + 1):
        if batch == -(-batches * number // FRAMES_PER_EPOCH):
            return number
    return None


def add_frame(run: Run, epoch: int, number: int, images: torch.Tensor) -> None:
    """Keep the images (n, C, H, W), uint8, of one moment; epochs count from 0."""
    run.write(f"{FOLDER}/{epoch:04d}-{number}.png", as_png(sheet(images, 1), scale=1))


def write_strip(run: Run, epochs: int) -> None:
    """Put the frames of the first `epochs` epochs together; later ones belong to a future that was undone."""
    files = sorted((run.folder / FOLDER).glob("[0-9]*.png"))
    files = [file for file in files if file.name < f"{epochs:04d}-1"]
    if not files:
        return
    chosen = [files[round(i * (len(files) - 1) / max(SHOWN - 1, 1))] for i in range(SHOWN)]
    columns = [read_png(file) for file in dict.fromkeys(chosen)]
    height = max(column.shape[1] for column in columns)
    line = torch.full((columns[0].shape[0], height, GAP), GROUND, dtype=torch.uint8)
    # a frame has a line on both sides; side by side they share one
    run.write(STRIP, as_png(torch.cat([*(column[..., :-GAP] for column in columns), line], -1)))


def keep_drawings(run: Run, target: Path) -> None:
    """Copy the strip and the last epoch's sheet of samples, the drawings worth keeping for ever, to `target`."""
    last = sorted((run.folder / SAMPLES).glob("epoch-*.png"))[-1:]
    for file in (run.folder / STRIP, *last):
        if file.is_file():
            write_atomically(target / ("samples.png" if file in last else file.name), file.read_bytes())
