"""The code of the guide and of the page on tables runs as written, and does what the text says."""

import re
from pathlib import Path

import pytest
import torch

import torchtagi as tagi

DOCS = Path(__file__).parent.parent / "docs"


def test_code_on_several_processes_runs_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run("distributed.md")
    assert names["model"].epochs == 2
    assert names["own"].weight.learned


def run(page: str) -> dict:
    """The names that the page's blocks leave behind."""
    names: dict = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL), 1):
        exec(compile(block, f"{page} block {number}", "exec"), names)
    return names


def test_the_guides_code_runs_and_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the guide writes files
    names = run("guide.md")
    assert names["scores"]["error"] < 7
    assert [row["epoch"] for row in names["history"]] == [1, 2, 3, 4, 5]
    assert names["history"][-1]["error"] == names["scores"]["error"]
    truth = ["odd" if digit % 2 else "even" for digit in names["y_test"].tolist()]
    for answers in (names["answers"], names["tuned"].predict(names["x_test"]).labels):
        assert sum(a == b for a, b in zip(answers, truth, strict=True)) > 0.85 * len(truth)
    for measured in names["errors"].values():
        assert measured["rmse"] < 65, "targets spread by 77"
        assert measured["coverage_95"] > 0.85
    forecast = names["forecast"]
    assert (forecast.epistemic + forecast.aleatoric - forecast.std.square()).abs().max() < 1
    assert ((names["low"] < forecast.mean) & (forecast.mean < names["high"])).all()
    assert names["sharp"].mean.shape == (92, 2)
    assert (names["blurred"].epistemic > names["sharp"].epistemic).float().mean() > 0.95
    assert names["streamed"]["error"] < 25, "chance is 90"
    assert names["own"].evaluate(names["x_test"], names["y_test"])["error"] < 10
    assert names["features"].evaluate(names["x_test"], names["y_test"])["error"] < 25, "random features"
    assert "the likelihood takes its place" in names["refusal"]
    for before, after in (("model", "again"), ("own", "loaded")):
        assert (names[before].predict(names["x_test"]).probs == names[after].predict(names["x_test"]).probs).all()
    assert len(names["resumed"]) == 2
    assert names["outputs"].mean.shape == (92, 1)
    assert (names["guess"].posterior().var < names["guess"].var).all(), "an observation leaves less uncertainty"
    wrong = names["labels"].predict(names["mixed"](names["x_test"])).labels != names["y_test"]
    assert wrong.float().mean() < 0.12
    assert all(part.learned for part in names["wrapped"].modules() if isinstance(part, tagi.GaussianParameter))


def test_the_code_on_tables_runs_and_learns() -> None:
    state = torch.get_rng_state()
    names = run("tables.md")
    assert names["mean"].shape == names["std"].shape == names["y_test"].shape
    assert 0.8 < names["inside"] < 1
    assert names["draws"].shape == (111, 100)
    assert names["r2"] > 0.25
    assert names["far"] > 2 * names["near"]
    assert names["accuracy"] > 0.93
    assert abs(names["probs"].sum(1) - 1).max() < 1e-9
    assert names["search"].best_score_ > 0.4
    assert (torch.tensor(names["errors"]).square().mean().sqrt() < 65).all(), "targets spread by 77"
    assert names["guess"] == names["label"] == 2
    assert list(names["chances"]) == [0, 1, 2]
    assert names["refusal"] == "X must hold finite numbers, no NaN, no inf, got nan in row 7, column 2"
    assert torch.equal(torch.get_rng_state(), state), "torch's generator is not moved"
