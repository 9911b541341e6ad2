"""TAGI beside the baselines: comparisons and sweeps made of many runs, which can be stopped and continued."""
