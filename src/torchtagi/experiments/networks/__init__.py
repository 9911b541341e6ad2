"""The paper's networks."""

from torchtagi.experiments.networks.classifiers import cifar_3conv, mnist_cnn, resnet18
from torchtagi.experiments.networks.generative import (
    celeba_dnet,
    celeba_gnet,
    celeba_pnet,
    celeba_qnet,
    mnist_dnet,
    mnist_gnet,
    mnist_pnet,
    mnist_qnet,
)

__all__ = [
    "celeba_dnet",
    "celeba_gnet",
    "celeba_pnet",
    "celeba_qnet",
    "cifar_3conv",
    "mnist_cnn",
    "mnist_dnet",
    "mnist_gnet",
    "mnist_pnet",
    "mnist_qnet",
    "resnet18",
]
