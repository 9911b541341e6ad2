"""Streams: what they are, that nothing looks ahead, what is measured, and `tagi stream`."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from torchtagi.experiments import jobs
from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.jobs import read_rows
from torchtagi.experiments.stream import runner
from torchtagi.experiments.stream.learners import LEARNERS, TUNED_ON, Learner, Linear, Tuned, new_learner
from torchtagi.experiments.stream.runner import (
    FIRST_SCORED,
    IDENTITY,
    RESULTS,
    StreamJob,
    curve_of,
    drift,
    load_stream,
)
from torchtagi.experiments.stream.table import figure, tables


@pytest.fixture(autouse=True)
def collection(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    monkeypatch.setenv("TAGI_DATA", str(tmp_path / "sets"))
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "cache"))
    (tmp_path / "sets" / "uci").mkdir(parents=True)
    columns = {"index_features": np.array([0, 2]), "index_target": np.array([1])}
    np.savez(tmp_path / "sets" / "uci" / "power-plant.npz", data=np.arange(300.0).reshape(100, 3), **columns)


@pytest.fixture
def here(monkeypatch):
    """Jobs are measured in this process; returns the names of those that were."""
    measured = []

    def in_turn(jobs, count, stopped):
        for job in jobs:
            measured.append(job.name)
            yield job.measure()

    monkeypatch.setattr(jobs, "in_processes", in_turn)
    return measured


# ---- streams ------------------------------------------------------------------------------------------------


def test_real_rows_come_in_the_order_of_the_file():
    x, y = load_stream("power", 4, seed=7)
    assert x.tolist() == [[0, 2], [3, 5], [6, 8], [9, 11]]
    assert y.tolist() == [1, 4, 7, 10]
    assert len(load_stream("power", 1000, seed=0)[0]) == 100


def test_a_drift_is_another_one_for_each_seed_and_begins_as_the_other_kind_does():
    x, y = drift(True, 90, 0)
    again, slow, other = drift(True, 90, 0), drift(False, 90, 0), drift(True, 90, 1)
    assert torch.equal(again[0], x)
    assert torch.equal(again[1], y)
    assert torch.equal(slow[0], x)
    assert slow[1][0] == y[0]
    assert not torch.equal(other[1], y)


def linear_error(x, y, first, second):
    """RMSE in some rows of the plane that fits other rows best."""
    rows = torch.cat([x, torch.ones(len(x), 1)], 1)
    plane = torch.linalg.lstsq(rows[first], y[first][:, None]).solution[:, 0]
    return float((y[second] - rows[second] @ plane).square().mean().sqrt())


def test_an_abrupt_world_stands_still_but_for_two_jumps_and_a_slow_one_goes_and_comes_back():
    x, y = drift(True, 6000, 3)
    even = [slice(1000 * part, 1000 * (part + 1)) for part in range(6)]
    within = linear_error(x, y, even[0], even[1])
    assert linear_error(x, y, even[1], even[2]) > 2 * within
    assert linear_error(x, y, even[3], even[4]) > 2 * within
    x, y = drift(False, 6000, 3)
    errors = [linear_error(x, y, even[0], even[part]) for part in range(6)]
    assert min(errors[2:4]) > 1.5 * max(errors[0], errors[5])


# ---- learners -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", LEARNERS)
def test_nothing_looks_ahead(method, monkeypatch):
    """What is said of a row is the same, whatever its target and all that comes after it."""
    if method == "linear":
        pytest.importorskip("sklearn")
    x, y = drift(True, 30, 0)

    def predictions(y):
        np.random.seed(0)  # noqa: NPY002 - scikit-learn draws from it
        torch.manual_seed(0)
        learner, found = new_learner(method, x.shape[1], LEARNERS[method]), []
        for row in range(30):
            found.append(learner.predict(x[row : row + 1]))
            learner.learn(x[row : row + 1], y[row : row + 1])
        return found

    changed = torch.where(torch.arange(30) < 20, y, -3 * y)
    first, second = predictions(y), predictions(changed)
    assert first[:21] == second[:21]
    assert first[21:] != second[21:]
    assert all(math.isfinite(mean) and var > 0 for mean, var in first)


@pytest.mark.parametrize("method", LEARNERS)
def test_a_plane_is_learned_with_its_noise(method):
    if method == "linear":
        pytest.importorskip("sklearn")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 2, generator=generator) * torch.tensor([10.0, 0.1])
    y = 50 + x[:, 0] - 100 * x[:, 1] + 2 * torch.randn(300, generator=generator)
    torch.manual_seed(0)
    learner, squares, variances = new_learner(method, 2, LEARNERS[method]), [], []
    for row in range(300):
        mean, var = learner.predict(x[row : row + 1])
        squares.append((mean - float(y[row])) ** 2)
        variances.append(var)
        learner.learn(x[row : row + 1], y[row : row + 1])
    late = slice(200, None)
    assert np.mean(squares[late]) < 20, "their noise is 4"
    assert 0.4 < np.mean(variances[late]) / np.mean(squares[late]) < 8, "the first errors are remembered"


class Fixed(Learner):
    def __init__(self, value):
        self.value, self.learned = value, 0

    def predict(self, x):
        return self.value, 1.0

    def learn(self, x, y):
        self.learned += 1


def test_tuning_ends_with_the_learner_that_has_erred_least():
    learners = [Fixed(3.0), Fixed(0.9), Fixed(math.nan)]
    tuned, x, y = Tuned(learners), torch.zeros(1, 1), torch.ones(1)
    for _ in range(TUNED_ON):
        tuned.learn(x, y)
    assert tuned.predict(x) == (0.9, 1.0)
    for _ in range(5):
        tuned.learn(x, y)
    assert [learner.learned for learner in learners] == [TUNED_ON, TUNED_ON + 5, TUNED_ON]


def test_the_running_noise_is_the_mean_square_of_the_errors():
    pytest.importorskip("sklearn")

    class Nothing(Linear):
        def value(self, x):
            return 0.0

    learner = Nothing(1, rate=0.1)
    learner.scale_of_x.settled = learner.scale_of_y.settled = True
    for value in (1.0, 2.0, 3.0):
        learner.learn(torch.zeros(1, 1), torch.tensor([value]))
    assert learner.noise_var == pytest.approx((1 + 1 + 4 + 9) / 4), "the first guess, 1, counts for one"


# ---- what is measured ---------------------------------------------------------------------------------------


def test_scores_are_those_before_learning(monkeypatch):
    class Last(Learner):
        """Says the last target."""

        seen = 0.0

        def predict(self, x):
            return self.seen, 4.0

        def learn(self, x, y):
            self.seen = float(y)

    monkeypatch.setattr(runner, "new_learner", lambda name, features, setting: Last())
    row = StreamJob("power", "tagi", 0, 100, None).measure()
    assert row["rmse"] == pytest.approx(3.0), "targets are 3 apart"
    assert row["log_likelihood"] == pytest.approx(-0.5 * math.log(2 * math.pi * 4) - 9 / 8)
    assert row["curve"][-1][0] == 100
    assert {tuple(point[1:]) for point in row["curve"]} == {(3.0, round(row["log_likelihood"], 4))}


def test_a_curve_has_the_scores_of_its_parts():
    squares = [1.0] * 40 + [4.0] * 60
    curve = curve_of(squares, [-value for value in squares])
    assert len(curve) == 50
    assert curve[0] == [FIRST_SCORED + 2, 1.0, -1.0]
    assert curve[-1] == [FIRST_SCORED + 100, 2.0, -4.0]


def test_the_command_goes_on_and_shows(here, capsys, tmp_path):
    command = ["stream", "--rows", "55", "--out", "s", "--methods", "tagi,sgd"]
    assert tagi([*command, "slow", "--seeds", "1"]) == 0
    assert here == ["slow, tagi, seed 0", "slow, sgd, seed 0"]
    assert tagi([*command, "power", "slow", "slow", "--seeds", "2"]) == 0
    assert len(here) == len({*here}) == 8
    out = capsys.readouterr().out
    assert "log-likelihood" in out
    assert out.rstrip().endswith("streams: s/streams.jsonl")
    assert (tmp_path / "s" / "stream.png").read_bytes().startswith(b"\x89PNG")
    assert tagi(["stream", "--show", "--json", "--out", "s"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["stream"], row["method"], row["seed"]) for row in rows} == {
        (stream, method, seed) for stream in ("power", "slow") for method in ("tagi", "sgd") for seed in (0, 1)
    }
    assert tagi(["stream", "--show", "--out", "s"]) == 0
    assert len(here) == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fast"], "no stream 'fast'; there are power, kin8nm, abrupt, slow"),
        (["slow", "--methods", "tagi-atuo"], "did you mean tagi-auto?"),
        (["slow", "--methods", ","], "name at least one method; there are tagi"),
        (["slow", "--rows", "50"], "rows must be more than 50, which are not scored, got 50"),
        (["kin8nm"], "UCI set kin8nm is missing"),
        (["--show"], "runs/stream has no streams.jsonl: nothing is finished there"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message, here, capsys, tmp_path):
    assert tagi(["stream", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not here


def test_a_broken_file_is_named(here, capsys, tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / RESULTS).write_text('{"stream": "slow"}\n')
    for option in ([], ["--show"]):
        assert tagi(["stream", "slow", "--rows", "60", "--out", "s", *option]) == 1
        assert "s/streams.jsonl cannot be read" in capsys.readouterr().err


# ---- the table ----------------------------------------------------------------------------------------------


def row(stream, method, seed, rmse, log_likelihood, seconds=0.6):
    curve = [[100, rmse, log_likelihood], [200, rmse, log_likelihood]]
    scores = {"rmse": rmse, "log_likelihood": log_likelihood, "seconds": seconds}
    return {"stream": stream, "method": method, "seed": seed, "rows": 200, "curve": curve, **scores}


def test_the_table_has_means_over_seeds_with_the_best_of_each_stream():
    rows = [
        *(row("slow", "tagi", 0, 0.25, -0.5), row("slow", "tagi", 1, 0.75, -1.5)),
        *(row("slow", "adam", 0, 0.4, -2.0), row("power", "adam", 0, 4.0, -3.0)),
    ]
    error, likelihood = tables(rows)
    assert error.markdown()[2:] == ["| tagi | – | 0.500 |", "| adam | 4.00 | **0.400** |"]
    assert likelihood.markdown()[2:] == ["| tagi | – | **−1.00** |", "| adam | −3.00 | −2.00 |"]
    assert error.heads == ["method", "power", "slow"]
    assert len(figure(rows).axes) == 4


def test_the_page_of_streams_has_the_recorded_tables():
    root = Path(__file__).parents[3]
    text = (root / "docs" / "streams.md").read_text()
    for table in tables(read_rows(root / "results" / "stream" / RESULTS, IDENTITY)):
        assert "\n".join(table.markdown()) in text, table.title
