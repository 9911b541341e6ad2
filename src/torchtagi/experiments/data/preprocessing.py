"""The map between stored bytes and the numbers a network sees, and its inverse."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Preprocessing:
    """Per channel: x = (byte / 255 − mean) / std.

    It is a value of its own because an out-of-distribution set has to be seen through the eyes of the
    set the network was trained on, and because plots need the bytes back.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(f"mean has {len(self.mean)} channels, std has {len(self.std)}")
        if not all(std > 0 for std in self.std):
            raise ValueError(f"std must be positive, got {self.std}")

    @classmethod
    def centred(cls, *mean: float) -> "Preprocessing":
        """Scale to [0, 1] and subtract the mean; the spread is left as it is."""
        return cls(mean=mean, std=(1.0,) * len(mean))

    def apply(self, images: Tensor) -> Tensor:
        """float32 images from uint8 ones of shape (N, C, H, W)."""
        if images.dtype != torch.uint8:
            raise TypeError(f"images must be uint8, got {images.dtype}")
        self._check_channels(images)
        # In place after the conversion: the largest sets take gigabytes, and one copy is enough.
        scaled = images.to(torch.float32).div_(255.0)
        return scaled.sub_(self._per_channel(self.mean, scaled)).div_(self._per_channel(self.std, scaled))

    def to_uint8(self, images: Tensor) -> Tensor:
        """The bytes that `apply` would have mapped to `images`, rounded and clipped to 0…255."""
        self._check_channels(images)
        unit = images * self._per_channel(self.std, images) + self._per_channel(self.mean, images)
        return (unit * 255.0).round_().clamp_(0, 255).to(torch.uint8)

    def _check_channels(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != len(self.mean):
            raise ValueError(
                f"images must have shape (N, {len(self.mean)}, H, W) for this preprocessing, "
                f"got {tuple(images.shape)}"
            )

    @staticmethod
    def _per_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(1, -1, 1, 1)
