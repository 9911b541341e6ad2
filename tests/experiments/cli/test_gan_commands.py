"""GANs from the command line: train, stop, resume, generate, evaluate, report, results; refusals."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from PIL import Image

from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.cli.progress import interruptible
from torchtagi.experiments.gan.config import open_gan
from torchtagi.experiments.gan.drawing import as_png, sheet
from torchtagi.experiments.gan.request import latent_grid
from torchtagi.experiments.gan.training import GanTraining
from torchtagi.experiments.runs.folder import Run

QUICK = ("--samples", "32", "--test-samples", "20", "--threads", "1", "--judge", "none")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Each test in an empty folder, without a collection of data and without a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    monkeypatch.delenv("TAGI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def infogan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gans") / "infogan"
    assert tagi(["gan", "infogan-mnist", "--epochs", "1", "--out", str(folder), *QUICK]) == 0
    return folder


@pytest.fixture
def run(infogan, tmp_path):
    return str(shutil.copytree(infogan, tmp_path / "run"))


def size(path):
    with Image.open(path) as image:
        return image.size


def test_gan_writes_a_page_and_resumes_longer(capsys):
    arguments = ["gan", "infogan-mnist", *QUICK, "--batch-size", "8"]
    assert tagi([*arguments, "--epochs", "1"]) == 0
    out = capsys.readouterr().out
    folder = "runs/infogan-mnist-infogan-default-batch8-samples32-test20-seed0"
    assert f"run folder: {folder}" in out
    assert f"report page: {folder}/report.html" in out
    assert Path(f"{folder}/plots/samples/epoch-0001.png").is_file()
    page = Path(f"{folder}/report.html").read_text()
    for title in ("Reference digits", "Code c1 varied", "Code c2 varied", "Over the training", "Configuration"):
        assert title in page
    assert "http://" not in page
    assert tagi([*arguments, "--epochs", "1"]) == 1
    assert "holds a run already" in capsys.readouterr().err
    assert tagi([*arguments, "--resume", "--epochs", "2", "--no-report"]) == 0
    assert "continuing after 1 epoch and 0 batches" in capsys.readouterr().out
    assert [row["epoch"] for row in Run.open(folder).metrics()] == [1, 2]
    assert Run.open(folder).config["batch_size"] == 8


def test_the_plain_gan_and_the_baseline_train_too(capsys):
    assert tagi(["gan", "gan-mnist", "--epochs", "1", "--out", "g", *QUICK]) == 0
    assert tagi(["gan", "infogan-mnist", "--method", "adam", "--epochs", "1", "--out", "a", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "infogan-mnist · infogan · adam-samples32" in out
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
    assert tagi(["generate", run, "--digit", "7", "--c1", "-1:1:9", "-o", "seven.png"]) == 0
    assert "9 images, 9 a row: seven.png" in capsys.readouterr().out
    assert size("seven.png") == (2 * (9 * 30 + 2), 2 * 32)
    assert tagi(["generate", run, "--digit", "all", "--c2", "-1:1:3", "-o", "all.png"]) == 0
    assert size("all.png") == (2 * (3 * 30 + 2), 2 * (10 * 30 + 2))
    assert tagi(["generate", run]) == 0
    assert size("generated.png") == (2 * 302, 2 * 302), "ten digits, ten times"
    first = Path("generated.png").read_bytes()
    assert tagi(["generate", run, "--seed", "1"]) == 0
    assert first != Path("generated.png").read_bytes()


def test_a_digit_needs_measured_codes(run, capsys):
    path = Path(run) / "metrics.jsonl"
    for codes in ("null", "[1, 2]", "7"):
        path.write_text(f'{{"epoch": 1, "digit_of_code": {codes}}}\n')
        assert tagi(["generate", run, "--digit", "7"]) == 1
        assert "has not measured which code is which digit" in capsys.readouterr().err


def test_digit_means_the_code_that_real_digits_assign(run):
    code = Run.open(run).metrics()[-1]["digit_of_code"].index(7)
    assert tagi(["generate", run, "--digit", "7", "-o", "a.png"]) == 0
    gan, pixels = open_gan(Run.open(run))
    latents, columns = latent_grid(gan.space, {}, {0: [code]}, samples=10)
    assert Path("a.png").read_bytes() == as_png(sheet(pixels.to_uint8(gan.draw(latents)), columns))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--digit", "12"), "--digit must lie between 0 and 9, got 12"),
        (("--c1", "a:b"), "--c1 must be a number"),
        (("--c1", "-1:1:3", "--c2", "-1:1:3", "--digit", "all"), "at most two things can vary"),
        (("-o", "x.jpg"), "must end in .png"),
        (("--samples", "0"), "must be at least 1, got 0"),
    ],
)
def test_generate_refuses_in_one_line(run, capsys, arguments, message):
    assert tagi(["generate", run, *arguments]) != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_classifiers_do_not_draw_and_gans_do_not_classify(run, trained, capsys):
    assert tagi(["generate", str(trained.folder)]) == 1
    assert "is not a GAN" in capsys.readouterr().err
    assert tagi(["predict", run, "digit.png"]) == 1
    assert "is a GAN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "infogan-mnist"), "infogan-mnist is a GAN: tagi gan infogan-mnist"),
        (("gan", "mnist"), "there is no GAN 'mnist'"),
        (("gan", "infogan-mnist", "--method", "sgd"), "method must be one of"),
        (("gan", "infogan-mnist", "--method", "adam", "--paper"), "go with method tagi"),
        (("gan", "infogan-mnist", "--judge", "nowhere"), "there is no run folder nowhere"),
        (("gan", "infogan-mnist", "--resume", "--overwrite"), "give one of them"),
        (("gan", "infogan-mnist", "--epochs", "few"), "'few' is not a whole number"),
        (("gan", "infogan-mnist", "--out", ""), "the folder's name is empty"),
        (
            ("gan", "gan-mnist", "--out", "run", "--resume"),
            "started with task infogan-mnist, not gan-mnist",
        ),
        (("gan", "infogan-mnist", "--out", "run", "--resume", "--paper"), "was started without --paper"),
        (("gan", "infogan-mnist", "--judge", "run"), "the judge here needs a mnist run"),
        (("gan", "infogan-celeba"), "CelebA is missing"),
    ],
)
def test_train_and_gan_refuse_in_one_line(run, capsys, arguments, message):
    assert tagi(list(arguments)) != 0
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list(Path().glob("runs/[!.]*")), "nothing is left behind but a lock"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_of_an_epoch_keeps_the_place(number, monkeypatch, capsys):
    learn = GanTraining.learn

    def interrupted(training, x, y):
        if training.sums.batches == 1:
            signal.raise_signal(number)
        return learn(training, x, y)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(GanTraining, "learn", interrupted)
        command = ["gan", "gan-mnist", "--method", "adam", "--out", "g", "--epochs", "1", "--batch-size", "8"]
        assert tagi([*command, *QUICK]) == 128 + number
    assert signal.getsignal(number) == before
    out = capsys.readouterr().out
    assert "after 0 epochs and 2 batches; the checkpoint is written" in out
    assert "tagi gan gan-mnist --out g --resume" in out
    assert Run.open("g").metrics() == []
    assert tagi(["gan", "gan-mnist", "--out", "g", "--resume", "--no-report"]) == 0
    assert "continuing after 0 epochs and 2 batches" in capsys.readouterr().out
    assert len(Run.open("g").metrics()) == 1


def test_a_hangup_that_is_ignored_stays_so():
    """Under nohup the run goes on when its terminal is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as received:
            signal.raise_signal(signal.SIGHUP)
            assert not received
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_help_is_short_and_its_own(capsys):
    assert tagi(["gan", "--help"]) == 0
    own = capsys.readouterr().out
    assert "--judge" in own
    assert "--arch" not in own
    assert tagi(["train", "--help"]) == 0
    assert "GAN" not in capsys.readouterr().out


