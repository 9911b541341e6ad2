"""Random shifts, crops, mirror images and affine maps, for a whole batch at once."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def augment_crop_flip(images: Tensor, padding: int = 4, generator: torch.Generator | None = None) -> Tensor:
    """Pad by `padding` zeros, cut each image out at a random position, and mirror half of them.

    The zeros are added in preprocessed space, where zero is the training set's mean colour: the border
    says "nothing in particular" to the network, which black would not.
    """
    corners, device = _corners(images, padding, generator)
    mirrored = torch.rand(len(images), generator=generator, device=device) < 0.5
    return cut(F.pad(images, (padding,) * 4), corners, images, mirrored.to(images.device))


def augment_shift(images: Tensor, by: int = 2, generator: torch.Generator | None = None) -> Tensor:
    """Move each image by up to `by` pixels in each direction; its own border is continued outward."""
    corners, _ = _corners(images, by, generator)
    return cut(F.pad(images, (by,) * 4, mode="replicate"), corners, images)


def augment_affine(
    images: Tensor,
    rotation: float = 20.0,
    scale: float = 0.2,
    shear: float = 0.3,
    shift: float = 3.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Turn each image by up to `rotation` degrees, stretch width and height by up to a share `scale` each, slant it
    by up to `shear` of its height and move it by up to `shift` pixels, all uniform; its own border is continued
    outward."""
    n, _, height, width = images.shape
    device = images.device if generator is None else generator.device
    drawn = torch.rand(6, n, generator=generator, device=device).to(images) * 2 - 1
    angle, slant = drawn[0] * math.radians(rotation), drawn[3] * shear
    stretch = torch.zeros(n, 2, 2).to(images)
    stretch[:, 0, 0], stretch[:, 1, 1], stretch[:, 0, 1] = 1 + drawn[1] * scale, 1 + drawn[2] * scale, slant
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(n, 2, 2)
    # coordinates run from −1 to 1 over an image
    move = drawn[4:].T * images.new_tensor([2 * shift / width, 2 * shift / height])
    grid = F.affine_grid(torch.cat([turn @ stretch, move[:, :, None]], 2), list(images.shape), align_corners=False)
    return _laid_out(F.grid_sample(images, grid, padding_mode="border", align_corners=False), images)


def cut(padded: Tensor, corners: Tensor, like: Tensor, mirrored: Tensor | None = None) -> Tensor:
    """From padded image n a piece of the size of those in `like`, at row and column `corners[n]`; mirrored where
    `mirrored[n]`."""
    n, channels, height, width = like.shape
    rows = corners[:, :1] + torch.arange(height, device=like.device)
    columns = torch.arange(width, device=like.device).expand(n, width)
    if mirrored is not None:
        columns = torch.where(mirrored[:, None], width - 1 - columns, columns)
    columns = corners[:, 1:] + columns
    example = torch.arange(n, device=like.device).view(n, 1, 1, 1)
    channel = torch.arange(channels, device=like.device).view(1, channels, 1, 1)
    return _laid_out(padded[example, channel, rows[:, None, :, None], columns[:, None, None, :]], like)


def _corners(images: Tensor, padding: int, generator: torch.Generator | None) -> tuple[Tensor, torch.device]:
    """Random positions (N, 2) in images padded by `padding`, and the device that draws."""
    if images.ndim != 4:
        raise ValueError(f"images must have shape (N, C, H, W), got {tuple(images.shape)}")
    if padding < 0:
        raise ValueError(f"padding must not be negative, got {padding}")
    device = images.device if generator is None else generator.device
    corners = torch.randint(0, 2 * padding + 1, (len(images), 2), generator=generator, device=device)
    return corners.to(images.device), device


def _laid_out(pieces: Tensor, like: Tensor) -> Tensor:
    """In memory as `like` is."""
    channels_last = like.is_contiguous(memory_format=torch.channels_last)
    return pieces.contiguous(memory_format=torch.channels_last) if channels_last else pieces
