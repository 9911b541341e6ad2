"""Images in memory, as every part of the package passes them around."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchtagi.experiments.data.preprocessing import Preprocessing


@dataclass(frozen=True, eq=False)
class StoredImages:
    """What a data set's files hold, before any preprocessing."""

    images: Tensor
    labels: Tensor | None
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    attributes: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A preprocessed set: `images` float32 (N, C, H, W) and, where known, `labels` int64 (N,).

    `attributes` holds named boolean marks of each image (CelebA), and is empty for most sets.
    """

    name: str
    images: Tensor
    labels: Tensor | None
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    attributes: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.images.shape[0])

    def to(self, device: torch.device | str, memory_format: torch.memory_format | None = None) -> "ImageSet":
        """The same set on `device`, its images in `memory_format` if one is given."""
        if memory_format is None:
            images = self.images.to(device)
        else:
            images = self.images.to(device, memory_format=memory_format)
        return replace(
            self,
            images=images,
            labels=None if self.labels is None else self.labels.to(device),
            attributes={name: mark.to(device) for name, mark in self.attributes.items()},
        )

    def subset(self, index: Tensor | slice) -> "ImageSet":
        """The images at `index`, with their labels and attributes."""
        return replace(
            self,
            images=self.images[index],
            labels=None if self.labels is None else self.labels[index],
            attributes={name: mark[index] for name, mark in self.attributes.items()},
        )

    def to_uint8(self, images: Tensor | None = None) -> Tensor:
        """The bytes behind `images` (default: all of this set), for plots.

        Anything in this set's preprocessed space will do, generated images included.
        """
        return self.preprocessing.to_uint8(self.images if images is None else images)


@dataclass(frozen=True, eq=False)
class TrainTest:
    """The two halves of an experiment, preprocessed alike."""

    train: ImageSet
    test: ImageSet
