"""Data in memory: MNIST (embedded), Fashion-MNIST and CIFAR-10 (downloaded), CelebA, Tiny ImageNet and UCI
regression, which the user brings."""

from collections.abc import Callable

from torchtagi.experiments.data.augmentation import augment_affine, augment_crop_flip, augment_shift
from torchtagi.experiments.data.celeba import read_celeba
from torchtagi.experiments.data.cifar import read_cifar10, read_tinyimagenet
from torchtagi.experiments.data.files import DataError, Locations, check_installed, find_each, find_named
from torchtagi.experiments.data.image_set import ImageSet, Preprocessing, Stored, TrainTest
from torchtagi.experiments.data.mnist import read_fashion_mnist, read_mnist
from torchtagi.experiments.data.uci import UCI_SETS, RegressionSplit, load_uci, load_uci_rows

__all__ = [
    "UCI_SETS",
    "DataError",
    "ImageSet",
    "Preprocessing",
    "RegressionSplit",
    "TrainTest",
    "augment_affine",
    "augment_crop_flip",
    "augment_shift",
    "check_installed",
    "find_each",
    "find_named",
    "load",
    "load_train_test",
    "load_uci",
    "load_uci_rows",
]

READERS: dict[str, tuple[Callable[[str, Locations], Stored], tuple[str, ...]]] = {
    "mnist": (read_mnist, ("train", "test")),
    "fashion-mnist": (read_fashion_mnist, ("train", "test")),
    "cifar10": (read_cifar10, ("train", "test")),
    "celeba": (read_celeba, ("train", "validation", "test")),
    "tinyimagenet": (read_tinyimagenet, ("test",)),
}


def load(
    name: str, split: str = "train", preprocessing: Preprocessing | None = None, download: bool = True
) -> ImageSet:
    """The set `name`, looked for in `$TAGI_DATA`, then in the cache folder.

    MNIST comes with the package. Fashion-MNIST and CIFAR-10 are downloaded when they are in neither place, unless
    `download=False` or `TAGI_OFFLINE=1` in the environment forbid it. CelebA and Tiny ImageNet have to be put there
    by hand; a `DataError` says which file to get from where.

    Images are preprocessed by their own training set's statistics (the same for every split) unless `preprocessing`
    brings another's: an out-of-distribution set goes through that of the set it is compared with.
    """
    read, splits = find_named("data set", name, READERS)
    if split not in splits:
        raise ValueError(f"{name} has no split {split!r}; it has {', '.join(splits)}")
    images, labels, classes, own = read(split, Locations.resolve(download))
    preprocessing = preprocessing or own
    return ImageSet(name, preprocessing.apply(images), labels, classes, preprocessing)


def load_train_test(name: str, download: bool = True) -> TrainTest:
    """Both halves of the set `name`, preprocessed by the training half's statistics."""
    train, test = (load(name, split, download=download) for split in ("train", "test"))
    return TrainTest(train, test)
