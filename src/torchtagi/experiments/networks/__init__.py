"""The paper's networks: the classifiers here, those of the GANs in `generative`."""

from torchtagi.experiments.networks.classifiers import cifar_3conv, mnist_cnn, resnet18

__all__ = ["cifar_3conv", "mnist_cnn", "resnet18"]
