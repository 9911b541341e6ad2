"""A comparison: its numbers are the runs', it goes on where it stopped, and finished runs are not repeated."""

import dataclasses
import itertools
import json
import statistics

import pytest
import torch

from torchtagi import data
from torchtagi.baselines.methods import METHODS
from torchtagi.cli.app import run as tagi
from torchtagi.comparison import Stopped, Study, compare, running, speed, summary
from torchtagi.comparison.compare import collect
from torchtagi.comparison.plots import comparison_figures, error_curves, pooled_bins
from torchtagi.comparison.speed import learner_of
from torchtagi.comparison.study import Entry, usual_epochs
from torchtagi.comparison.table import Member, entry_row, markdown, seconds_to
from torchtagi.comparison.tuning import Tuning
from torchtagi.resumable import EpochEnd
from torchtagi.runs import Run, RunError


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    monkeypatch.delenv("TAGI_DATA", raising=False)
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "cache"))


def study(**changes):
    values = {
        "task": "mnist",
        "network": "cnn",
        "epochs": 2,
        "samples": 48,
        "test_samples": 40,
        "stream": False,
        "augment": True,
        "target_error": 50.0,
        "tune_samples": 40,
        "tune_epochs": 1,
    }
    return Study(**{**values, **changes})


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


def test_tuning_tries_the_grid_on_held_out_images_and_is_written_down(tmp_path, monkeypatch):
    grid = ({"learning_rate": 1e-3}, {"learning_rate": 1e-2}, {"learning_rate": 1e9, "schedule": "cosine"})
    monkeypatch.setitem(METHODS, "adam", dataclasses.replace(METHODS["adam"], grid=grid))
    tried = []

    def note(name, event):
        if isinstance(event, EpochEnd):
            tried.append(name)
        return False

    found = compare(study(epochs=1), ["adam", "ensemble"], [0], tmp_path / "c", watch=note)
    entry = found.entries["adam"]
    assert entry["chosen_by"] == "tuning"
    cells = entry["tuning"]["cells"]
    assert [cell["hyperparameters"] for cell in cells] == list(grid)
    runs = [Run.open(p.parent) for p in (tmp_path / "c" / "tuning" / "adam").glob("*/config.json")]
    assert all((run.config["held_out"], run.config["samples"]) == (8, 40) for run in runs)
    for cell in cells:
        folds = [
            r
            for r in runs
            if r.config["hyperparameters"]["learning_rate"] == cell["hyperparameters"]["learning_rate"]
        ]
        assert sorted(run.config["fold"] for run in folds) == [0, 1, 2, 3, 4]
        rows = [row for run in folds for row in run.metrics()[-1:]]
        assert cell["diverged"] == (len(rows) < 5)
        for name in ("error", "nll"):
            assert cell[name] == (
                None if cell["diverged"] else pytest.approx(statistics.fmean(r[name] for r in rows))
            )
    assert cells[2]["diverged"]
    assert entry["hyperparameters"] == min(cells[:2], key=lambda cell: cell["nll"])["hyperparameters"]
    assert entry["tuning"]["judged_by"] == "nll", "eight images say little by their errors"
    assert found.entries["ensemble"]["hyperparameters"] == entry["hyperparameters"], "tuned as Adam"
    assert sum(name.startswith("adam/") for name in tried) <= 16, "the ensemble's tuning repeats nothing"
    assert Run.open(tmp_path / "c/adam/seed0").config["held_out"] == 0


def test_a_second_stage_tries_one_more_hyperparameter_at_the_best_cell(tmp_path, monkeypatch):
    grid = ({"learning_rate": 1e-3}, {"learning_rate": 1e9})
    monkeypatch.setitem(
        METHODS, "sgd", dataclasses.replace(METHODS["sgd"], grid=grid, refined={"momentum": (0.5,)})
    )
    tuning = compare(study(epochs=1), ["sgd"], [0], tmp_path / "c").entries["sgd"]["tuning"]
    assert [cell["hyperparameters"] for cell in tuning["cells"]] == [
        *grid,
        {"learning_rate": 1e-3, "momentum": 0.5},
    ]


def test_an_entry_that_diverges_everywhere_does_not_stop_the_others(tmp_path, monkeypatch):
    grid = ({"learning_rate": 1e9}, {"learning_rate": 1e12})
    monkeypatch.setitem(METHODS, "sgd", dataclasses.replace(METHODS["sgd"], grid=grid))
    folder, said = tmp_path / "c", []
    for _ in range(2):
        found = compare(study(epochs=1), ["sgd", "tagi"], [0], folder, say=said.append)
        assert [(row["entry"], row["seeds"]) for row in found.rows] == [("sgd", 0), ("tagi", 1)]
        assert found.rows[0]["hyperparameters"] is None
    assert any("sgd is left out: it diverged in every cell of its tuning" in line for line in said)
    assert "- sgd: batch 16, no changes (diverged in every cell of its tuning)" in (folder / "table.md").read_text()
    again = compare(study(epochs=1), ["sgd"], [0], folder, given={"sgd": {"learning_rate": 0.01}})
    assert {row["entry"]: row["seeds"] for row in again.rows} == {"sgd": 1, "tagi": 1}


