"""Random crops and mirror images, for a whole batch at once."""

import torch
from torch import Tensor


def augment_crop_flip(images: Tensor, padding: int = 4, generator: torch.Generator | None = None) -> Tensor:
    """Pad by `padding` zeros, cut each image out at a random place, and mirror half of them.

    The zeros are added in preprocessed space, where zero is the training set's mean colour: the border
    says "nothing in particular" to the network, which black would not.
    """
    _check(images, padding)
    device = images.device if generator is None else generator.device
    n = len(images)
    corners = torch.randint(0, 2 * padding + 1, (n, 2), generator=generator, device=device)
    mirrored = torch.rand(n, generator=generator, device=device) < 0.5
    return crop_flip(images, corners.to(images.device), mirrored.to(images.device), padding)


def crop_flip(images: Tensor, corners: Tensor, mirrored: Tensor, padding: int) -> Tensor:
    """Cut image n out of its padded self at row and column `corners[n]`; mirror it where `mirrored[n]`."""
    _check(images, padding)
    n, channels, height, width = images.shape
    padded = torch.nn.functional.pad(images, (padding,) * 4)
    rows = corners[:, :1] + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device).expand(n, width)
    columns = corners[:, 1:] + torch.where(mirrored[:, None], width - 1 - columns, columns)
    example = torch.arange(n, device=images.device).view(n, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).view(1, channels, 1, 1)
    cut = padded[example, channel, rows[:, None, :, None], columns[:, None, None, :]]
    if images.is_contiguous(memory_format=torch.channels_last):
        return cut.contiguous(memory_format=torch.channels_last)
    return cut


def _check(images: Tensor, padding: int) -> None:
    if images.ndim != 4:
        raise ValueError(f"images must have shape (N, C, H, W), got {tuple(images.shape)}")
    if padding < 0:
        raise ValueError(f"padding must not be negative, got {padding}")
