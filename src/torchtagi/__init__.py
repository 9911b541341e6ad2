"""Analytical Bayesian deep learning for PyTorch: every weight and unit a Gaussian, trained by inference."""

from torchtagi import nn
from torchtagi.gaussian import Gaussian, cat
from torchtagi.likelihood import Binary, ClassPrediction, HierarchicalClassification, Regression
from torchtagi.parameter import GaussianParameter
from torchtagi.update import Update

__version__ = "0.1.0"

__all__ = [
    "Binary",
    "ClassPrediction",
    "Gaussian",
    "GaussianParameter",
    "HierarchicalClassification",
    "Regression",
    "Update",
    "__version__",
    "cat",
    "nn",
]
