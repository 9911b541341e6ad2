"""The paper's networks."""

from torchtagi.models.classifiers import cifar_3conv, mnist_cnn, resnet18

__all__ = ["cifar_3conv", "mnist_cnn", "resnet18"]
