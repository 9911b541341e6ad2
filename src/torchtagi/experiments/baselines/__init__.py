"""TAGI's rivals on the same architectures, data and harness: backpropagation and its Bayesian relatives."""

from torchtagi.experiments.baselines.config import RivalConfig, configure_rival
from torchtagi.experiments.baselines.methods import METHODS, Method, find_method
from torchtagi.experiments.baselines.training import LEARNERS, RivalTraining, load_rival

__all__ = [
    "LEARNERS",
    "METHODS",
    "Method",
    "RivalConfig",
    "RivalTraining",
    "configure_rival",
    "find_method",
    "load_rival",
]
