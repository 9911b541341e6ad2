"""The UCI regression benchmark of Bayesian neural networks: one setting for all sets, on their standard splits."""
