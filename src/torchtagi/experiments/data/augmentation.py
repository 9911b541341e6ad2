"""Random shifts, crops, mirror images and affine maps, for a whole batch at once.

All is drawn on the CPU from torch's global generator, so that every device draws the same.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def augment_crop_flip(images: Tensor, padding: int = 4) -> Tensor:
    """Pad by `padding` zeros, cut each image out at a random position, and mirror half of them.

    The zeros are added in preprocessed space, where zero is the training set's mean colour: the border
    says "nothing in particular" to the network, which black would not.
    """
    pieces = cut(F.pad(images, (padding,) * 4), images)
    mirrored = (torch.rand(len(images)) < 0.5).to(images.device)
    return laid_out(torch.where(mirrored.view(-1, 1, 1, 1), pieces.flip(3), pieces), images)


def augment_shift(images: Tensor, by: int = 2) -> Tensor:
    """Move each image by up to `by` pixels in each direction; its own border is continued outward."""
    return cut(F.pad(images, (by,) * 4, mode="replicate"), images)


def augment_affine(
    images: Tensor, rotation: float = 20.0, scale: float = 0.2, shear: float = 0.3, shift: float = 3.0
) -> Tensor:
    """Turn each image by up to `rotation` degrees, stretch width and height by up to a share `scale` each, slant it
    by up to `shear` of its height and move it by up to `shift` pixels, all uniform; its own border is continued
    outward."""
    n, _, height, width = images.shape
    drawn = torch.rand(6, n).to(images) * 2 - 1
    angle, slant = drawn[0] * math.radians(rotation), drawn[3] * shear
    stretch = torch.zeros(n, 2, 2).to(images)
    stretch[:, 0, 0], stretch[:, 1, 1], stretch[:, 0, 1] = 1 + drawn[1] * scale, 1 + drawn[2] * scale, slant
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(n, 2, 2)
    # coordinates run from −1 to 1 over an image
    move = drawn[4:].T * images.new_tensor([2 * shift / width, 2 * shift / height])
    grid = F.affine_grid(torch.cat([turn @ stretch, move[:, :, None]], 2), list(images.shape), align_corners=False)
    return laid_out(F.grid_sample(images, grid, padding_mode="border", align_corners=False), images)


def cut(padded: Tensor, like: Tensor) -> Tensor:
    """From each padded image a piece of the size of those in `like`, at a random position."""
    pieces = padded.unfold(2, like.shape[2], 1).unfold(3, like.shape[3], 1)  # (N, C, row, column, height, width)
    row, column = torch.randint(0, pieces.shape[2], (len(like), 2)).to(like.device).T
    return laid_out(pieces[torch.arange(len(like)), :, row, column], like)


def laid_out(pieces: Tensor, like: Tensor) -> Tensor:
    """In memory as `like` is."""
    return torch.empty_like(like).copy_(pieces)
