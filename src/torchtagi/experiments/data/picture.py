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
import torch
from PIL import Image, ImageChops, ImageOps
from torch import Tensor

BOX, SIDE = 20, 28  # MNIST's own: digits fit a box of 20 in a field of 28
INK = 64  # of 255: below it paper texture and shadows, above it strokes
CONTRAST = 16  # grey levels between darkest and lightest below which there is nothing to see
ORIENTATION = 0x0112  # the EXIF tag by which a camera says how it was held; 1 is upright


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
        image = digit(image, steps)
    elif image.size != (side, side):
        steps.append(f"cut its central square and scaled {image.width} × {image.height} to {side} × {side}")
        image = ImageOps.fit(image, (side, side), Image.Resampling.LANCZOS)
    pixels = np.array(image.convert("L" if channels == 1 else "RGB")).reshape(side, side, channels)
    return Picture(torch.from_numpy(pixels).permute(2, 0, 1)[None].contiguous(), steps)


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
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise PictureError(f"{path} is too large to be a picture of one thing: {error}") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise PictureError(f"{path} is not an image file, or cannot be read as one: {error}") from error
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


def digit(image: Image.Image, steps: list[str]) -> Image.Image:
    """One light digit on black, as MNIST has it."""
    if len({band.tobytes() for band in image.split()}) > 1:
        steps.append("turned colours to grey")
    grey = image.convert("L")
    levels = np.asarray(grey)
    low, high = int(levels.min()), int(levels.max())
    if high - low < CONTRAST:
        steps.append("found no digit: the picture is nearly uniform, so the answer below is about an empty field")
        return Image.new("L", (SIDE, SIDE))
    # What touches the edges is the ground; a digit covers the smaller part of them.
    ground = float(np.median(np.concatenate([levels[0], levels[-1], levels[:, 0], levels[:, -1]])))
    if ground > (low + high) / 2:
        steps.append("inverted it: dark on light, and the network has seen light on dark")
        grey, ground, high = ImageOps.invert(grey), 255 - ground, 255 - low
    ink = stretched(ImageChops.subtract(grey, Image.new("L", grey.size, int(ground))))
    if grey.size == (SIDE, SIDE):
        if ground <= CONTRAST and high >= 255 - CONTRAST:
            return grey
        steps.append("stretched its contrast")
        return ink
    steps.append(f"cut the digit out of {grey.width} × {grey.height} pixels, scaled it into {BOX} × {BOX}")
    steps.append(f"centred it by its mass in {SIDE} × {SIDE}")
    cut = ink.point(lambda level: level * (level > INK / 2)).crop(ink.point(lambda v: v * (v > INK)).getbbox())
    # Box averages over all pixels that fall together: thin strokes turn grey, as MNIST's own did, not jagged.
    method = Image.Resampling.BOX if max(cut.size) > BOX else Image.Resampling.BICUBIC
    width, height = (max(1, round(BOX / max(cut.size) * length)) for length in cut.size)
    return centred(stretched(cut.resize((width, height), method)))


def stretched(ink: Image.Image) -> Image.Image:
    """From black, which stays, to white."""
    lightest = int(np.asarray(ink).max())
    return ink.point([min(round(255 * level / lightest), 255) for level in range(256)])


def centred(ink: Image.Image) -> Image.Image:
    """In a black field, its centre of mass on pixel 14, where all of MNIST has it, as far as it stays inside."""
    weight = np.asarray(ink, dtype=np.float64)
    mass = [np.average(np.arange(length), weights=weight.sum(axis)) for axis, length in enumerate(ink.size)]
    left, top = (int(np.clip(round(SIDE / 2 - m), 0, SIDE - n)) for m, n in zip(mass, ink.size, strict=True))
    field = Image.new("L", (SIDE, SIDE))
    field.paste(ink, (left, top))
    return field
