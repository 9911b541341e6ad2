"""TAGI beside its rivals: comparisons and sweeps made of many runs, each of which can be stopped and continued."""

from torchtagi.comparison.compare import Comparison, compare
from torchtagi.comparison.running import Stopped
from torchtagi.comparison.study import Study
from torchtagi.comparison.sweep import Sweep, sweep

__all__ = ["Comparison", "Stopped", "Study", "Sweep", "compare", "sweep"]
