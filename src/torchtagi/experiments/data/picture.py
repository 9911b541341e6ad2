"""Any image file as a network's input, and an account of what was done to it.

A network for 1 × 28 × 28 has seen light digits on black, scaled into a 20 × 20 box and centred by their mass (LeCun
et al. 1998); a photograph of a note has none of that. `read_picture` repeats those steps where they are needed and
lists them, so that a surprising answer can be traced to what the network was shown.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BOX, SIDE = 20, 28  # MNIST's own: digits fit a box of 20 in a field of 28
INK = 0.25  # of the largest brightness: below it paper texture and shadows, above it strokes
CONTRAST = 16  # grey levels between darkest and lightest below which there is nothing to see
ORIENTATION = 0x0112  # the EXIF tag by which a camera says how it was held; 1 is upright

Pixels = npt.NDArray[np.float64]


class PictureError(ValueError):
    """A file that is not an image, or not one that can be read."""


@dataclass
class Picture:
    """A uint8 image (1, C, H, W) as the network's preprocessing expects it."""

    image: Tensor
    steps: list[str] = field(default_factory=list)


def read_picture(path: str | Path, channels: int, side: int) -> Picture:
    """Open an image file and bring it to `channels` × `side` × `side`."""
    image, steps = open_image(Path(path))
    if channels == 3:
        return colour(image, side, steps)
    if side != SIDE:
        raise PictureError(f"grey pictures are prepared for {SIDE} × {SIDE} pixels, not for {side}")
    return digit(image, steps)


def open_image(path: Path) -> tuple[Any, list[str]]:
    """The first frame, upright, as RGB without transparency or as grey levels."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise PictureError("reading image files needs pillow: pip install 'torchtagi[cli]'") from error
    if path.is_dir():
        raise PictureError(f"{path} is a folder, not an image file")
    if not path.exists():
        raise PictureError(f"there is no file {path}")
    steps: list[str] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                frames = getattr(image, "n_frames", 1)
                if frames > 1:
                    steps.append(f"took the first of {frames} frames")
                image.load()
                upright = ImageOps.exif_transpose(image)
                if image.getexif().get(ORIENTATION, 1) != 1:
                    steps.append("turned it upright")
    except UnidentifiedImageError as error:
        raise PictureError(f"{path} is not an image file") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise PictureError(f"{path} is too large to be a picture of one thing: {error}") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise PictureError(f"{path} cannot be read as an image: {error}") from error
    return without_transparency(upright, steps), steps


def without_transparency(image: Any, steps: list[str]) -> Any:
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        # 16 bits and more: Pillow would clip, not scale
        levels = np.asarray(image, dtype=np.float64)
        low, high = levels.min(), levels.max()
        top = 65535.0 if low >= 0 and high <= 65535 and image.mode != "F" else max(high, 1.0)
        steps.append("brought it to 256 grey levels")
        return Image.fromarray((np.clip(levels / top, 0, 1) * 255).round().astype(np.uint8))
    if "transparency" not in image.info and image.mode not in ("RGBA", "LA", "PA", "La", "RGBa"):
        return image.convert("RGB")
    image = image.convert("RGBA")
    alpha = np.asarray(image.getchannel("A"), dtype=np.float64)
    if alpha.min() == 255:
        return image.convert("RGB")
    grey = np.asarray(image.convert("RGB").convert("L"), dtype=np.float64)
    drawn = float((grey * alpha).sum() / max(alpha.sum(), 1.0))
    ground, name = (255, "white") if drawn < 128 else (0, "black")
    steps.append(f"laid its transparent parts on {name}")
    paper = Image.new("RGBA", image.size, (ground, ground, ground, 255))
    return Image.alpha_composite(paper, image).convert("RGB")


def colour(image: Any, side: int, steps: list[str]) -> Picture:
    """The largest central square, scaled."""
    from PIL import Image, ImageOps

    image = image.convert("RGB")
    if image.size != (side, side):
        steps.append(f"cut its central square and scaled {image.width} × {image.height} to {side} × {side}")
        image = ImageOps.fit(image, (side, side), Image.Resampling.LANCZOS)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    return Picture(pixels[None].contiguous(), steps)


def digit(image: Any, steps: list[str]) -> Picture:
    """One light digit on black, as MNIST has it."""
    if image.mode == "RGB":
        bands = np.asarray(image)
        if (bands != bands[..., :1]).any():
            steps.append("turned colours to grey")
    grey = np.asarray(image.convert("L"), dtype=np.float64)
    low, high = float(grey.min()), float(grey.max())
    if high - low < CONTRAST:
        steps.append("found no digit: the picture is nearly uniform, so the answer below is about an empty field")
        return as_picture(np.zeros((SIDE, SIDE)), steps)
    edge = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    # What touches the edges is the ground; a digit covers the smaller part of them.
    if float(np.median(edge)) > (low + high) / 2:
        steps.append("inverted it: dark on light, and the network has seen light on dark")
        grey = 255 - grey
        edge = 255 - edge
    ground = float(np.median(edge))
    ink = stretched(np.clip(grey - ground, 0, None))
    if grey.shape == (SIDE, SIDE):
        if ground <= CONTRAST and grey.max() >= 255 - CONTRAST:
            return as_picture(grey, steps)
        steps.append("stretched its contrast")
        return as_picture(ink, steps)
    steps.append(f"cut the digit out of {grey.shape[1]} × {grey.shape[0]} pixels, scaled it into {BOX} × {BOX}")
    steps.append(f"centred it by its mass in {SIDE} × {SIDE}")
    return as_picture(centred(scaled(ink)), steps)


def scaled(ink: Pixels) -> Pixels:
    """The strokes' bounding box, its longer side `BOX` pixels."""
    from PIL import Image

    strokes = ink > INK * ink.max()
    rows, columns = np.flatnonzero(strokes.any(1)), np.flatnonzero(strokes.any(0))
    cut = np.where(ink > INK / 2 * ink.max(), ink, 0)[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    factor = BOX / max(cut.shape)
    size = (max(1, round(cut.shape[1] * factor)), max(1, round(cut.shape[0] * factor)))
    # Box averages over all pixels that fall together: thin strokes turn grey, as MNIST's own did, not jagged.
    method = Image.Resampling.BOX if factor < 1 else Image.Resampling.BICUBIC
    small = np.asarray(Image.fromarray(cut.astype(np.float32)).resize(size, method), dtype=np.float64)
    return stretched(np.clip(small, 0, None))


def stretched(ink: Pixels) -> Pixels:
    brightest = float(ink.max())
    return ink * (255 / brightest)


def centred(ink: Pixels) -> Pixels:
    """In a black field, its centre of mass on pixel 14, where all of MNIST has it, as far as it stays inside."""
    height, width = ink.shape
    row = (ink.sum(1) * np.arange(height)).sum() / ink.sum()
    column = (ink.sum(0) * np.arange(width)).sum() / ink.sum()
    top = int(np.clip(round(SIDE / 2 - row), 0, SIDE - height))
    left = int(np.clip(round(SIDE / 2 - column), 0, SIDE - width))
    field = np.zeros((SIDE, SIDE))
    field[top : top + height, left : left + width] = ink
    return field


def as_picture(pixels: Pixels, steps: list[str]) -> Picture:
    return Picture(torch.from_numpy(pixels.round().clip(0, 255).astype(np.uint8))[None, None], steps)
