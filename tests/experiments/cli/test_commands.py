"""The commands: what they print, write and refuse. Every failure is one line and an exit code."""

import importlib.util
import itertools
import json
import shutil
import signal

import numpy as np
import pytest
from PIL import Image

import torchtagi_command
from torchtagi.classifier import Classifier
from torchtagi.experiments import data
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.cli import train as train_command
from torchtagi.experiments.cli.app import run as tagi
from torchtagi.experiments.runs.folder import Run

OUT = "--out"
QUICK = ("--samples", "64", "--test-samples", "100", "--threads", "1")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Each test in an empty folder, without a collection of data and without a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    monkeypatch.delenv("TAGI_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))


@pytest.fixture
def run(trained, tmp_path):
    return Run.open(shutil.copytree(trained.folder, tmp_path / "run"))


def test_train_reports_and_resumes_longer(capsys):
    assert tagi(["train", "mnist", "--epochs", "1", *QUICK]) == 0
    out = capsys.readouterr().out
    folder = "runs/mnist-cnn-default-samples64-test100-seed0"
    assert f"run folder: {folder}" in out
    assert "1.88 %" in out
    assert "0.64 %" in out
    assert f"report page: {folder}/report.html" in out
    assert Run.open(folder).config["threads"] == 1
    assert tagi(["train", "mnist", *QUICK]) == 1
    assert "holds a run already" in capsys.readouterr().err
    assert tagi(["train", "mnist", "--resume", "--epochs", "2", "--no-report", *QUICK]) == 0
    assert "continuing after 1 epoch and 0 batches" in capsys.readouterr().out
    assert [row["epoch"] for row in Run.open(folder).metrics()] == [1, 2]
    assert tagi(["train", "mnist", "--overwrite", "--epochs", "1", "--no-report", *QUICK]) == 0
    assert [row["epoch"] for row in Run.open(folder).metrics()] == [1]


def test_paper_flag_and_options_reach_the_configuration(monkeypatch):
    seen = []

    class Caught(Exception):
        pass

    monkeypatch.setattr(data, "load_train_test", lambda task: None)
    monkeypatch.setenv("TAGI_DEBUG", "1")

    def catch(config, run=None, sets=None):
        seen.append(config)
        raise Caught

    monkeypatch.setattr(train_command, "Training", catch)
    with pytest.raises(Caught):
        tagi(["train", "mnist", "--paper", "--threads", "1"])
    assert seen[0] == configure("mnist", paper=True, threads=1)
    options = ["--batch-size", "8", "--epochs", "4", "--samples", "64", "--test-samples", "20"]
    options += ["--seed", "7", "--threads", "2", "--device", "cpu", "--precision", "bfloat16", OUT, "x"]
    with pytest.raises(Caught):
        tagi(["train", "mnist", *options])
    sizes = {"batch_size": 8, "epochs": 4, "samples": 64, "test_samples": 20}
    assert seen[1] == configure("mnist", seed=7, threads=2, precision="bfloat16", **sizes)
    with pytest.raises(Caught):
        tagi(["train", "cifar10", "--arch", "3conv-bn"])
    assert seen[2].network == "3conv-bn"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_of_an_epoch_keeps_the_place(number, monkeypatch, capsys):
    learn, batches = Classifier.learn, itertools.count()

    def interrupted(model, x, y):
        if next(batches) == 2:
            signal.raise_signal(number)
        return learn(model, x, y)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "learn", interrupted)
        assert tagi(["train", "mnist", OUT, "r", "--epochs", "1", *QUICK]) == 128 + number
    assert signal.getsignal(number) == before
    out = capsys.readouterr().out
    assert "after 0 epochs and 3 batches; the checkpoint is written" in out
    assert f"tagi train mnist {OUT} r --resume" in out
    assert Run.open("r").metrics() == []
    assert tagi(["train", "mnist", OUT, "r", "--resume", "--no-report"]) == 0
    assert "continuing after 0 epochs and 3 batches" in capsys.readouterr().out
    assert len(Run.open("r").metrics()) == 1


