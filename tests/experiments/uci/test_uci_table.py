"""Tables and verdicts, against numbers worked out by hand."""

import pytest

from torchtagi.experiments.report.tables import LABELS, Cell
from torchtagi.experiments.uci.table import COLUMNS, Mean, mean_over, means_of, shown, tables, verdicts


def row(name, method, split, rmse, log_likelihood=-1.0, coverage=0.95, seconds=2.0, splits=2):
    measured = {"rmse": rmse, "log_likelihood": log_likelihood, "coverage": coverage, "seconds": seconds}
    return {"set": name, "method": method, "split": split, "splits": splits, **measured}


def means(*rows):
    return means_of([row(*entry) if isinstance(entry, tuple) else entry for entry in rows])


def test_a_mean_and_its_standard_error():
    found = mean_over([{"rmse": value, "splits": 20} for value in (1.0, 2.0, 6.0)], "rmse")
    assert found == Mean(3.0, pytest.approx((7 / 3) ** 0.5), 3, 20)
    assert mean_over([{"rmse": 2.0, "splits": 20}], "rmse").error is None


@pytest.mark.parametrize(
    ("mean", "measure", "text"),
    [
        (Mean(2.9012, 0.1834, 20, 20), "rmse", "2.90 ± 0.18"),
        (Mean(0.00072, 0.00001, 20, 20), "rmse", "0.000720 ± 0.000010"),
        (Mean(0.0789, 0.0021, 20, 20), "rmse", "0.0789 ± 0.0021"),
        (Mean(2.9012, 0.1834, 3, 20), "rmse", "2.90 ± 0.18 (3)"),
        (Mean(2.9012, None, 1, 1), "rmse", "2.90"),
        (Mean(-2.404, 0.031, 20, 20), "log_likelihood", "-2.40 ± 0.03"),
        (Mean(0.9512, 0.01, 20, 20), "coverage", "0.951"),
        (Mean(1.26, 0.01, 20, 20), "seconds", "1.3"),
    ],
)
def test_how_a_mean_is_shown(mean, measure, text):
    assert shown(mean, measure) == text


def test_own_tables_mark_the_best_and_leave_a_dash_where_nothing_is_known():
    found = means(
        *(("yacht", "tagi", split, rmse, -0.5) for split, rmse in enumerate((0.5, 0.7))),
        ("yacht", "mlp", 0, 0.4, -0.75),
        ("boston", "tagi", 0, 3.0, -2.5),
    )
    rmse = next(each for each in tables(found) if each.title == "RMSE")
    assert rmse.heads == ["set", "tagi", "mlp"]
    assert rmse.rows == [
        [Cell("boston"), Cell("3.00 (1)"), Cell("–")],
        [Cell("yacht"), Cell("0.600 ± 0.100"), Cell("0.400 (1)", best=True)],
    ]
    likelihood = next(each for each in tables(found) if each.title == "log-likelihood")
    assert likelihood.rows[1] == [Cell("yacht"), Cell("−0.50 ± 0.00", best=True), Cell("−0.75 (1)")]
    coverage = next(each for each in tables(found) if each.title == LABELS["coverage"])
    assert not any(cell.best for line in coverage.rows for cell in line), "no coverage is the better, the larger"


def test_published_figures_stand_beside_with_the_best_of_the_row():
    ahead, behind = (tables(means(("yacht", "tagi", 0, rmse))) for rmse in (0.6, 0.7))
    beside = ahead[0]
    assert beside.heads == ["set", "tagi", *COLUMNS]
    assert beside.rows[0] == [
        *(Cell("yacht"), Cell("0.600 (1)", best=True), Cell("1.04"), Cell("1.50")),
        *(Cell("0.67"), Cell("1.07"), Cell("0.93")),
    ]
    assert [cell.text for cell in behind[0].rows[0] if cell.best] == ["0.67"]
    assert ahead[1].rows[0][2:] == [Cell(text) for text in ("−1.60", "−1.42", "−1.25", "−1.66", "−1.19")]
    assert beside.markdown() == [
        "| set | tagi | TAGI | TAGI-V | MC-dropout | PBP | deep ensemble |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| yacht | **0.600 (1)** | 1.04 | 1.50 | 0.67 | 1.07 | 0.93 |",
    ]
    assert [cell.text for cell in tables(means(("energy", "tagi", 0, 0.5)))[0].rows[0]][5] == "–", "PBP left it out"


def test_verdicts_by_hand():
    """yacht beats all columns. energy (TAGI 1.32 and 2.24, best 0.54) beats TAGI's alone, and is a standard error
    of 0.1 away from the best. wine (0.639, 0.638, best 0.622) beats none."""
    found = means(
        *(("yacht", "tagi", split, 0.5, -1.0, 0.94) for split in (0, 1)),
        *(("energy", "tagi", split, rmse, -2.0, 0.99) for split, rmse in enumerate((0.54, 0.74))),
        *(("wine", "tagi", split, 0.65, -0.9, 0.93) for split in (0, 1)),
    )
    assert verdicts(found) == [
        "RMSE better than TAGI's and TAGI-V's: 2 of 3 sets (energy, yacht)",
        "RMSE the best of all, or within a standard error of it: 2 of 3 sets (energy, yacht)",
        "log-likelihood better than TAGI's and TAGI-V's: 2 of 3 sets (wine, yacht)",
        "log-likelihood the best of all, or within a standard error of it: 2 of 3 sets (wine, yacht)",
        "95 % intervals that hold 0.93 to 0.97 of the targets: 2 of 3 sets (wine, yacht)",
    ]


def test_methods_run_here_are_among_those_to_be_beaten():
    alone = [("yacht", "tagi", 0, 0.5), ("yacht", "tagi", 1, 0.5)]
    assert "1 of 1" in verdicts(means(*alone))[1]
    assert "0 of 1" in verdicts(means(*alone, ("yacht", "gp", 0, 0.4)))[1]
    assert verdicts(means(("yacht", "gp", 0, 0.4))) == []
    assert verdicts({}) == []
