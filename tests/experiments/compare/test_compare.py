"""A comparison: its numbers are the runs', it goes on where it stopped, and finished runs are not repeated."""

import itertools
import json
import statistics

import pytest
import torch
from small_studies import study

from torchtagi.experiments import data
from torchtagi.experiments.compare import Stopped, compare, running, summary
from torchtagi.experiments.compare.compare import collect
from torchtagi.experiments.compare.study import Entry, usual_epochs
from torchtagi.experiments.report.comparison_plots import comparison_figures
from torchtagi.experiments.runs.folder import Run, RunError


def stop_after(count):
    """A watcher that asks for a stop at the event of that number, and one that counts epochs."""
    numbers = itertools.count(1)
    return lambda name, event: next(numbers) == count


def bytes_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("**/checkpoint.safetensors"))}


def test_the_table_is_the_runs(tmp_path):
    found = compare(study(), ["tagi", "adam"], [0, 1], tmp_path / "c", tuned=False)
    assert [row["entry"] for row in found.rows] == ["tagi", "adam"]
    for row in found.rows:
        runs = [Run.open(tmp_path / "c" / row["entry"] / f"seed{seed}") for seed in (0, 1)]
        last = [run.metrics()[-1] for run in runs]
        assert row["seeds"] == 2
        for name in ("error", "nll", "ece", "brier", "auroc_ovr"):
            assert row[name] == pytest.approx(statistics.fmean(r[name] for r in last), rel=1e-6)
        assert row["error_std"] == pytest.approx(statistics.stdev(r["error"] for r in last), abs=1e-9)
        seconds = [r["seconds"] for run in runs for r in run.metrics()]
        assert row["seconds_per_epoch"] == pytest.approx(statistics.fmean(seconds))
        assert row["ood_auroc"] is None, "the foreign set is not here"
    assert found.rows[1]["relative_cost"] == 1.0
    assert found.rows[0]["relative_cost"] > 0
    kept = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert kept["rows"] == json.loads(json.dumps(found.rows))
    assert (
        kept["runs"]["tagi"][1]["epochs"][1]["error"] == Run.open(tmp_path / "c/tagi/seed1").metrics()[1]["error"]
    )
    table = (tmp_path / "c" / "table.md").read_text()
    assert f"{found.rows[0]['error']:.2f} ± {found.rows[0]['error_std']:.2f}" in table
    assert "- adam: batch 16, no changes (defaults)" in table
    configs = [Run.open(tmp_path / "c" / place).config for place in ("tagi/seed1", "adam/seed1")]
    assert all((config["draw_samples"], config["batch_size"]) == (True, 16) for config in configs)


def test_a_long_run_is_not_measured_after_every_epoch(tmp_path):
    asked = study(epochs=11, samples=16, test_samples=20)
    found = compare(asked, ["tagi", "adam"], [0], tmp_path / "c", tuned=False)
    kept = json.loads((tmp_path / "c" / "comparison.json").read_text())["runs"]["adam"][0]["epochs"]
    assert [row["error"] is None for row in kept] == [True, True, False] * 3 + [True, False]
    assert all(row["seconds"] > 0 for row in kept)
    assert [row["error"] for row in found.rows] == [kept_error(found, name) for name in ("tagi", "adam")]
    assert comparison_figures(found.members, stream=False)["error"]("light").axes


def kept_error(found, name):
    return found.members[name][0].rows[-1]["error"]


def test_stopped_and_continued_is_the_whole_and_nothing_is_repeated(tmp_path, monkeypatch):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    hyper = {"mc-dropout": {"draws": 2, "curve_draws": 1}}
    compare(study(), ["tagi", "mc-dropout"], [0], whole, given=hyper)
    for stop in (2, 4):
        with pytest.raises(Stopped):
            compare(study(), ["tagi", "mc-dropout"], [0], pieces, given=hyper, watch=stop_after(stop))
    torch.manual_seed(7)
    compare(study(), ["tagi", "mc-dropout"], [0], pieces, given=hyper)
    assert bytes_of(pieces) == bytes_of(whole)
    assert len(bytes_of(whole)) == 2

    def refuse(*arguments):
        raise AssertionError("trained again")

    monkeypatch.setattr(running, "start_or_resume", refuse)
    again = compare(study(), ["mc-dropout"], [0], pieces)
    assert [row["entry"] for row in again.rows] == ["tagi", "mc-dropout"], "earlier pieces stay in the table"
    assert collect(pieces).rows == again.rows


