"""Sheets of generated images, and the latent points they are drawn from."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchtagi.experiments.gan.latent import Latents, LatentSpace

GAP, GROUND = 2, 128  # grey lines between the images
SCALE = 2  # 28 pixels are small on a screen
SAMPLE_SEED = 7  # sheets of every epoch and every run show the same latent points


def sheet(images: Tensor, columns: int) -> Tensor:
    """uint8 images (n, C, H, W) in rows of `columns` on one sheet (C, H′, W′); the last row may be short."""
    if images.ndim != 4 or images.dtype != torch.uint8:
        raise ValueError(f"images must be uint8 of shape (N, C, H, W), got {images.dtype} {tuple(images.shape)}")
    if columns < 1 or not len(images):
        raise ValueError(f"a sheet needs images and columns, got {len(images)} and {columns}")
    n, channels, height, width = images.shape
    rows = -(-n // columns)
    page = torch.full((channels, rows * (height + GAP) + GAP, columns * (width + GAP) + GAP), GROUND).byte()
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
    latents = space.sample(rows * columns, torch.Generator().manual_seed(SAMPLE_SEED))
    if not space.categories:
        return latents
    categories = latents.categories.clone()
    categories[:, 0] = torch.arange(rows).repeat_interleave(columns)
    return Latents(latents.noise, categories, latents.continuous)


def reference_latents(space: LatentSpace) -> Latents:
    """One point for each class of the first categorical code, alike in all else; without codes, ten random ones."""
    if not space.categories:
        return space.sample(10, torch.Generator().manual_seed(SAMPLE_SEED))
    one = space.sample(1, torch.Generator().manual_seed(SAMPLE_SEED))
    rows = space.categories[0]
    categories = one.categories.repeat(rows, 1)
    categories[:, 0] = torch.arange(rows)
    return Latents(one.noise.repeat(rows, 1), categories, torch.zeros(rows, space.continuous))
