"""Evaluation: numbers cross-checked by other means, and modes left alone."""

import math
import shutil

import numpy as np
import pytest
import sklearn.metrics
import torch

import torchtagi as tagi
from torchtagi import checkpoint
from torchtagi.experiments import data
from torchtagi.experiments.classify.evaluation import (
    UNCERTAINTIES,
    confusion_matrix,
    evaluate,
    fpr_at_tpr,
    load_model,
    out_of_distribution,
)
from torchtagi.experiments.runs.folder import Run, RunError
from torchtagi.metrics import classification_scores
from torchtagi.regressor import Regressor


def prediction_of(probs):
    probs = torch.as_tensor(probs, dtype=torch.float32)
    epistemic = probs * (1 - probs) / 4
    return tagi.ClassPrediction(probs, epistemic, probs * (1 - probs) - epistemic)


def test_scores_by_hand():
    probs = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.6, 0.3, 0.1]])
    labels = np.array([0, 1, 0, 2])
    found = classification_scores(torch.from_numpy(probs), torch.from_numpy(labels))
    assert found["error"] == 50.0
    assert found["nll"] == pytest.approx(-np.log([0.7, 0.8, 0.3, 0.1]).mean(), rel=1e-6)
    assert found["brier"] == pytest.approx(((probs - np.eye(3)[labels]) ** 2).sum(1).mean(), rel=1e-6)
    assert found["auroc_misclassification"] == 1.0, "0.7 and 0.8 were right, 0.4 and 0.6 wrong"
    # each example is alone in its bin: 0.7 right, 0.8 right, 0.4 wrong, 0.6 wrong
    assert found["ece"] == pytest.approx((0.3 + 0.2 + 0.4 + 0.6) / 4, rel=1e-6)


@pytest.mark.parametrize("tpr", [0.07, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("rounded", [False, True])
def test_fpr_at_tpr_matches_the_roc_curve(tpr, rounded):
    generator = torch.Generator().manual_seed(4)
    positives = torch.arange(250) < 100
    scores = torch.randn(250, generator=generator) + positives
    if rounded:
        scores = scores.round()
    fprs, tprs, _ = sklearn.metrics.roc_curve(positives.numpy(), scores.numpy(), drop_intermediate=False)
    expected = fprs[np.flatnonzero(tprs >= tpr - 1e-12)[0]]
    assert fpr_at_tpr(scores, positives, tpr) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_fpr_at_tpr_asks_for_no_positive_too_many():
    """0.07 · 100 is 7.000000000000001 in floating point, yet the seventh positive is enough."""
    positives = torch.arange(101) < 100
    scores = torch.cat([torch.arange(100.0, 0.0, -1.0), torch.tensor([93.5])])
    assert fpr_at_tpr(scores, positives, tpr=0.07) == 0.0
    assert fpr_at_tpr(scores, positives, tpr=0.08) == 1.0


def test_fpr_at_tpr_without_negatives_is_undefined():
    assert math.isnan(fpr_at_tpr(torch.tensor([1.0, 2.0]), torch.tensor([True, True])))


def test_confusion_matrix_matches_sklearn():
    torch.manual_seed(0)
    probs, labels = torch.randn(400, 5).round().softmax(1), torch.randint(0, 5, (400,))
    expected = sklearn.metrics.confusion_matrix(labels.numpy(), probs.numpy().argmax(1), labels=range(5))
    assert confusion_matrix(probs, labels).tolist() == expected.tolist()


def test_confusion_matrix_keeps_the_rows_of_absent_classes():
    probs = torch.tensor([[0.6, 0.4, 0.0], [0.1, 0.9, 0.0]])
    assert confusion_matrix(probs, torch.tensor([1, 1])).tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0]]


def test_out_of_distribution_counts_pairs():
    torch.manual_seed(0)
    own = prediction_of((3 * torch.randn(40, 4)).softmax(1))
    ood = prediction_of(torch.randn(30, 4).softmax(1))
    found = out_of_distribution(own, ood)
    assert set(found) == {"entropy", "max_probability", "epistemic_variance"}
    for name, measure in UNCERTAINTIES.items():
        low, high = measure(own)[:, None], measure(ood)[None]
        pairs = ((high > low).double() + (high == low).double() / 2).mean().item()
        assert found[name]["auroc"] == pytest.approx(pairs, abs=1e-9)
    assert all(value["auroc"] > 0.6 for value in found.values()), "larger means more uncertain"


def test_a_loaded_model_predicts_and_leaves_its_modes(trained, digits):
    model = load_model(trained)
    assert isinstance(model, tagi.Classifier)
    assert not any(part.training for part in (model.net, model.likelihood, model.predicting)), "ready to predict"
    model.net.train()
    model.likelihood.train()
    before = {name: value.clone() for name, value in model.predicting.state_dict().items()}
    images = digits.test.images[:50]
    prediction = model.predict(images)
    assert model.net.training
    assert model.likelihood.training
    assert all(torch.equal(before[name], value) for name, value in model.predicting.state_dict().items())
    with torch.no_grad():
        assert torch.equal(prediction.probs, model.link.predict(model.predicting(images)).probs)


def test_evaluation_repeats_the_last_epochs_row(trained, tmp_path, monkeypatch):
    """The same test set, the same network from its file: the same numbers as at the end of the training."""
    monkeypatch.setenv("TAGI_OFFLINE", "1")
    monkeypatch.delenv("TAGI_DATA", raising=False)
    for variable in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "cache"))
    run = Run.open(shutil.copytree(trained.folder, tmp_path / "run"))
    said = []
    found = evaluate(run, progress=said.append).found
    row = run.metrics()[-1]
    scores = {name: value for name, value in row.items() if name in ("error", "nll", "ece", "brier", "auroc_ovr")}
    assert {name: found[name] for name in scores} == pytest.approx(scores, rel=1e-6)
    confusion = torch.tensor(found["confusion"])
    assert int(confusion.sum()) == 300
    assert 100 * (1 - confusion.trace().item() / 300) == pytest.approx(row["error"], abs=1e-4)
    assert found["out_of_distribution"] is None
    assert "fashion-mnist" in " ".join(said)
    assert "skipped" in found["out_of_distribution_note"]
    kept = run.evaluation()
    assert kept["error"] == pytest.approx(row["error"])
    assert len(kept["entropy_quantiles"]) == 101
    assert kept["entropy_quantiles"] == sorted(kept["entropy_quantiles"])


def test_detects_fashion(trained, tmp_path):
    try:
        data.load("fashion-mnist", "test", download=False)
    except data.DataError:
        pytest.skip("Fashion-MNIST is not here; set TAGI_DATA")
    run = Run.open(shutil.copytree(trained.folder, tmp_path / "run"))
    found = evaluate(run, download=False)
    assert found.found["out_of_distribution_note"] is None
    assert found.ood.probs.shape == (300, 10)
    assert all(value["auroc"] > 0.6 for value in found.found["out_of_distribution"].values())


def test_a_regression_is_not_a_classifier(tmp_path):
    run = Run.create(tmp_path / "r", {"task": "mnist", "network": "cnn", "setting": "default", "seed": 0})
    with pytest.raises(RunError, match=r"r has no checkpoint\.safetensors"):
        load_model(run)
    Regressor(torch.nn.Linear(2, 1)).save(run.checkpoint)
    with pytest.raises(RunError, match="r is not a run of a classifier"):
        load_model(run)
    checkpoint.save(run.checkpoint, torch.nn.Sequential(tagi.nn.Linear(2, 1)), tagi.Regression(0.1))
    with pytest.raises(tagi.CheckpointError, match="no Classifier or Regressor"):
        load_model(run)