def test_rivals_take_small_batches_of_few_images_and_see_them_more_often():
    sizes = [study(samples=n).config(Entry("adam"), 0, {}, 1).batch_size for n in (100, 10_000, 10_001, None)]
    assert sizes == [16, 16, 64, 64]
    assert study(samples=None).config(Entry("adam"), 0, {}, 1).draw_samples is False
    assert study(samples=100, stream=True, epochs=1).batch_size(Entry("adam", 1)) == 1
    epochs = [usual_epochs(n) for n in (1, 100, 300, 301, 1000, 6000, 10_000, None)]
    assert epochs == [100, 100, 100, 100, 30, 5, 5, 5]


def test_an_unfinished_epoch_is_saved_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "SAVE_SECONDS", 0.0)

    class Killed(BaseException):
        pass

    def kill(name, event):
        if event.images == 48:
            raise Killed
        return False

    with pytest.raises(Killed):
        compare(study(), ["tagi"], [0], tmp_path / "c", watch=kill)
    position = Run.open(tmp_path / "c/tagi/seed0").read_tensors()[1]
    assert (position["epoch"], position["sums"]["images"]) == (0, 32)


def test_a_summary_is_made_anew_when_the_foreign_set_has_come(tmp_path, monkeypatch):
    folder = tmp_path / "c"
    assert compare(study(), ["adam"], [0], folder, tuned=False).rows[0]["ood_auroc"] is None
    with monkeypatch.context() as still_missing:

        def refuse(*arguments):
            raise AssertionError("nothing new to see: what is known stays")

        still_missing.setattr(summary, "evaluate", refuse)
        assert collect(folder).rows[0]["ood_auroc"] is None
    found = data.load("mnist", "test").subset(slice(20))
    real = data.load

    def load(name, *arguments, **options):
        return found if name == "fashion-mnist" else real(name, *arguments, **options)

    monkeypatch.setattr(data, "load", load)
    assert 0 <= collect(folder).rows[0]["ood_auroc"] <= 1


def test_the_target_may_change_later(tmp_path):
    folder = tmp_path / "c"
    before = compare(study(target_error=0.01), ["adam"], [0], folder, tuned=False)
    assert before.rows[0]["reached_target"] == 0
    after = collect(folder, target_error=99.9)
    assert (after.rows[0]["reached_target"], after.study.target_error) == (1, 99.9)
    assert after.rows[0]["seconds_to_target"] > 0
    assert collect(folder).study.target_error == 99.9
    assert compare(study(target_error=5.0), ["adam"], [0], folder).study.target_error == 5.0


def test_an_older_folder_is_shown_but_not_added_to(tmp_path):
    folder = tmp_path / "c"
    compare(study(), ["tagi"], [0], folder)
    content = json.loads((folder / "study.json").read_text())
    del content["format"]
    (folder / "study.json").write_text(json.dumps(content))
    assert collect(folder).rows[0]["seeds"] == 1
    with pytest.raises(RunError, match="another version"):
        compare(study(), ["tagi"], [0], folder)


def test_a_diverged_run_is_told_and_not_repeated(tmp_path):
    given = {"sgd": {"learning_rate": 1e9}}
    for _ in range(2):
        found = compare(study(), ["sgd"], [0], tmp_path / "c", given=given)
        assert (found.rows[0]["diverged"], found.rows[0]["seeds"], found.rows[0]["error"]) == (1, 0, None)


def test_a_stream_has_an_entry_for_each_batch_size():
    entries = study(stream=True, epochs=1).entries(["tagi", "adam"])
    assert [e.name for e in entries] == ["tagi-batch1", "tagi-batch16", "adam-batch1", "adam-batch16"]
    config = study(stream=True, epochs=1).config(Entry("adam", 1), 2, {"learning_rate": 0.1}, 1)
    assert (config.batch_size, config.epochs, config.seed, config.number("learning_rate")) == (1, 1, 2, 0.1)
    assert study(stream=True, epochs=1).config(Entry("tagi", 1), 0, {}, 1).batch_size == 1
    with pytest.raises(ValueError, match="seen once"):
        study(stream=True)
