"""TAGI beside the baselines: comparisons and sweeps made of many runs, which can be stopped and continued."""

from torchtagi.experiments.compare.compare import collect, compare
from torchtagi.experiments.compare.runner import Runner, Stopped
from torchtagi.experiments.compare.study import Study
from torchtagi.experiments.compare.sweep import collect_sweep, sweep

__all__ = ["Runner", "Stopped", "Study", "collect", "collect_sweep", "compare", "sweep"]