def test_a_choice_at_the_edge_is_told():
    def tuning(best):
        cells = [
            {"hyperparameters": {"a": a, "b": b, "c": "x"}, "error": 0.0 if (a, b) in best else 1.0, "nll": 0.0}
            for a in (1, 2, 3)
            for b in (1, 2)
        ]
        return Tuning(cells)

    assert tuning([(3, 1)]).at_edge == ["a"], "of b only two were tried"
    assert tuning([(2, 1)]).at_edge == []
    tied = tuning([(1, 1), (2, 2)])
    assert (tied.chosen, tied.at_edge) == ({"a": 2, "b": 2, "c": "x"}, []), "as good inside the grid"
    assert tuning([(1, 1), (3, 2)]).at_edge == ["a"]
    stages = [*({"rate": rate} for rate in (1, 2, 3)), *({"rate": 2, "damping": d} for d in (3, 30))]
    cells = [{"hyperparameters": cell, "error": 1.0, "nll": 1.0 - index} for index, cell in enumerate(stages)]
    assert Tuning(cells, defaults={"rate": 2, "damping": 10}).at_edge == ["damping"]
    assert Tuning(cells[:3], defaults={"rate": 2, "damping": 10}).at_edge == ["rate"]


def test_best_cell():
    cells = [
        {"hyperparameters": {"a": 1}, "error": 3.0, "nll": 0.1},
        {"hyperparameters": {"a": 2}, "error": 2.0, "nll": 0.5},
        {"hyperparameters": {"a": 3}, "error": 2.0, "nll": 0.4},
        {"hyperparameters": {"a": 4}, "error": None, "nll": None},
    ]
    assert Tuning(cells).chosen == {"a": 3}
    assert Tuning(cells, judged_by="nll").chosen == {"a": 1}
    lost = Tuning(cells[3:])
    assert (lost.chosen, lost.at_edge, lost.near_chance) == (None, [], False)
    assert not Tuning(cells, chance=90.0).near_chance
    assert Tuning([{"hyperparameters": {}, "error": 85.0, "nll": 2.3}], chance=90.0).near_chance


@pytest.mark.parametrize(
    ("samples", "held_out", "folds", "judge"),
    [
        (100, 20, 5, "nll"),
        (1000, 200, 5, "nll"),
        (1001, 200, 1, "nll"),
        (10_000, 2000, 1, "error"),
        (3, 1, 3, "nll"),
    ],
)
def test_how_few_images_are_tuned_on(samples, held_out, folds, judge):
    asked = study(samples=samples, tune_samples=20_000)
    assert (asked.held_out, asked.folds, asked.judged_by) == (held_out, folds, judge)
    config = asked.tuning_config(Entry("vogn"), {}, 1, fold=folds - 1)
    assert (config.samples, config.held_out, config.draw_samples) == (samples, held_out, True)
    assert (config.count("curve_draws"), config.test_samples) == (10, None)


def test_rivals_take_small_batches_of_few_images_and_see_them_more_often():
    sizes = [study(samples=n).config(Entry("adam"), 0, {}, 1).batch_size for n in (100, 10_000, 10_001, None)]
    assert sizes == [16, 16, 64, 64]
    assert study(samples=None).config(Entry("adam"), 0, {}, 1).draw_samples is False
    assert study(samples=100, stream=True, epochs=1).batch_size(Entry("adam", 1)) == 1
    epochs = [usual_epochs(n) for n in (1, 100, 300, 301, 1000, 6000, 10_000, None)]
    assert epochs == [100, 100, 100, 100, 30, 5, 5, 5]


def test_no_grid_is_larger_than_twelve_cells():
    for method in METHODS.values():
        assert 1 < len(method.grid) + sum(map(len, method.refined.values())) <= 12
        for cell in method.grid:
            method.hyperparameters(cell)


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


def test_the_table_says_how_many_reached_the_target_and_what_was_chosen():
    def member(seed, error):
        scores = dict.fromkeys(("error", "nll", "ece", "brier", "auroc_ovr", "auroc_misclassification"), 0.5)
        measured = {"scores": scores, "out_of_distribution": None, "predict_seconds_per_1000": 1.0}
        return Member(seed, [{"seconds": 7.0, "error": error, "train_error": 3.0}], measured)

    row = entry_row("vogn", [member(0, 1.0), member(1, 9.0), Member(2, [], None, diverged=True)], 2.0, None)
    assert row["train_error"] == 3.0
    assert entry_row("vogn", [member(0, 1.0)], 2.0, None, draws=True)["train_error"] is None
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


