"""Data in memory: MNIST (embedded), Fashion-MNIST, CIFAR-10, CelebA, Tiny ImageNet and UCI regression."""

from torchtagi.experiments.data.augmentation import augment_affine, augment_crop_flip, augment_shift, crop_flip
from torchtagi.experiments.data.batching import batches, epoch_order
from torchtagi.experiments.data.download import fetch
from torchtagi.experiments.data.errors import DataError
from torchtagi.experiments.data.image_set import ImageSet, TrainTest
from torchtagi.experiments.data.loading import image_set_names, load, load_train_test
from torchtagi.experiments.data.preprocessing import Preprocessing
from torchtagi.experiments.data.uci import RegressionSplit, load_uci, uci_names

__all__ = [
    "DataError",
    "ImageSet",
    "Preprocessing",
    "RegressionSplit",
    "TrainTest",
    "augment_affine",
    "augment_crop_flip",
    "augment_shift",
    "batches",
    "crop_flip",
    "epoch_order",
    "fetch",
    "image_set_names",
    "load",
    "load_train_test",
    "load_uci",
    "uci_names",
]
