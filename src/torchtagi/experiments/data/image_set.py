"""Images in memory, and the map between their stored bytes and the numbers a network sees."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Preprocessing:
    """Per channel: x = (byte / 255 − mean) / std.

    It is a value of its own because an out-of-distribution set is preprocessed like the set the network was
    trained on, and because plots need the bytes back.
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
        mean, std = self.per_channel(images, torch.float32)
        # In place after the conversion: the largest sets take gigabytes, and one copy is enough.
        return images.to(torch.float32).div_(255.0).sub_(mean).div_(std)

    def to_uint8(self, images: Tensor) -> Tensor:
        """The bytes that `apply` would have mapped to `images`, rounded and clipped to 0…255."""
        mean, std = self.per_channel(images, images.dtype)
        return ((images * std + mean) * 255.0).round_().clamp_(0, 255).to(torch.uint8)

    def per_channel(self, images: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Mean and std in a shape that fits `images`."""
        if images.ndim != 4 or images.shape[1] != len(self.mean):
            expected = f"(N, {len(self.mean)}, H, W) for this preprocessing"
            raise ValueError(f"images must have shape {expected}, got {tuple(images.shape)}")
        mean, std = torch.tensor([self.mean, self.std], dtype=dtype, device=images.device).view(2, 1, -1, 1, 1)
        return mean, std


Stored = tuple[Tensor, Tensor | None, tuple[str, ...], Preprocessing]
"""What the files of a set hold: images as bytes, labels, the classes' names, and how to preprocess the images."""


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A preprocessed set: `images` float32 (N, C, H, W) and, where known, `labels` int64 (N,)."""

    name: str
    images: Tensor
    labels: Tensor | None
    classes: tuple[str, ...]
    preprocessing: Preprocessing

    def __len__(self) -> int:
        return int(self.images.shape[0])

    def to(
        self, device: torch.device | str, memory_format: torch.memory_format = torch.preserve_format
    ) -> "ImageSet":
        """The same set on `device`, its images in `memory_format` if one is given."""
        labels = None if self.labels is None else self.labels.to(device)
        return replace(self, images=self.images.to(device, memory_format=memory_format), labels=labels)

    def subset(self, index: Tensor | slice) -> "ImageSet":
        """The images at `index`, with their labels."""
        return replace(self, images=self.images[index], labels=None if self.labels is None else self.labels[index])

    def to_uint8(self, images: Tensor | None = None) -> Tensor:
        """The bytes behind `images` (default: all of this set), for plots; any that are preprocessed like this set
        will do, generated images included."""
        return self.preprocessing.to_uint8(self.images if images is None else images)


@dataclass(frozen=True, eq=False)
class TrainTest:
    """The two halves of an experiment, preprocessed alike."""

    train: ImageSet
    test: ImageSet
