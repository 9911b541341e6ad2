"""A comparison's numbers and pictures, from its runs' rows."""

import pytest
from small_studies import study

from torchtagi.experiments.compare import speed
from torchtagi.experiments.compare.speed import learner_of
from torchtagi.experiments.compare.study import Entry
from torchtagi.experiments.compare.table import Member, entry_row, markdown, seconds_to
from torchtagi.experiments.report.comparison_plots import colours, comparison_figures, error_curves, pooled_bins


def test_the_table_says_how_many_reached_the_target_and_what_was_chosen():
    def member(seed, error):
        scores = dict.fromkeys(("error", "nll", "ece", "brier", "auroc_ovr", "auroc_misclassification"), 0.5)
        measured = {"scores": scores, "out_of_distribution": None, "predict_seconds_per_1000": 1.0}
        return Member(seed, [{"seconds": 7.0, "error": error, "train_error": 3.0}], measured)

    row = entry_row("vogn", [member(0, 1.0), member(1, 9.0), Member(2, [], None, diverged=True)], 2.0, None)
    assert row["train_error"] == 3.0
    assert entry_row("vogn", [member(0, 1.0)], 2.0, None, drawn=True)["train_error"] is None
    row |= {"batch_size": 64, "hyperparameters": {"learning_rate": 0.1}, "chosen_by": "tuning"}
    text = markdown([{**row, "at_edge": ["learning_rate"], "near_chance": True}], 2.0)
    assert "| vogn | 2 | 1 |" in text
    assert "| 7 (1 of 2 seeds) |" in text
    chosen = "batch 64, learning_rate 0.1 (tuning, learning_rate at the grid's edge, the best cell is near chance)"
    assert f"- vogn: {chosen}" in text


def test_timing_holds_few_images_and_knows_how_many_there_are(digits, monkeypatch):
    seen = []

    def note(config, few, images):
        seen.append((len(few), images))
        return learner_of(config, few, images)

    monkeypatch.setattr(speed, "learner_of", note)
    monkeypatch.setattr(speed, "IMAGES", 32)
    asked = study(samples=None)
    configs = {name: asked.config(Entry(name), 0, {}, 1) for name in ("tagi", "ivon")}
    found = speed.seconds_per_image(configs, digits.train)
    assert seen == [(32, 60_000)] * 2
    assert all(0 < found[name] < 1 for name in configs)
    assert learner_of(configs["ivon"], digits.train.subset(slice(8)), 60_000).images == 60_000
    cut = study(samples=48).config(Entry("ivon"), 0, {}, 1)
    assert learner_of(cut, digits.train.subset(slice(8)), 60_000).images == 48


def test_seconds_to_an_error():
    rows = [{"seconds": 2.0, "error": 5.0}, {"seconds": 3.0, "error": 2.0}, {"seconds": 3.0, "error": 1.0}]
    assert seconds_to(rows, 2.0) == 5.0
    assert seconds_to(rows, 0.5) is None


def test_test_images_are_measured_at_ten_places_of_a_long_run_five_with_few_images_and_once_in_tuning():
    few = study(samples=100, epochs=100, tune_epochs=100)
    ours, theirs = (few.config(Entry(method), 0, {}, 1) for method in ("tagi", "adam"))
    assert ours.measure_every == theirs.measure_every == 20
    assert few.tuning_config(Entry("adam"), {}, 1).measure_every == 100
    assert study(epochs=5).config(Entry("tagi"), 0, {}, 1).measure_every == 1
    assert study(epochs=100, samples=None).config(Entry("tagi"), 0, {}, 1).measure_every == 10
    rows = [{"seconds": 1.0}, {"seconds": 1.0, "error": 3.0}, {"seconds": 1.0}, {"seconds": 1.0, "error": 1.0}]
    assert seconds_to(rows, 2.0) == 4.0
    lines = error_curves({"tagi": [Member(0, [{"epoch": i, **row} for i, row in enumerate(rows, 1)], None)]}).axes
    assert [line.get_xdata().tolist() for line in lines[0].lines] == [[2, 4], [2, 4]]
    assert error_curves({"tagi": [Member(0, [{"epoch": 1, "seconds": 1.0}], None)]}).axes


def test_a_value_no_seed_has_stays_empty():
    row = entry_row("x", [Member(0, [], None, diverged=True)], 2.0, None)
    assert row["error"] is None
    assert row["seeds"] == 0
    assert row["diverged"] == 1


def test_bins_are_pooled_by_their_counts():
    one = {"count": [0, 10], "confidence": [None, 0.9], "accuracy": [None, 0.8]}
    two = {"count": [4, 30], "confidence": [0.2, 0.7], "accuracy": [0.0, 0.6]}
    assert pooled_bins([one, two]) == [(pytest.approx(0.75), pytest.approx(0.65))]


def test_a_streams_picture_has_its_course():
    """Within its one epoch: the seeds' mean at each point, over images and over seconds."""

    def member(seed, error):
        return Member(
            seed, [{"seconds": 8.0, "train_curve": [[10, error], [20, error / 2], [40, error / 4]]}], None
        )

    members = {"adam-batch1": [member(0, 80.0), member(1, 40.0)], "vogn-batch1": [member(0, 90.0)]}
    by_images, by_time = comparison_figures(members, stream=True)["error"]("light").axes
    adam, vogn = by_images.lines
    assert adam.get_xydata().tolist() == [[10, 60], [20, 30], [40, 15]]
    assert by_time.lines[0].get_xdata().tolist() == [2, 4, 8]
    assert (adam.get_label(), vogn.get_label()) == ("adam-batch1", "vogn-batch1 (as drawn)")


def test_the_batch_sizes_of_a_stream_share_their_methods_colour():
    found = colours(["tagi-batch1", "tagi-batch16", "adam-batch1", "adam-batch16", "vogn-batch1"], "light")
    assert found["tagi-batch1"] == found["tagi-batch16"]
    assert found["adam-batch1"] == found["adam-batch16"]
    assert len(set(found.values())) == 3
