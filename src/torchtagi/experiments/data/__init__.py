"""Data in memory: MNIST (embedded), Fashion-MNIST and CIFAR-10 (downloaded), and CelebA, Tiny ImageNet and UCI
regression, which the user brings."""

from torchtagi.experiments.data.augmentation import augment_affine, augment_crop_flip, augment_shift
from torchtagi.experiments.data.files import DataError, find_named
from torchtagi.experiments.data.image_set import ImageSet, Preprocessing, TrainTest
from torchtagi.experiments.data.loading import load, load_train_test
from torchtagi.experiments.data.uci import UCI_NAMES, RegressionSplit, load_uci

__all__ = [
    "UCI_NAMES",
    "DataError",
    "ImageSet",
    "Preprocessing",
    "RegressionSplit",
    "TrainTest",
    "augment_affine",
    "augment_crop_flip",
    "augment_shift",
    "find_named",
    "load",
    "load_train_test",
    "load_uci",
]
