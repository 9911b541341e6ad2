"""Image sets by name."""

from collections.abc import Callable
from pathlib import Path

from torchtagi.experiments.data.celeba import read_celeba
from torchtagi.experiments.data.cifar import read_cifar10
from torchtagi.experiments.data.image_set import ImageSet, StoredImages, TrainTest
from torchtagi.experiments.data.locations import Locations, Progress
from torchtagi.experiments.data.mnist import read_fashion_mnist, read_mnist
from torchtagi.experiments.data.preprocessing import Preprocessing
from torchtagi.experiments.data.tinyimagenet import read_tinyimagenet

_Reader = Callable[[str, Locations], StoredImages]

_READERS: dict[str, tuple[_Reader, tuple[str, ...]]] = {
    "mnist": (read_mnist, ("train", "test")),
    "fashion-mnist": (read_fashion_mnist, ("train", "test")),
    "cifar10": (read_cifar10, ("train", "test")),
    "celeba": (read_celeba, ("train", "validation", "test")),
    "tinyimagenet": (read_tinyimagenet, ("test",)),
}


def image_set_names() -> tuple[str, ...]:
    """The sets `load` knows."""
    return tuple(_READERS)


def load(
    name: str,
    split: str = "train",
    root: str | Path | None = None,
    preprocessing: Preprocessing | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> ImageSet:
    """The set `name`, looked for in `root`, then `$TAGI_DATA`, then the cache folder, then fetched.

    MNIST comes with the package. Images are preprocessed by their own training set's statistics (the
    same for every split) unless `preprocessing` brings another's: an out-of-distribution set goes
    through that of the set it is compared with.

    `download=False` or `TAGI_OFFLINE=1` in the environment keep it off the network; a `DataError`
    then says which file to put where. `progress` hears `(done, total)` of downloads and conversions.
    """
    if name not in _READERS:
        raise ValueError(f"unknown image set {name!r}; known are {', '.join(_READERS)}")
    read, splits = _READERS[name]
    if split not in splits:
        raise ValueError(f"{name} has no split {split!r}; it has {', '.join(splits)}")
    stored = read(split, Locations.resolve(root, download, progress))
    preprocessing = preprocessing or stored.preprocessing
    return ImageSet(
        name=name,
        images=preprocessing.apply(stored.images),
        labels=stored.labels,
        classes=stored.classes,
        preprocessing=preprocessing,
        attributes=stored.attributes,
    )


def load_train_test(
    name: str,
    root: str | Path | None = None,
    download: bool = True,
    progress: Progress | None = None,
) -> TrainTest:
    """Both halves of the set `name`, preprocessed by the training half's statistics."""
    return TrainTest(
        train=load(name, "train", root, download=download, progress=progress),
        test=load(name, "test", root, download=download, progress=progress),
    )
