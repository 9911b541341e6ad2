"""TAGI beside its rivals: comparisons and sweeps made of many runs, each of which can be stopped and continued."""

from torchtagi.experiments.compare.compare import Comparison, compare
from torchtagi.experiments.compare.running import Stopped
from torchtagi.experiments.compare.study import Study
from torchtagi.experiments.compare.sweep import Sweep, sweep

__all__ = ["Comparison", "Stopped", "Study", "Sweep", "compare", "sweep"]
