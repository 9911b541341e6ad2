"""The methods that TAGI is compared with, on the same architectures, data and training loop."""

from torchtagi.experiments.baselines.config import BaselineConfig, configure_baseline
from torchtagi.experiments.baselines.learners import LEARNERS, load_baseline
from torchtagi.experiments.baselines.methods import METHODS, Method, find_method

__all__ = [
    "LEARNERS",
    "METHODS",
    "BaselineConfig",
    "Method",
    "configure_baseline",
    "find_method",
    "load_baseline",
]
