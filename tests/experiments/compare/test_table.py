"""A comparison's numbers and pictures, from its runs' rows."""

import pytest

from torchtagi.experiments.compare.table import cell, chosen_text, entry_row, rows_of
from torchtagi.experiments.report.comparison_plots import (
    colour_of,
    error_curves,
    pooled_bins,
    reliability,
    stream_curves,
)


def run(error, seconds=(7.0,)):
    summary = {
        "scores": {"error": error, "nll": 0.5},
        "out_of_distribution": {"entropy": {"auroc": 0.75}},
        "predict_seconds_per_1000": 1.0,
        "reliability": {"count": [0, 20], "confidence": [None, 0.9], "accuracy": [None, 0.8]},
    }
    epochs = [{"epoch": i, "seconds": s, "error": error, "train_error": 3.0} for i, s in enumerate(seconds, 1)]
    return {"epochs": epochs, "summary": summary}


def test_a_row_has_the_means_over_the_finished_seeds():
    row = entry_row("adam", [run(1.0), run(4.0), {"diverged": "the loss is nan"}])
    assert (row["seeds"], row["diverged"], row["error"], row["train_error"]) == (2, 1, 2.5, 3.0)
    assert row["error_std"] == pytest.approx(4.5**0.5)
    assert (row["ood_auroc"], row["brier"]) == (0.75, None)
    assert (cell(row, "error"), cell(row, "error", spread=False), cell(row, "brier")) == (
        "2.50 ± 2.12",
        "2.50",
        "–",
    )
    assert entry_row("vogn", [run(1.0)])["train_error"] is None, "networks drawn answered"
    lost = entry_row("adam", [{"diverged": "the loss is nan"}])
    assert (lost["error"], lost["seeds"], lost["diverged"]) == (None, 0, 1)


def test_costs_are_the_fastest_epochs_in_adams_of_the_same_batch_size():
    entry = {"batch_size": 1, "hyperparameters": {}, "chosen_by": "defaults"}
    content = {
        "entries": dict.fromkeys(("adam-batch1", "vogn-batch1", "tagi-batch1", "vogn-batch16"), entry),
        "runs": {
            "adam-batch1/seed0": run(1.0, seconds=(9.0, 3.0)),
            "adam-batch1/seed1": run(1.0, seconds=(2.0, 4.0)),
            "vogn-batch1/seed0": run(1.0, seconds=(5.0, 8.0)),
            "tagi-batch1/seed0": {"diverged": "the loss is nan"},
            "vogn-batch16/seed0": run(1.0),
        },
    }
    found = {row["entry"]: row["relative_cost"] for row in rows_of(content)}
    assert found == {"tagi-batch1": None, "adam-batch1": 1.0, "vogn-batch1": 2.5, "vogn-batch16": None}


def test_what_was_chosen_and_what_to_doubt():
    row = entry_row("vogn", [run(1.0), {"diverged": "the loss is nan"}])
    row |= {"batch_size": 64, "hyperparameters": {"learning_rate": 0.1}, "chosen_by": "tuning"}
    said = "vogn, 1 seed and 1 diverged: batch 64, learning_rate 0.1 (tuning, learning_rate at the grid's edge)"
    assert chosen_text({**row, "at_edge": ["learning_rate"]}) == said


def test_error_curves_have_the_seeds_mean_as_far_as_all_of_them_go():
    rows = [{"epoch": 1, "seconds": 2.0, "error": 8.0}, {"epoch": 2, "seconds": 3.0, "error": 4.0}]
    by_epoch, by_time = error_curves({"tagi": [{"epochs": rows}, {"epochs": rows[:1]}, {"diverged": "?"}]}).axes
    assert by_epoch.lines[-1].get_xydata().tolist() == [[1, 8]]
    assert by_time.lines[1].get_xydata().tolist() == [[2, 8], [5, 4]]
    unmeasured = [{"epoch": 1, "seconds": 1.0, "error": None}]
    assert error_curves({"tagi": [{"epochs": unmeasured}]}).axes[0].lines[-1].get_xydata().tolist() == []


def test_bins_are_pooled_by_their_counts():
    one = {"count": [0, 10], "confidence": [None, 0.9], "accuracy": [None, 0.8]}
    two = {"count": [4, 30], "confidence": [0.2, 0.7], "accuracy": [0.0, 0.6]}
    assert pooled_bins([one, two]) == [(pytest.approx(0.75), pytest.approx(0.65))]
    diagram, gap = reliability({"adam": [run(1.0), {"diverged": "?"}]}).axes
    assert diagram.lines[1].get_xydata().tolist() == [[0.9, 0.8]]
    assert gap.lines[1].get_ydata()[0] == pytest.approx(-0.1)


def test_a_streams_picture_has_its_course():
    """Within its one epoch: the seeds' mean at each point, over images and over seconds."""

    def course(error):
        return {"epochs": [{"seconds": 8.0, "train_curve": [[10, error], [20, error / 2], [40, error / 4]]}]}

    runs = {"adam-batch1": [course(80.0), course(40.0)], "vogn-batch1": [course(90.0)]}
    by_images, by_time = stream_curves(runs).axes
    lines = {line.get_label(): line for line in by_images.lines[1:]}
    assert lines.keys() == {"adam-batch1"}, "VOGN's networks drawn are not its prediction"
    assert lines["adam-batch1"].get_xydata().tolist() == [[10, 60], [20, 30], [40, 15]]
    assert by_time.lines[1].get_xdata().tolist() == [2, 4, 8]


def test_the_batch_sizes_of_a_stream_share_their_methods_colour():
    names = ["tagi-batch1", "tagi-batch16", "mc-dropout-batch1", "mc-dropout-batch16", "vogn-batch1"]
    found = [colour_of(name) for name in names]
    assert found[0] == found[1] == colour_of("tagi")
    assert found[2] == found[3] == colour_of("mc-dropout")
    assert len(set(found)) == 3
