"""Tiny ImageNet validation images at 32 × 32, an out-of-distribution set for CIFAR-10."""

import numpy as np
import torch

from torchtagi.experiments.data.arrays import SIDE, read_images
from torchtagi.experiments.data.cifar import CIFAR10_PREPROCESSING
from torchtagi.experiments.data.errors import DataError
from torchtagi.experiments.data.image_set import StoredImages
from torchtagi.experiments.data.locations import Locations


def read_tinyimagenet(split: str, places: Locations) -> StoredImages:
    """The images, unlabelled, to be seen as CIFAR-10 unless the caller brings another preprocessing.

    No network here trains on them, so a mean of their own would have no use.
    """
    for root in places.search:
        file = root / "tinyimagenet" / "images.npy"
        if file.is_file():
            return StoredImages(
                images=torch.from_numpy(np.array(read_images(file))),
                labels=None,
                classes=(),
                preprocessing=CIFAR10_PREPROCESSING,
            )
    raise DataError(
        f"images.npy of Tiny ImageNet ({split}) is missing. Downscale the validation images of "
        f"http://cs231n.stanford.edu/tiny-imagenet-200.zip to uint8 (N, 3, {SIDE}, {SIDE}) and save the "
        f"array as {places.target / 'tinyimagenet' / 'images.npy'} (searched: {places.describe()})"
    )
