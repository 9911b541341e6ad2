"""The docs' pages of numbers are what the logs in results/ say today."""

import runpy
from pathlib import Path

from torchtagi.runs import recorded, result_rows

ROOT = Path(__file__).parent.parent


def test_the_results_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    expected = script["page"](result_rows(recorded(ROOT / "results")))
    assert (ROOT / "docs" / "results.md").read_text() == expected, "run `make docs`"


def test_the_measurements_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    assert (ROOT / "docs" / "measurements.md").read_text() == script["page"](), "run `make docs`"


def test_the_results_page_says_what_was_not_run_and_averages_seeds() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    assert script["page"]([]).count("not run") == 2 * 6 + 5 + 2
    row = {"task": "mnist", "network": "cnn", "setting": "default", "nll": 0.1, "ece": 0.2}
    row |= {"auroc_ovr": 0.9, "auroc_misclassification": 0.8}
    rows = [row | {"seed": 0, "epoch": 1, "error": 1.0}, row | {"seed": 1, "epoch": 1, "error": 2.0}]
    text = script["page"]([*rows, row | {"seed": 0, "epoch": 7, "error": 0.5}])
    line = next(line for line in text.splitlines() if "ours, default" in line)
    assert line.startswith("| **ours, default** | 1.50 ± 0.71 (2 seeds) | 0.50 | 7 |")


def test_the_results_page_shows_first_epochs_seed_by_seed() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    row = {"task": "cifar10", "network": "resnet18half", "setting": "default", "nll": 0.1, "ece": 0.2, "epoch": 1}
    row |= {"auroc_ovr": 0.9, "auroc_misclassification": 0.8, "error": 50.0}
    rows = [row | {"seed": seed, "train_curve": [[1680, 80.0 + seed], [50000, 55.0]]} for seed in (1, 0)]
    text = script["page"](rows)
    assert "| resnet18half | 0 | 80.0 | 80.0 | 80.0 | 80.0 | 55.0 | 55.0 | 55.0 |" in text
    assert "| resnet18half | 1 | 81.0 |" in text
    assert "| resnet18 | not run |" in text
