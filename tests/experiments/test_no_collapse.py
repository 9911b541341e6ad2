"""A short version of benchmarks/grid.py: the default rule learns at every noise and batch, from few digits."""

import importlib.util
from pathlib import Path

import pytest
import torch

from torchtagi.experiments import data

GRID = Path(__file__).parents[2] / "benchmarks" / "grid.py"


@pytest.fixture(scope="module")
def grid():
    spec = importlib.util.spec_from_file_location("grid", GRID)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits():
    return tuple(data.load("mnist", split).to("cpu", torch.channels_last) for split in ("train", "test"))


@pytest.mark.parametrize(
    ("noise_std", "batch", "samples", "limit"),
    [(0.03, 1, 400, 45.0), (0.03, 16, 1500, 30.0), (1.0, 64, 2000, 40.0), (0.03, 256, 2560, 75.0)],
)
def test_learns_without_collapse(grid, digits, noise_std, batch, samples, limit):
    row = grid.train_cell("mnist-cnn", noise_std, batch, 0, "whole", *digits, samples, tested=500)
    assert row["smallest_var"] > 0
    assert row["nll"] is not None, "a value was not finite"
    assert row["error"] < limit


def test_the_paper_rule_does_collapse(grid, digits, monkeypatch):
    """What the default rule is measured against: the same cell, observations taken as independent."""
    coherent = grid.tagi.Update
    monkeypatch.setattr(grid.tagi, "Update", lambda net: coherent(net, "paper"))
    row = grid.train_cell("mnist-cnn", 0.03, 64, 0, "whole", *digits, 1280, tested=500)
    assert row["error"] > 60
