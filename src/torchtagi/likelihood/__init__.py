"""Likelihoods: evidence to `.backward()`, prediction, log-probability of held-out data."""

from torchtagi.likelihood.classification import ClassPrediction, HierarchicalClassification, class_tree
from torchtagi.likelihood.heteroscedastic import HeteroscedasticRegression
from torchtagi.likelihood.observation import Likelihood
from torchtagi.likelihood.regression import Binary, Regression

BUILDABLE = ("Binary", "HeteroscedasticRegression", "HierarchicalClassification", "Regression")

__all__ = [
    "BUILDABLE",
    "Binary",
    "ClassPrediction",
    "HeteroscedasticRegression",
    "HierarchicalClassification",
    "Likelihood",
    "Regression",
    "class_tree",
]