def test_seconds_to_an_error():
    rows = [{"seconds": 2.0, "error": 5.0}, {"seconds": 3.0, "error": 2.0}, {"seconds": 3.0, "error": 1.0}]
    assert seconds_to(rows, 2.0) == 5.0
    assert seconds_to(rows, 0.5) is None


def test_test_images_are_measured_at_ten_places_of_a_long_run_and_once_in_tuning():
    few = study(samples=100, epochs=100, tune_epochs=100)
    ours, theirs = (few.config(Entry(method), 0, {}, 1) for method in ("tagi", "adam"))
    assert ours.measure_every == theirs.measure_every == 10
    assert few.tuning_config(Entry("adam"), {}, 1).measure_every == 100
    assert study(epochs=5).config(Entry("tagi"), 0, {}, 1).measure_every == 1
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


SMALL = ("--epochs", "1", "--samples", "32", "--test-samples", "30", "--threads", "1", "--seeds", "1")


def test_the_command(tmp_path, capsys):
    assert tagi(["compare", "mnist", "--methods", "tagi,adam", "--no-tune", "--out", "c", *SMALL]) == 0
    out = capsys.readouterr().out
    assert "adam/seed0: epoch 1" in out
    assert "comparison: c/comparison.json" in out
    assert {p.name for p in (tmp_path / "c" / "plots").iterdir()} == {
        "error.png",
        "reliability.png",
        "risk-coverage.png",
    }
    assert tagi(["compare", "mnist", "--out", "c", "--show", "--json"]) == 0
    assert [row["entry"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["tagi", "adam"]
    assert tagi(["compare", "mnist", "--out", "c", "--show", "--json", "--target", "99"]) == 0
    assert json.loads(capsys.readouterr().out)["study"]["target_error"] == 99
    assert tagi(["results", "c", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["method"], row["setting"].partition("-")[0]) for row in rows] == [
        ("adam", "adam"),
        ("tagi", "default"),
    ]
    assert tagi(["evaluate", "c/adam/seed0"]) == 0
    assert tagi(["compare", "mnist", "--methods", "tagi", "--out", "c", *SMALL, "--samples", "33"]) == 1
    assert "samples 32, not 33" in capsys.readouterr().err


def test_time_is_up(capsys):
    arguments = ["compare", "mnist", "--methods", "tagi", "--no-tune", "--out", "c", *SMALL]
    assert tagi([*arguments, "--minutes", "0"]) == 0
    assert "the same command goes on" in capsys.readouterr().out
    assert tagi(arguments) == 0
    assert len(Run.open("c/tagi/seed0").metrics()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mnist", "--methods", "tagi,adamm"], "there is no method 'adamm'; there are tagi, sgd, adam"),
        (["mnist", "--methods", "adam,adam"], "adam is named twice"),
        (["mnist", "--methods", ","], "at least one method"),
        (["nist"], "'nist'"),
        (["mnist", "--seeds", "0"], "got 0"),
        (["mnist", "--epochs", "0"], "got 0"),
        (["mnist", "--epochs", "2", "--stream"], "--epochs must be 1, got 2"),
        (["mnist", "--set", "adam=3"], "METHOD.NAME=VALUE, got 'adam=3'"),
        (["mnist", "--set", "adam.rate=3"], "no hyperparameter 'rate'"),
        (["mnist", "--set", "sgd.learning_rate=3"], "sgd, which is not compared"),
        (["mnist", "--set", "tagi.noise=3"], "tagi has no hyperparameters"),
        (["mnist", "--arch", "vgg"], "'vgg'"),
        (["mnist", "--out", "full"], "full is not empty and is not a comparison"),
        (["mnist", "--out", "nowhere", "--show"], "nowhere is not a comparison"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    assert tagi(["compare", *arguments]) != 0
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_comparison_is_recorded_without_its_tagi_runs(tmp_path, capsys):
    assert tagi(["compare", "mnist", "--methods", "tagi,adam", "--no-tune", "--out", "c", *SMALL]) == 0
    assert tagi(["record", "c"]) == 0
    kept = {str(p.relative_to(tmp_path / "results")) for p in (tmp_path / "results").glob("**/*") if p.is_file()}
    assert kept == {
        *(
            "c/study.json",
            "c/comparison.json",
            "c/table.md",
            "c/adam/seed0/config.json",
            "c/adam/seed0/metrics.jsonl",
        ),
        *(f"c/plots/{name}.png" for name in ("error", "reliability", "risk-coverage")),
    }
    capsys.readouterr()
    assert tagi(["results", "--json"]) == 0
    assert {row["method"] for row in json.loads(capsys.readouterr().out)} == {"adam"}
