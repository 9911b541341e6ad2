"""Tiny ImageNet validation images at 32 × 32, an out-of-distribution set for CIFAR-10."""

import numpy as np
import torch

from torchtagi.experiments.data.cifar import CIFAR10_PREPROCESSING
from torchtagi.experiments.data.files import SIDE, Locations, read_images
from torchtagi.experiments.data.image_set import StoredImages


def read_tinyimagenet(split: str, places: Locations) -> StoredImages:
    """The images, unlabelled, preprocessed like CIFAR-10 unless the caller brings another preprocessing.

    No network here trains on them, so a mean of their own would have no use.
    """
    root = places.find("tinyimagenet/images.npy")
    if root is None:
        raise places.missing(
            f"Tiny ImageNet ({split})",
            "downscale the validation images of http://cs231n.stanford.edu/tiny-imagenet-200.zip to uint8 "
            f"(N, 3, {SIDE}, {SIDE}) and save the array as {places.cache / 'tinyimagenet' / 'images.npy'}",
        )
    images = torch.from_numpy(np.array(read_images(root / "tinyimagenet" / "images.npy")))
    return StoredImages(images, labels=None, classes=(), preprocessing=CIFAR10_PREPROCESSING)
