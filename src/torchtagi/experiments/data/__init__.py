"""Data in memory: MNIST (embedded), Fashion-MNIST and CIFAR-10 (downloaded), CelebA and Tiny ImageNet, which the
user brings."""

from torchtagi.experiments.data.augmentation import augment_affine, augment_crop_flip, augment_shift
from torchtagi.experiments.data.files import DataError, find_named
from torchtagi.experiments.data.image_set import ImageSet, Preprocessing, TrainTest
from torchtagi.experiments.data.loading import load, load_train_test

__all__ = [
    "DataError",
    "ImageSet",
    "Preprocessing",
    "TrainTest",
    "augment_affine",
    "augment_crop_flip",
    "augment_shift",
    "find_named",
    "load",
    "load_train_test",
]
