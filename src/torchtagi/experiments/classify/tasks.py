"""What `tagi train` can train: a data set, the networks for it, and what the paper reports for them.

A new task or network is an entry here; the loop, the run folders, the evaluation and the report know none of them
by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from torchtagi.experiments import networks as models
from torchtagi.experiments.data import Preprocessing, augment_crop_flip, augment_shift, find_named
from torchtagi.experiments.data.cifar import CIFAR10_CLASSES, CIFAR10_PREPROCESSING
from torchtagi.experiments.data.mnist import MNIST_MEAN


@dataclass(frozen=True)
class Network:
    """How to build a network, and the paper's test error in % by epoch (Tables 1 and 2)."""

    build: Callable[..., nn.Module]
    """The Gaussian network; `build(classes, layers=torch.nn)` makes the ordinary one."""
    paper_error: Mapping[int, float]
    paper_augments: bool = False


@dataclass(frozen=True)
class Task:
    """A labelled image set, and a set of out-of-distribution images for it."""

    name: str
    ood: str
    networks: Mapping[str, Network]
    default_epochs: int
    thing: str
    """What one image shows, for titles."""
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    preprocessing: Preprocessing
    augment: Callable[[Tensor], Tensor]
    """A random variation of each image that leaves its class alone."""

    @property
    def default_network(self) -> str:
        return next(iter(self.networks))

    def network(self, name: str) -> Network:
        if name not in self.networks:
            raise ValueError(f"{self.name} has no network {name!r}; it has {', '.join(self.networks)}")
        return self.networks[name]


TASKS: Mapping[str, Task] = {
    "mnist": Task(
        name="mnist",
        ood="fashion-mnist",
        networks={"cnn": Network(models.mnist_cnn, {1: 1.88, 50: 0.64})},
        default_epochs=10,
        thing="digit",
        classes=tuple("0123456789"),
        image_shape=(1, 28, 28),
        preprocessing=Preprocessing.centred(MNIST_MEAN),
        augment=augment_shift,
    ),
    "cifar10": Task(
        name="cifar10",
        ood="tinyimagenet",
        networks={
            "3conv": Network(models.cifar_3conv, {1: 44.3, 50: 23.6}),
            "3conv-ln": Network(partial(models.cifar_3conv, norm="layer"), {1: 41.4, 50: 22.6}),
            "3conv-bn": Network(partial(models.cifar_3conv, norm="batch"), {1: 42.6, 50: 22.0}),
            "resnet18": Network(models.resnet18, {1: 65.9, 50: 13.8}, paper_augments=True),
            "resnet18half": Network(partial(models.resnet18, width=32), {1: 65.9, 50: 14.9}, paper_augments=True),
        },
        default_epochs=50,
        thing="image",
        classes=CIFAR10_CLASSES,
        image_shape=(3, 32, 32),
        preprocessing=CIFAR10_PREPROCESSING,
        augment=augment_crop_flip,
    ),
}


def find_task(name: str) -> Task:
    return find_named("task", name, TASKS)
