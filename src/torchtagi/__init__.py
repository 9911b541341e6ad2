"""Analytical Bayesian deep learning for PyTorch: every weight and unit a Gaussian, trained by inference."""

__version__ = "0.1.0"

from torchtagi import nn
from torchtagi.checkpoint import CheckpointError
from torchtagi.classifier import Classifier
from torchtagi.convert import convert
from torchtagi.gaussian import Gaussian, cat
from torchtagi.inference.average import Average
from torchtagi.inference.conditioning import condition
from torchtagi.inference.prior import calibrate_prior
from torchtagi.inference.update import Update
from torchtagi.likelihoods import (
    Binary,
    HeteroscedasticRegression,
    HierarchicalClassification,
    OneVsRest,
    Regression,
)
from torchtagi.loading import load
from torchtagi.nn.affine import multiply_in
from torchtagi.parameter import GaussianParameter, ordinary_parameters
from torchtagi.prediction import ClassPrediction, RegressionPrediction
from torchtagi.regressor import Regressor

__all__ = [
    "Average",
    "Binary",
    "CheckpointError",
    "ClassPrediction",
    "Classifier",
    "Gaussian",
    "GaussianParameter",
    "HeteroscedasticRegression",
    "HierarchicalClassification",
    "OneVsRest",
    "Regression",
    "RegressionPrediction",
    "Regressor",
    "Update",
    "__version__",
    "calibrate_prior",
    "cat",
    "condition",
    "convert",
    "load",
    "multiply_in",
    "nn",
    "ordinary_parameters",
]
