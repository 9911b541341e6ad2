"""Games from the command line: train, resume after a kill, generate, evaluate, report, results; and refusals."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.runs.folder import Run

QUICK = ("--samples", "48", "--test-samples", "30", "--threads", "1", "--judge", "none")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Each test in an empty folder, without a collection of data and without a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    monkeypatch.delenv("TAGI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("games") / "infogan"
    assert tagi(["train", "infogan-mnist", "--epochs", "1", "--run", str(folder), *QUICK]) == 0
    return folder


@pytest.fixture
def run(played, tmp_path):
    return str(shutil.copytree(played, tmp_path / "run"))


def size(path):
    with Image.open(path) as image:
        return image.size


def test_train_writes_a_page_and_resumes_longer(capsys):
    arguments = ["train", "infogan-mnist", *QUICK, "--set", "joint=no", "--set", "reality_noise_std=2"]
    assert tagi([*arguments, "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    folder = "runs/infogan-mnist-infogan-default-samples48-testsamples30-nojoint-realitynoisestd2.0-seed0"
    assert f"run folder: {folder}" in out
    assert f"report page: {folder}/report.html" in out
    page = Path(f"{folder}/report.html").read_text()
    for title in ("Reference digits", "Code c1 varied", "Code c2 varied", "Over the training", "Configuration"):
        assert title in page
    assert "http://" not in page
    assert tagi([*arguments, "--epochs", "1"]) == 1
    assert "holds a run already" in capsys.readouterr().err
    assert tagi([*arguments, "--resume", "--epochs", "2", "--no-report"]) == 0
    assert "continuing after 1 epochs" in capsys.readouterr().out
    assert [row["epoch"] for row in Run.open(folder).metrics()] == [1, 2]
    assert Run.open(folder).config["joint"] is False


def test_the_plain_gan_and_the_rival_train_too(capsys):
    assert tagi(["train", "gan-mnist", "--epochs", "1", "--run", "g", *QUICK]) == 0
    assert tagi(["train", "infogan-mnist", "--method", "adam", "--epochs", "1", "--run", "a", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "backprop by Adam" in out
    assert tagi(["results", ".", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["task"], row["network"]) for row in rows} == {("gan-mnist", "gan"), ("infogan-mnist", "infogan")}
    assert tagi(["generate", "g"]) == 0
    assert tagi(["generate", "g", "--digit", "3"]) == 1
    assert "no code for digits" in capsys.readouterr().err
    assert tagi(["results", "."]) == 0
    assert "gan-mnist" in capsys.readouterr().out


def test_record_keeps_numbers_and_drawings(run):
    assert tagi(["record", run]) == 0
    (target,) = Path("results").iterdir()
    names = {"config.json", "metrics.jsonl", "filmstrip.png", "samples.png"}
    assert {path.name for path in target.iterdir()} == names
    assert (target / "samples.png").read_bytes() == (Path(run) / "plots/samples/epoch-0001.png").read_bytes()


def test_generate_draws_grids(run, capsys):
    assert tagi(["generate", run, "--digit", "7", "--c1", "-1:1:9", "-o", "seven.png", "--scale", "1"]) == 0
    assert "9 images, 9 a row: seven.png" in capsys.readouterr().out
    assert size("seven.png") == (9 * 30 + 2, 32)
    assert tagi(["generate", run, "--digit", "all", "--c2", "-1:1:3", "-o", "all.png", "--scale", "1"]) == 0
    assert size("all.png") == (3 * 30 + 2, 10 * 30 + 2)
    assert tagi(["generate", run]) == 0
    assert size("generated.png") == (2 * 302, 2 * 302), "ten digits, ten times"
    first = Path("generated.png").read_bytes()
    assert tagi(["generate", run, "--seed", "1"]) == 0
    assert first != Path("generated.png").read_bytes()


def test_digit_means_the_code_that_real_digits_assign(run):
    code = Run.open(run).metrics()[-1]["digit_of_code"].index(7)
    assert tagi(["generate", run, "--digit", "7", "-o", "a.png"]) == 0
    assert tagi(["generate", run, "--category", f"1={code}", "-o", "b.png"]) == 0
    assert Path("a.png").read_bytes() == Path("b.png").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--digit", "12"), "--digit must lie between 0 and 9, got 12"),
        (("--c1", "a:b"), "--c1 must be a number"),
        (("--c1", "-1:1:3", "--c2", "-1:1:3", "--digit", "all"), "at most two things can vary"),
        (("--category", "2=1"), "no category 2"),
        (("--category", "x"), "--category wants K=CLASSES"),
        (("--digit", "1", "--category", "1=2"), "give one of them"),
        (("-o", "x.jpg"), "must end in .png"),
        (("--scale", "99"), "scale must lie"),
        (("--samples", "0"), "samples must be at least 1"),
    ],
)
def test_generate_refuses_in_one_line(run, capsys, arguments, message):
    assert tagi(["generate", run, *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_classifiers_do_not_draw_and_games_do_not_name(run, trained, capsys):
    assert tagi(["generate", str(trained.folder)]) == 1
    assert "is not a GAN" in capsys.readouterr().err
    assert tagi(["predict", run, "digit.png"]) == 1
    assert "is a GAN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("infogan-mnist", "--noise", "1"), "--noise is for classifiers"),
        (("infogan-mnist", "--arch", "cnn"), "--arch is for classifiers"),
        (("mnist", "--set", "joint=1"), "--set wants name=value, got 'joint=1'"),
        (("mnist", "--set", "count_sharing=perhaps"), "--set count_sharing: 'perhaps' is not of kind bool"),
        (("mnist", "--rule", "paper", "--set", "rule=capped"), "both say what rule is"),
        (("mnist", "--norm-first"), "norm first is for networks with norm layers"),
        (("infogan-mnist", "--norm-first"), "--norm-first is for classifiers"),
        (("mnist", "--method", "adam"), "--method is for GANs"),
        (("infogan-mnist", "--set", "joint"), "--set wants name=value"),
        (("infogan-mnist", "--method", "sgd"), "method must be one of"),
        (("infogan-mnist", "--judge", "nowhere"), "there is no run folder nowhere"),
        (("infogan-celeba",), "CelebA is missing"),
        (("infogan-celeba", "--judge", "quick"), "CelebA is missing"),
    ],
)
def test_train_refuses_in_one_line(capsys, arguments, message):
    assert tagi(["train", *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_evaluate_as_json_with_a_judge(run, trained, capsys):
    assert tagi(["evaluate", run, "--json", "--judge", str(trained.folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["judge"] == str(trained.folder)
    assert 0 <= found["read_error"] <= 100
    assert tagi(["evaluate", run, "--judge", run]) == 1
    assert "needs a mnist run" in capsys.readouterr().err
    assert tagi(["report", run]) == 0
    assert "nearest training image" in Path(f"{run}/report.html").read_text()


def test_killed_and_resumed_is_bit_identical(tmp_path):
    command = [
        sys.executable,
        "-m",
        "torchtagi.experiments.cli",
        "train",
        "infogan-mnist",
        "--no-report",
        "--epochs",
        "3",
    ]

    def start(folder, *options):
        return subprocess.Popen(
            [*command, *QUICK, "--run", str(folder), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    whole = start(tmp_path / "whole")
    _, error = whole.communicate(timeout=300)
    assert whole.returncode == 0, error
    folder = tmp_path / "killed"
    process = start(folder)
    deadline = time.monotonic() + 200
    while (
        process.poll() is None and time.monotonic() < deadline and not (folder / "checkpoint.safetensors").is_file()
    ):
        time.sleep(0.01)
    moment = random.uniform(0, 0.8)
    time.sleep(moment)
    process.kill()
    process.communicate()
    process = start(folder, "--resume")
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    names = ("checkpoint.safetensors", "plots/filmstrip.png", "plots/samples/epoch-0003.png")
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), f"{name}, {moment:.3f} s"
    assert not list(folder.rglob(".*")), "no leftovers"


@pytest.mark.skipif("TAGI_DATA" not in os.environ, reason="CelebA is not on this machine")
def test_faces_from_the_real_collection(monkeypatch):
    monkeypatch.setenv("TAGI_DATA", COLLECTION)
    if not os.path.isfile(f"{COLLECTION}/celeba/images.npy"):
        pytest.skip("CelebA is not in TAGI_DATA")
    small = ("--samples", "32", "--test-samples", "20", "--threads", "1", "--epochs", "1")
    assert tagi(["train", "infogan-celeba", "--run", "faces", *small]) == 0
    page = Path("faces/report.html").read_text()
    assert "Category 1<" in page
    assert "Category 10<" in page
    monkeypatch.delenv("TAGI_DATA")
    assert tagi(["generate", "faces", "--category", "3=all", "--samples", "4", "--scale", "1"]) == 0
    assert size("generated.png") == (10 * 34 + 2, 4 * 34 + 2), "without the data"


COLLECTION = os.environ.get("TAGI_DATA", "")
