"""Likelihoods: evidence to `.backward()`, prediction, log-probability of held-out data."""

from torchtagi.likelihood.classification import ClassPrediction, HierarchicalClassification, class_tree
from torchtagi.likelihood.observation import Likelihood
from torchtagi.likelihood.regression import Binary, Regression

__all__ = [
    "Binary",
    "ClassPrediction",
    "HierarchicalClassification",
    "Likelihood",
    "Regression",
    "class_tree",
]
