"""A comparison: its numbers are the runs', it goes on where it stopped, and finished runs are not repeated."""

import itertools
import json
import statistics

import pytest
import torch
from small_studies import compared, study

from torchtagi import checkpoint
from torchtagi.experiments.compare import runner
from torchtagi.experiments.compare.compare import collect
from torchtagi.experiments.compare.study import usual_epochs
from torchtagi.experiments.report.comparison_plots import error_curves
from torchtagi.experiments.runs.folder import Run, RunError, Stopped


def stop_after(count):
    """A watcher that asks for a stop at the event of that number."""
    numbers = itertools.count(1)
    return lambda name, event: next(numbers) == count


def bytes_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("**/checkpoint.safetensors"))}


def refuse(*arguments):
    raise AssertionError("trained again")


def test_the_table_is_the_runs(tmp_path):
    folder = tmp_path / "c"
    found = compared(study(), ["adam", "tagi"], folder, seeds=(0, 1), tuned=False)
    assert [row["entry"] for row in found["rows"]] == ["tagi", "adam"], "TAGI comes first"
    for row in found["rows"]:
        runs = [Run.open(folder / row["entry"] / f"seed{seed}") for seed in (0, 1)]
        last = [run.metrics()[-1] for run in runs]
        assert row["seeds"] == 2
        for name in ("error", "nll", "ece", "brier"):
            assert row[name] == pytest.approx(statistics.fmean(r[name] for r in last), rel=1e-6)
        assert row["error_std"] == pytest.approx(statistics.stdev(r["error"] for r in last), abs=1e-9)
        seconds = [r["seconds"] for run in runs for r in run.metrics()]
        assert row["seconds_per_epoch"] == pytest.approx(statistics.fmean(seconds))
        assert row["ood_auroc"] is None, "the out-of-distribution set is not here"
    assert found["rows"][1]["relative_cost"] == 1.0
    kept = json.loads((folder / "comparison.json").read_text())
    assert kept["runs"]["tagi/seed1"]["epochs"][1]["error"] == Run.open(folder / "tagi/seed1").metrics()[1]["error"]
    configs = [Run.open(folder / place).config for place in ("tagi/seed1", "adam/seed1")]
    assert all((config["samples"], config["batch_size"]) == (48, 16) for config in configs)


def test_stopped_and_continued_is_the_whole_and_nothing_is_repeated(tmp_path, monkeypatch):
    whole, pieces = tmp_path / "whole", tmp_path / "pieces"
    methods, given = ["tagi", "mc-dropout"], {"mc-dropout": {"draws": 2}}
    compared(study(), methods, whole, given=given)
    for stop in (2, 4):
        with pytest.raises(Stopped):
            compared(study(), methods, pieces, given=given, watch=stop_after(stop))
    torch.manual_seed(7)
    compared(study(), methods, pieces, given=given)
    assert bytes_of(pieces) == bytes_of(whole)
    assert len(bytes_of(whole)) == 2
    monkeypatch.setattr(runner, "start_or_resume", refuse)
    again = compared(study(), ["mc-dropout"], pieces)
    assert [row["entry"] for row in again["rows"]] == ["tagi", "mc-dropout"], "earlier methods stay in the table"
    assert collect(pieces) == again
    with pytest.raises(RunError, match=r"has mc-dropout with .*'draws': 2.*, not .*'draws': 3"):
        compared(study(), ["mc-dropout"], pieces, given={"mc-dropout": {"draws": 3}})
    with pytest.raises(RunError, match="has samples 48, not 47; give another --out"):
        compared(study(samples=47), ["tagi"], pieces)


def test_a_run_that_ended_but_was_not_measured_is_measured(tmp_path, monkeypatch):
    folder = tmp_path / "c"
    before = compared(study(epochs=1), ["adam"], folder, tuned=False)
    content = json.loads((folder / "comparison.json").read_text())
    content["runs"] = {}
    (folder / "comparison.json").write_text(json.dumps(content))
    after = compared(study(epochs=1), ["adam"], folder, tuned=False)
    assert after["runs"]["adam/seed0"]["epochs"] == before["runs"]["adam/seed0"]["epochs"]


def test_baselines_take_small_batches_of_few_images_and_see_them_more_often():
    sizes = [study(samples=n).config("adam", 0, 1).batch_size for n in (100, 10_000, 10_001, None)]
    assert sizes == [16, 16, 64, 64]
    epochs = [usual_epochs(n) for n in (1, 100, 300, 301, 1000, 6000, 10_000, None)]
    assert epochs == [100, 100, 100, 100, 30, 5, 5, 5]


def test_epochs_that_were_not_measured_are_timed_and_left_out_of_the_picture(tmp_path):
    found = compared(study(epochs=6, samples=16, test_samples=160), ["adam"], tmp_path / "c", tuned=False)
    epochs = found["runs"]["adam/seed0"]["epochs"]
    assert [row["error"] is None for row in epochs] == [True, False] * 3
    assert all(row["seconds"] > 0 for row in epochs)
    lines = error_curves({"adam": [{"epochs": epochs}]}).axes[0].lines
    assert [list(line.get_xdata()) for line in lines] == [[], [2, 4, 6], [2, 4, 6]]


def test_an_unfinished_epoch_is_saved_on_the_way(tmp_path, monkeypatch):
    monkeypatch.setattr("torchtagi.fitting.SAVE_SECONDS", 0.0)

    class Killed(BaseException):
        pass

    def kill(name, event):
        if event.samples == 48:
            raise Killed
        return False

    with pytest.raises(Killed):
        compared(study(), ["adam"], tmp_path / "c", watch=kill, tuned=False)
    kept = checkpoint.read(Run.open(tmp_path / "c/adam/seed0").checkpoint)[0]["extra"]
    assert (kept["epochs"], kept["fit"]["sums"]["samples"]) == (0, 32)


def test_a_diverged_run_is_told_and_not_repeated(tmp_path, monkeypatch):
    given = {"sgd": {"learning_rate": 1e9}}
    found = compared(study(), ["sgd"], tmp_path / "c", given=given)
    row = found["rows"][0]
    assert (row["diverged"], row["seeds"], row["error"]) == (1, 0, None)
    assert "sgd has diverged" in found["runs"]["sgd/seed0"]["diverged"]
    monkeypatch.setattr(runner, "start_or_resume", refuse)
    assert compared(study(), ["sgd"], tmp_path / "c", given=given) == found


def test_a_stream_has_an_entry_for_each_batch_size():
    stream = study(stream=True, epochs=1)
    assert stream.entries(["tagi", "adam", "adam"]) == [
        "tagi-batch1",
        "tagi-batch16",
        "adam-batch1",
        "adam-batch16",
    ]
    config = stream.config("adam-batch1", 2, 1, {"learning_rate": 0.1})
    assert (config.batch_size, config.epochs, config.seed, config.hyperparameters["learning_rate"]) == (
        1,
        1,
        2,
        0.1,
    )
    assert stream.config("mc-dropout-batch16", 0, 1).batch_size == 16
    assert stream.config("tagi-batch1", 0, 1).batch_size == 1
    with pytest.raises(ValueError, match="seen once"):
        study(stream=True)


def test_names_of_folders_are_short():
    assert study(epochs=5, samples=None).name == "mnist-5ep"
    assert study(epochs=30, samples=1000).name == "mnist-30ep-n1000"
    assert study(epochs=1, stream=True).name == "mnist-stream-n48"
    assert study(task="cifar10", network="3conv-bn", samples=None).name == "cifar10-3conv-bn-2ep"
