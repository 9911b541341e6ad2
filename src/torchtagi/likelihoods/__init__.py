"""Likelihoods: a loss to call `.backward()` on, prediction, log-probability of held-out data."""

from torchtagi.likelihoods.classification import HierarchicalClassification, class_tree
from torchtagi.likelihoods.heteroscedastic import HeteroscedasticRegression
from torchtagi.likelihoods.observation import Likelihood
from torchtagi.likelihoods.one_vs_rest import OneVsRest
from torchtagi.likelihoods.regression import Binary, Regression
from torchtagi.likelihoods.relative_noise import RelativeNoise

BUILDABLE = (
    "Binary",
    "HeteroscedasticRegression",
    "HierarchicalClassification",
    "OneVsRest",
    "Regression",
    "RelativeNoise",
)

__all__ = [
    "BUILDABLE",
    "Binary",
    "HeteroscedasticRegression",
    "HierarchicalClassification",
    "Likelihood",
    "OneVsRest",
    "Regression",
    "RelativeNoise",
    "class_tree",
]
