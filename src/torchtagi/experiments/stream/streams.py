"""Rows in their order: of two UCI sets as they are published, and drawn from a world that drifts."""

import math

import torch
from torch import Tensor

from torchtagi.experiments.data import load_uci_rows

REAL = {"power": "power-plant", "kin8nm": "kin8nm"}
STREAMS = (*REAL, "abrupt", "slow")
FEATURES, UNITS, NOISE_STD = 5, 8, 0.2


def load_stream(name: str, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """x (N, features) and y (N,), N at most `rows`; a drift is another one for each seed."""
    if name in REAL:
        x, y = load_uci_rows(REAL[name])
        return x[:rows], y[:rows, 0]
    return drift(name == "abrupt", rows, seed)


def drift(abrupt: bool, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """y = 2 Σ v tanh(W x) + noise, a sum of eight. W and v are drawn anew after each third of the rows; or they
    turn by half a circle, to others and on to their negatives, whose signs cancel: it goes and comes back."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, FEATURES, generator=generator)
    inner = 1.5 / FEATURES**0.5 * torch.randn(3, FEATURES, UNITS, generator=generator)
    outer = UNITS**-0.5 * torch.randn(3, UNITS, generator=generator)
    time = torch.arange(rows) / rows
    if abrupt:
        part = torch.eye(3)[(3 * time).long()]
    else:
        part = torch.stack([(math.pi * time).cos(), (math.pi * time).sin(), torch.zeros(rows)], 1)
    weights = torch.einsum("np,pfu->nfu", part, inner)
    signal = 2 * (torch.einsum("nf,nfu->nu", x, weights).tanh() * (part @ outer)).sum(1)
    return x, signal + NOISE_STD * torch.randn(rows, generator=generator)
