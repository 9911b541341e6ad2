"""Plots and the page: they show the run, and the page needs nothing but itself."""

import base64
import io
import re
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

import torchtagi as tagi
from torchtagi.experiments import data
from torchtagi.experiments.classify.evaluation import Evaluation, confusion_matrix, load_model, reliability
from torchtagi.experiments.classify.tasks import TASKS
from torchtagi.experiments.report import page as pages
from torchtagi.experiments.report import plots
from torchtagi.experiments.report.measures import EPOCH_COLUMNS
from torchtagi.experiments.report.page import write_report
from torchtagi.experiments.runs.folder import Run, RunError
from torchtagi.metrics import classification_scores

VOID = {"meta", "img", "source", "br"}


class Page(HTMLParser):
    """Checks that tags match, and collects what the page would load."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "srcset", "href", "data", "action")]
        assert tag not in ("script", "link", "iframe", "object", "base")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def reported(trained, tmp_path_factory):
    """A copy of the trained run with its page, made where there is no out-of-distribution set and no network."""
    place = tmp_path_factory.mktemp("reported")
    run = Run.open(shutil.copytree(trained.folder, place / "run"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAGI_OFFLINE", "1")
        patch.delenv("TAGI_DATA", raising=False)
        for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
            patch.setenv(variable, str(place / "cache"))
        state = torch.get_rng_state()
        written = write_report(run)
        assert torch.equal(state, torch.get_rng_state()), "looking at a run does not disturb anybody's randomness"
    return run, written


def test_page_is_self_contained(reported):
    _, path = reported
    text = path.read_text()
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"url\(|@import", text)
    parsed = Page(text)
    assert parsed.open == []
    assert text.count('class="chart"') == 3
    assert len(parsed.loads) == 3 + text.count("<figure"), "figures and galleries"
    for address in parsed.loads:
        kind, _, content = address.partition(",")
        assert kind == "data:image/png;base64"
        Image.open(io.BytesIO(base64.b64decode(content))).verify()
    assert "prefers-color-scheme: dark" in text


def test_page_says_what_the_run_is(reported):
    run, path = reported
    parsed = Page(path.read_text())
    row = run.metrics()[-1]
    for expected in (
        "mnist · cnn · default-samples480-test300 · seed 0",
        f"{row['error']:.2f} %",
        f"{row['nll']:.4f}",
        f"{row['samples_per_second']:,.0f}",
        "1.88 %",
        "0.64 %",
        "207,068 weights",
        "fashion-mnist is not on this machine",
    ):
        assert expected in parsed.text


def test_plots_are_drawn_as_files(reported):
    run, _ = reported
    names = {path.name for path in (run.folder / "plots").iterdir()}
    assert names == {"learning.png", "reliability.png", "weights.png"}
    for name in names:
        pixels = np.asarray(Image.open(run.folder / "plots" / name).convert("L"))
        assert pixels.std() > 5, f"{name} is nearly empty"


def test_no_report_before_the_first_epoch(tmp_path):
    run = Run.create(tmp_path / "r", {"task": "mnist", "network": "cnn", "setting": "default", "seed": 0})
    with pytest.raises(RunError, match="nothing to report"):
        write_report(run)


def test_names_are_escaped(reported, monkeypatch, tmp_path):
    run, _ = reported
    odd = Run(shutil.copytree(run.folder, tmp_path / "odd"), {**run.config, "setting": "<script>alert(1)</script>"})
    sure = made_up(torch.eye(10), torch.arange(10))
    monkeypatch.setattr(pages, "evaluate", lambda *rest: sure)
    monkeypatch.setattr(plots, "as_png", lambda figure: b"")
    text = write_report(odd).read_text()
    assert Page(text).open == []
    assert "&lt;script&gt;" in text
    assert "There is not a single error" in text


def made_up(probs, labels):
    probs = torch.as_tensor(probs)
    prediction = tagi.ClassPrediction(probs, probs * (1 - probs) / 2, probs * (1 - probs) / 2)
    images = torch.arange(len(labels), dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 28, 28) / 255
    test = data.ImageSet("mnist", images, labels, tuple("0123456789"), data.Preprocessing.centred(0.0))
    found = {
        **classification_scores(probs, labels),
        "confusion": confusion_matrix(probs, labels).tolist(),
        "reliability": reliability(probs, labels),
    }
    return Evaluation(TASKS["mnist"], test, labels, prediction, None, found)


def shown_levels(gallery):
    """The grey level of each picture in a gallery, which here is the image's number."""
    pictures = [base64.b64decode(load.partition(",")[2]) for load in Page(gallery).loads]
    return [Image.open(io.BytesIO(png)).getpixel((0, 0)) for png in pictures]


