"""Any image file as a network's input, and an account of what was done to it.

A network for 1 × 28 × 28 has seen light digits on black, scaled into a 20 × 20 box and centred by their mass (LeCun
et al. 1998); a photograph of a note has none of that. `read_picture` repeats those steps where they are needed and
lists them, so that a surprising answer can be traced to what the network was shown.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

BOX, SIDE = 20, 28  # MNIST's own: digits fit a box of 20 in a field of 28
INK = 0.25  # of the largest brightness: below it paper texture and shadows, above it strokes
CONTRAST = 16  # grey levels between darkest and lightest below which there is nothing to see
ORIENTATION = 0x0112  # the EXIF tag by which a camera says how it was held; 1 is upright

Pixels = npt.NDArray[np.float64]


class PictureError(ValueError):
    """A file that is not an image, or not one that can be read."""


@dataclass(frozen=True)
class Picture:
    """A uint8 image (1, C, H, W) as the network's preprocessing expects it."""

    image: Tensor
    steps: list[str]


def read_picture(path: str | Path, channels: int, side: int) -> Picture:
    """Open an image file and bring it to `channels` × `side` × `side`: the largest central square for a network
    that sees colours, a digit as MNIST has it for one that sees grey levels."""
    image, steps = open_image(Path(path))
    if channels == 1:
        return Picture(
            torch.from_numpy(digit(image, steps).round().clip(0, 255).astype(np.uint8))[None, None], steps
        )
    if image.size != (side, side):
        steps.append(f"cut its central square and scaled {image.width} × {image.height} to {side} × {side}")
        image = ImageOps.fit(image, (side, side), Image.Resampling.LANCZOS)
    return Picture(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None].contiguous(), steps)


def open_image(path: Path) -> tuple[Image.Image, list[str]]:
    """The first frame, upright, as RGB without transparency or as grey levels."""
    if not path.is_file():
        raise PictureError(
            f"{path} is a folder, not an image file" if path.is_dir() else f"there is no file {path}"
        )
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


def without_transparency(image: Image.Image, steps: list[str]) -> Image.Image:
    """Transparent parts become white below dark ink and black below light ink."""
    if image.mode.startswith("I") or image.mode == "F":
        # 16 bits and more: Pillow would clip, not scale
        steps.append("brought it to 256 grey levels")
        levels = np.asarray(image, dtype=np.float64)
        unit = np.clip(levels / (65535.0 if 1 < levels.max() <= 65535 else max(levels.max(), 1.0)), 0, 1)
        return Image.fromarray((unit * 255).round().astype(np.uint8))
    image = image.convert("RGBA")
    alpha = np.asarray(image.getchannel("A"), dtype=np.float64)
    if alpha.min() < 255:
        grey = np.asarray(image.convert("RGB").convert("L"), dtype=np.float64)
        ground = "white" if (grey * alpha).sum() < 128 * max(alpha.sum(), 1.0) else "black"
        steps.append(f"laid its transparent parts on {ground}")
        image = Image.alpha_composite(Image.new("RGBA", image.size, ground), image)
    return image.convert("RGB")


def digit(image: Image.Image, steps: list[str]) -> Pixels:
    """One light digit on black, as MNIST has it."""
    bands = np.asarray(image.convert("RGB"))
    if (bands != bands[..., :1]).any():
        steps.append("turned colours to grey")
    grey = np.asarray(image.convert("L"), dtype=np.float64)
    low, high = grey.min(), grey.max()
    if high - low < CONTRAST:
        steps.append("found no digit: the picture is nearly uniform, so the answer below is about an empty field")
        return np.zeros((SIDE, SIDE))
    # What touches the edges is the ground; a digit covers the smaller part of them.
    ground = float(np.median(np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])))
    if ground > (low + high) / 2:
        steps.append("inverted it: dark on light, and the network has seen light on dark")
        grey, ground = 255 - grey, 255 - ground
    ink = stretched(np.clip(grey - ground, 0, None))
    if grey.shape == (SIDE, SIDE):
        if ground <= CONTRAST and grey.max() >= 255 - CONTRAST:
            return grey
        steps.append("stretched its contrast")
        return ink
    steps.append(f"cut the digit out of {grey.shape[1]} × {grey.shape[0]} pixels, scaled it into {BOX} × {BOX}")
    steps.append(f"centred it by its mass in {SIDE} × {SIDE}")
    return centred(scaled(ink))


def scaled(ink: Pixels) -> Pixels:
    """The strokes' bounding box, its longer side `BOX` pixels."""
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
    return np.multiply(ink, 255 / float(ink.max()))


def centred(ink: Pixels) -> Pixels:
    """In a black field, its centre of mass on pixel 14, where all of MNIST has it, as far as it stays inside."""
    mass = [(ink.sum(1 - axis) * np.arange(size)).sum() / ink.sum() for axis, size in enumerate(ink.shape)]
    top, left = (int(np.clip(round(SIDE / 2 - m), 0, SIDE - n)) for m, n in zip(mass, ink.shape, strict=True))
    field = np.zeros((SIDE, SIDE))
    field[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return field
