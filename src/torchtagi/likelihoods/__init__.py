"""Likelihoods: a loss to call `.backward()` on, prediction, log-probability of held-out data."""

from torchtagi.likelihoods.classification import HierarchicalClassification, class_tree
from torchtagi.likelihoods.heteroscedastic import HeteroscedasticRegression
from torchtagi.likelihoods.observation import Likelihood
from torchtagi.likelihoods.one_vs_rest import OneVsRest
from torchtagi.likelihoods.regression import Binary, Regression

BUILDABLE = ("Binary", "HeteroscedasticRegression", "HierarchicalClassification", "OneVsRest", "Regression")

__all__ = [
    "BUILDABLE",
    "Binary",
    "HeteroscedasticRegression",
    "HierarchicalClassification",
    "Likelihood",
    "OneVsRest",
    "Regression",
    "class_tree",
]
