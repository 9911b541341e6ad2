"""Rows in their order, of two UCI sets as they are published, and drawn from a world that drifts; and a stream
learned by a method: a job, whose error and likelihood are those before each row is learned.

streams.jsonl    a line a job: stream, method, seed and rows, and what was measured
"""

import math
import time
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from torchtagi.experiments.data import check_installed, find_each, load_uci_rows
from torchtagi.experiments.runs.config import versions
from torchtagi.experiments.runs.folder import Row
from torchtagi.experiments.stream.learners import LEARNERS, new_learner

RESULTS = "streams.jsonl"
IDENTITY = ("stream", "method", "seed", "rows", "setting")
FIRST_SCORED = 50  # before, scales and noises are not known to anybody
POINTS = 40  # of a curve
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


@dataclass(frozen=True)
class StreamJob:
    stream: str
    method: str
    seed: int
    rows: int
    setting: Any
    """Learning rates to choose between, or TAGI's horizon."""

    @property
    def name(self) -> str:
        return f"{self.stream}, {self.method}, seed {self.seed}"

    def measure(self) -> Row:
        x, y = load_stream(self.stream, self.rows, self.seed)
        torch.manual_seed(zlib.crc32(f"{self.stream}/{self.seed}".encode()))
        learner = new_learner(self.method, x.shape[1], self.setting)
        squares, likelihoods = [], []
        start = time.perf_counter()
        for row in range(len(x)):
            one, target = x[row : row + 1], y[row : row + 1]
            if row >= FIRST_SCORED:
                mean, var = learner.predict(one)
                squares.append((mean - float(target)) ** 2)
                likelihoods.append(-0.5 * (math.log(2 * math.pi * var) + squares[-1] / var))
            learner.learn(one, target)
        return {
            **asdict(self),
            **means_of(squares, likelihoods),
            "seconds": round(time.perf_counter() - start, 3),
            "curve": curve_of(squares, likelihoods),
            "versions": versions(),
        }


def means_of(squares: Sequence[float], likelihoods: Sequence[float]) -> Row:
    rmse = math.sqrt(sum(squares) / len(squares))
    return {"rmse": rmse, "log_likelihood": sum(likelihoods) / len(likelihoods)}


def curve_of(squares: Sequence[float], likelihoods: Sequence[float]) -> list[list[float]]:
    """[row, RMSE, log-likelihood] of one part of the rows after the other; a row is its part's last."""
    size = max(1, len(squares) // POINTS)
    points = []
    for end in range(size, len(squares) + 1, size):
        part = means_of(squares[end - size : end], likelihoods[end - size : end])
        points.append([FIRST_SCORED + end, round(part["rmse"], 5), round(part["log_likelihood"], 4)])
    return points


def jobs_of(streams: Sequence[str], methods: Sequence[str], rows: int, seeds: int) -> list[StreamJob]:
    """Raises if there is no such stream or method, or if data are missing."""
    chosen = find_each("method", methods, LEARNERS)
    for name in chosen:
        check_installed(name, "sklearn" if name == "linear" else None)
    for name in find_each("stream", streams, dict.fromkeys(STREAMS)):
        if name in REAL:
            load_stream(name, 1, 0)
    if rows <= FIRST_SCORED:
        raise ValueError(f"rows must be more than {FIRST_SCORED}, which are not scored, got {rows}")
    return [
        StreamJob(stream, method, seed, rows, setting)
        for stream in dict.fromkeys(streams)
        for method, setting in chosen.items()
        for seed in range(seeds)
    ]
