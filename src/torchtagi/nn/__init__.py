"""Layers with torch's own names, arguments and shapes; each maps a Gaussian to a Gaussian.

`Module`, `ModuleList` and `Sequential` are torch's own: a user's network is an ordinary torch module.
"""

from torch.nn import Module, ModuleList, Sequential

from torchtagi.nn.activation import LeakyReLU, ReLU, Sigmoid, Softplus, Tanh
from torchtagi.nn.affine import Conv2d, ConvTranspose2d, Linear
from torchtagi.nn.layer import Layer
from torchtagi.nn.mixture import EvenExp, Exp, MixtureReLU, MixtureSigmoid, MixtureTanh
from torchtagi.nn.norm import BatchNorm1d, BatchNorm2d, LayerNorm
from torchtagi.nn.pool import AdaptiveAvgPool2d, AvgPool2d, MaxPool2d
from torchtagi.nn.shape import Flatten, Identity, Residual, Unflatten, ZeroPad2d
from torchtagi.nn.softmax import ClosedFormSoftmax, Remax

__all__ = ["AdaptiveAvgPool2d", "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "ClosedFormSoftmax", "Conv2d"]
__all__ += ["ConvTranspose2d", "EvenExp", "Exp", "Flatten", "Identity", "Layer", "LayerNorm", "LeakyReLU", "Linear"]
__all__ += ["MaxPool2d", "MixtureReLU", "MixtureSigmoid", "MixtureTanh", "Module", "ModuleList", "ReLU", "Remax"]
__all__ += ["Residual", "Sequential", "Sigmoid", "Softplus", "Tanh", "Unflatten", "ZeroPad2d"]
