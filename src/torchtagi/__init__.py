"""Analytical Bayesian deep learning for PyTorch: every weight and unit a Gaussian, trained by inference."""

__version__ = "0.1.0"

from torchtagi import nn
from torchtagi.checkpoint import CheckpointError, load, restore, save
from torchtagi.convert import convert
from torchtagi.gaussian import Gaussian, cat
from torchtagi.inference.average import Average
from torchtagi.inference.conditioning import CHUNK, condition
from torchtagi.inference.prior import keep_signal, match_prior, spread_signal, use_relu_prior
from torchtagi.inference.update import Update
from torchtagi.likelihoods import (
    Binary,
    ClassPrediction,
    HeteroscedasticRegression,
    HierarchicalClassification,
    Regression,
)
from torchtagi.nn.affine import multiply_in
from torchtagi.parameter import GaussianParameter, ordinary_parameters

__all__ = [
    "CHUNK",
    "Average",
    "Binary",
    "CheckpointError",
    "ClassPrediction",
    "Gaussian",
    "GaussianParameter",
    "HeteroscedasticRegression",
    "HierarchicalClassification",
    "Regression",
    "Update",
    "__version__",
    "cat",
    "condition",
    "convert",
    "keep_signal",
    "load",
    "match_prior",
    "multiply_in",
    "nn",
    "ordinary_parameters",
    "restore",
    "save",
    "spread_signal",
    "use_relu_prior",
]
