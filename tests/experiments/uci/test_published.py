"""The published figures: complete, readable, as printed."""

import math

import pytest

from torchtagi.experiments.data import UCI_SETS
from torchtagi.experiments.uci.table import COLUMNS, PUBLISHED, TAGI_COLUMNS, Figures, read_figures

PBP_LEFT_OUT = {"energy", "naval", "protein"}


def test_every_set_has_the_figures_of_every_column_that_has_it():
    assert list(PUBLISHED) == list(UCI_SETS)
    for name, columns in PUBLISHED.items():
        assert set(columns) == set(COLUMNS) - ({"PBP"} if name in PBP_LEFT_OUT else set())
        for figures in columns.values():
            assert float(figures.rmse) > 0
            assert math.isfinite(float(figures.log_likelihood))
    assert set(TAGI_COLUMNS) < set(COLUMNS)


def test_digits_are_kept_as_printed():
    assert PUBLISHED["naval"]["MC-dropout"] == Figures("0.0007", "4.45")
    assert PUBLISHED["power"]["deep ensemble"] == Figures("4.13", "-2.82")
    assert PUBLISHED["yacht"]["PBP"] == Figures("1.07", "-1.66")


def test_a_line_that_lacks_a_column_is_refused():
    with pytest.raises(ValueError, match="zip"):
        read_figures("yacht 1.04/-1.60 1.50/-1.42")


@pytest.mark.parametrize("name", UCI_SETS)
def test_errors_and_likelihoods_fit_each_other(name):
    """A Gaussian's mean log-density is at most that of the variance which fits its errors, −½ log(2πe RMSE²) in
    the mean over homoscedastic predictions; a predicted variance gains something, but not nats."""
    for figures in PUBLISHED[name].values():
        best = -0.5 * math.log(2 * math.pi * math.e) - math.log(float(figures.rmse))
        assert float(figures.log_likelihood) < best + 1.5