def test_evaluate_as_json_with_a_judge(run, trained, capsys):
    assert tagi(["evaluate", run, "--json", "--judge", str(trained.folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["judge"] == str(trained.folder)
    assert 0 <= found["read_error"] <= 100
    assert tagi(["evaluate", run, "--judge", run]) == 1
    assert "the judge here needs a mnist run" in capsys.readouterr().err
    assert tagi(["report", run]) == 0
    assert "nearest training image" in Path(f"{run}/report.html").read_text()


@pytest.mark.skipif("TAGI_DATA" not in os.environ, reason="CelebA is not on this machine")
def test_faces_from_the_real_collection(monkeypatch):
    monkeypatch.setenv("TAGI_DATA", COLLECTION)
    if not os.path.isfile(f"{COLLECTION}/celeba/images.npy"):
        pytest.skip("CelebA is not in TAGI_DATA")
    small = ("--samples", "32", "--test-samples", "20", "--threads", "1", "--epochs", "1")
    assert tagi(["gan", "infogan-celeba", "--out", "faces", *small]) == 0
    page = Path("faces/report.html").read_text()
    assert "Category 1<" in page
    assert "Category 10<" in page
    monkeypatch.delenv("TAGI_DATA")
    assert tagi(["generate", "faces", "--samples", "4"]) == 0
    assert size("generated.png") == (2 * (10 * 34 + 2), 2 * (4 * 34 + 2)), "without the data"


COLLECTION = os.environ.get("TAGI_DATA", "")