def test_evaluate(run, capsys):
    assert tagi(["evaluate", str(run.folder)]) == 0
    out = capsys.readouterr().out
    assert f"{run.metrics()[-1]['error']:.2f} %" in out
    assert "out-of-distribution detection skipped" in out
    assert tagi(["evaluate", str(run.folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["error"] == pytest.approx(run.metrics()[-1]["error"])
    assert np.array(found["confusion"]).sum() == found["images"] == 300


def test_predict(run, digits, tmp_path, capsys):
    seven = digits.test.to_uint8(digits.test.images[:1])[0, 0].numpy()
    Image.fromarray(255 - seven).resize((280, 280)).save(tmp_path / "seven.png")
    Image.fromarray(seven).save(tmp_path / "plain.png")
    assert tagi(["evaluate", str(run.folder)]) == 0
    capsys.readouterr()
    assert tagi(["predict", str(run.folder), "seven.png"]) == 0
    out = capsys.readouterr().out
    assert "inverted it" in out
    assert "280 × 280" in out
    assert "answer: 7" in out
    assert "% of the test digits" in out
    assert tagi(["predict", str(run.folder), "seven.png", "plain.png", "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert [answer["file"] for answer in answers] == ["seven.png", "plain.png"]
    for answer in answers:
        assert sum(value["probability"] for value in answer["classes"].values()) == pytest.approx(1, abs=1e-5)
        for value in answer["classes"].values():
            p = value["probability"]
            assert value["epistemic"] + value["aleatoric"] == pytest.approx(p * (1 - p), abs=1e-6)


def test_record_and_results(run, capsys):
    assert tagi(["record", str(run.folder)]) == 0
    capsys.readouterr()
    assert tagi(["results", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["epoch"] for row in rows] == [1, 2]
    for row, measured in zip(rows, run.metrics(), strict=True):
        assert (row["task"], row["network"], row["seed"]) == ("mnist", "cnn", 0)
        assert row["setting"] == "default-samples480-test300"
        assert (row["error"], row["nll"], row["ece"]) == (measured["error"], measured["nll"], measured["ece"])
    assert tagi(["results"]) == 0
    out = capsys.readouterr().out
    assert f"{run.metrics()[-1]['error']:.2f}" in out
    assert "1.88" in out


def test_results_of_other_kinds_of_run(tmp_path, capsys):
    """A recorded run need not be a classifier's."""
    other = Run.create("results/gan", {"task": "mnist", "network": "infogan", "setting": "paper", "seed": 0})
    other.add_metrics({"epoch": 1, "diversity": 0.5})
    assert tagi(["results"]) == 0
    assert "infogan" in capsys.readouterr().out


FAILURES = [
    (["train", "cifar10"], "cifar-10-binary.tar.gz is missing and could not be downloaded"),
    (["evaluate", "nowhere"], "no run folder nowhere"),
    (["report", "nowhere"], "no run folder nowhere"),
    (["predict", "nowhere", "x.png"], "no run folder nowhere"),
    (["predict", "run", "text.png"], "text.png is not an image file"),
    (["predict", "run", "none.png"], "there is no file none.png"),
    (["evaluate", "corrupt"], "corrupt/checkpoint.safetensors"),
    (["train", "mnist", OUT, "corrupt", "--resume"], "corrupt/checkpoint.safetensors"),
    (["evaluate", "garbled"], "garbled/config.json is not JSON"),
    (["train", "mnist", "--epochs", "-1"], "got -1"),
    (["train", "mnist", "--epochs", "few"], "'few' is not a whole number"),
    (["train", "mnist", "--device", "abacus"], "'abacus'"),
    (["train", "mnist", "--arch", "vgg"], "'vgg'"),
    (["train", "nist"], "there is no task 'nist'; there are mnist, cifar10; did you mean mnist?"),
    (["train", "mnist", "--bogus"], "--bogus"),
    (["train"], "task"),
    (["train", "mnist", OUT, "text.png/x"], "text.png"),
    (["train", "mnist", OUT, ""], "the folder's name is empty"),
    (["train", "mnist", OUT, " "], "the folder's name is empty"),
    (["train", "mnist", OUT, "text.png"], "text.png is a file"),
    (["train", "mnist", OUT, "full"], "full is not empty and is not a run"),
    (["train", "mnist", "--resume", "--seed", "5"], "no run folder"),
    (["train", "mnist", "--resume", "--overwrite"], "give one of them"),
    (["train", "mnist", "--resume", OUT, "run", "--batch-size", "8"], "batch size 16, not 8"),
    (["train", "cifar10", "--resume", OUT, "run"], "task mnist, not cifar10"),
    (["train", "mnist", "--resume", OUT, "run", "--paper"], "without --paper"),
    (["results", "nowhere"], "no folder nowhere"),
    (["record", "full"], "full is not a run"),
    (["dance"], "dance"),
]


@pytest.mark.parametrize(("arguments", "message"), FAILURES)
def test_failures_are_one_line(arguments, message, run, tmp_path, capsys):
    for name in ("corrupt", "garbled"):
        shutil.copytree(run.folder, tmp_path / name)
    checkpoint = tmp_path / "corrupt" / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:5000])
    (tmp_path / "garbled" / "config.json").write_text("{")
    (tmp_path / "text.png").write_text("words")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    assert tagi(arguments) != 0
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("Error: ")
    assert "Traceback" not in captured.err + captured.out
    assert not list(tmp_path.glob("runs/[!.]*")), "nothing is left behind but a lock"


def test_read_only_folder(tmp_path, capsys, monkeypatch):
    """Permissions do not bind every user (root), so the refusal is the file system's by proxy."""

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied", str(tmp_path / "x" / "config.json"))

    monkeypatch.setattr("torchtagi.experiments.runs.folder.write_atomically", refuse)
    assert tagi(["train", "mnist", OUT, "x"]) == 1
    assert capsys.readouterr().err == f"Error: {tmp_path / 'x' / 'config.json'}: Permission denied\n"


def test_a_collection_that_is_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TAGI_DATA", str(tmp_path / "nowhere"))
    assert tagi(["train", "mnist", OUT, "x"]) == 1
    problem = f"TAGI_DATA must name a folder of data sets; {tmp_path / 'nowhere'} does not exist"
    assert capsys.readouterr().err == f"Error: {problem}: correct or unset it\n"
    assert not (tmp_path / "x").exists()


def test_help_and_version(capsys):
    assert tagi([]) == 0
    assert "evaluate" in capsys.readouterr().out
    assert tagi(["--version"]) == 0
    assert "torchtagi" in capsys.readouterr().out


def test_a_missing_extra_is_named(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "typer" else found(name))
    with pytest.raises(SystemExit) as ended:
        torchtagi_command.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "Error: the tagi command needs typer: pip install 'torchtagi[cli]'\n"