def test_galleries_pick_the_right_images():
    probs = torch.full((40, 10), 0.01)
    confidence = torch.linspace(0.3, 0.9, 40)
    probs[:, 0] = confidence
    probs[:, 1:] = ((1 - confidence) / 9)[:, None]
    labels = torch.zeros(40, dtype=torch.long)
    labels[[5, 30, 20]] = 4
    evaluation = made_up(probs, labels)
    prediction = evaluation.prediction
    assert shown_levels(pages.gallery(evaluation, prediction.entropy)) == list(range(24))
    wrong = pages.gallery(evaluation, prediction.confidence, prediction.labels != labels)
    assert shown_levels(wrong) == [30, 20, 5]
    assert re.findall(r"is \d<br>\d: \d+ %", wrong) == [
        f"is 4<br>0: {100 * confidence[i]:.0f} %" for i in (30, 20, 5)
    ]
    assert wrong.count('class="wrong"') == 3


def test_out_of_distribution_images_are_drawn_beside_the_test_set():
    """Each histogram sums to 100 %, whatever the number of images."""
    figure = plots.ood_entropies(("mnist", "fashion-mnist"), (torch.full((10,), 0.05), torch.full((30,), 2.3)))
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == ["mnist", "fashion-mnist"]
    own, others = (sorted(bar.get_height() for bar in bars)[-2:] for bars in figure.axes[0].containers)
    assert own == pytest.approx([0, 100])
    assert others == pytest.approx([0, 100])


def test_training_curve_is_in_epochs():
    rows = [
        {"epoch": 1, "train_curve": [[50, 80.0], [100, 20.0]], "train_error": 50.0},
        {"epoch": 2, "train_curve": [[50, 0.0], [100, 5.0]], "train_error": 2.5},
        {"epoch": 3, "train_error": 2.0},
    ]
    assert plots.training_curve(rows) == [(0.5, 80.0), (1.0, 20.0), (1.5, 0.0), (2.0, 5.0), (3, 2.0)]


def test_drawing_repeats(reported):
    run, _ = reported
    first, again = (plots.as_png(plots.learning_curves(run.metrics(), {1: 1.88})) for _ in range(2))
    assert first == again


def test_epoch_tables_have_what_was_measured():
    """Every column of some row, and of many epochs a few."""
    rows = [{"epoch": n, "error": float(n), "samples_per_second": 1234.0} for n in range(1, 24)]
    table = pages.epoch_table([*rows, {"epoch": 24, "train_error": 1.0}], EPOCH_COLUMNS["classifier"])
    cells = [re.findall(r"<t[hd]>(.*?)</t[hd]>", line) for line in table.split("<tr>")[1:]]
    assert cells[0] == ["epoch", "error", "img/s"]
    assert cells[1] == ["1", "1.00 %", "1,234"]
    assert [line[0] for line in cells[1:]] == ["1", "2", "5", "10", "20", "23"]


def test_weights_of_a_deep_network_are_thinned_out(trained):
    net = load_model(trained).net
    assert [name for name, _, _ in plots.weight_pairs(net, net)] == [
        "1: Conv2d",
        "2: Conv2d",
        "3: Linear",
        "4: Linear",
    ]
    deep = torch.nn.Sequential(*(tagi.nn.Linear(2, 2) for _ in range(21)))
    numbers = [int(name.partition(":")[0]) for name, _, _ in plots.weight_pairs(deep, deep)]
    assert numbers == [1, 6, 11, 16, 21]
