"""How good a trained network is, and whether its uncertainty shows where it is not.

`scores` are the numbers of one test set. `out_of_distribution` measures how well uncertainty tells images of
another data set from the task's own. `evaluate` does both for a run and writes the result into its folder.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchtagi import metrics
from torchtagi.classifier import Classifier
from torchtagi.experiments import data
from torchtagi.experiments.baselines.baseline import Baseline
from torchtagi.experiments.baselines.methods import load_baseline
from torchtagi.experiments.classify.tasks import Task, find_task
from torchtagi.experiments.runs.folder import EVALUATION, Row, Run, RunError
from torchtagi.loading import load
from torchtagi.nn.affine import PRECISIONS, multiply_in
from torchtagi.prediction import ClassPrediction

UNCERTAINTIES: dict[str, Callable[[ClassPrediction], Tensor]] = {
    "entropy": lambda prediction: prediction.entropy,
    "max_probability": lambda prediction: 1 - prediction.confidence,
    "epistemic_variance": lambda prediction: prediction.epistemic.sum(1),
}
"""Three measures by which to detect out-of-distribution images; larger is more uncertain."""


def out_of_distribution(own: ClassPrediction, ood: ClassPrediction) -> dict[str, Row]:
    """For each measure, the AUROC of telling out-of-distribution images from the task's own, and the false-positive
    rate: the share of the task's own that is flagged at the threshold which finds 95 % of the others."""
    is_ood = torch.cat([torch.zeros(len(own.probs)), torch.ones(len(ood.probs))])
    found = {}
    for name, measure in UNCERTAINTIES.items():
        values = torch.cat([measure(own), measure(ood)]).cpu()
        found[name] = {"auroc": metrics.auroc(values, is_ood), "fpr_at_95_tpr": fpr_at_tpr(values, is_ood.bool())}
    return found


def fpr_at_tpr(scores: Tensor, positive: Tensor, tpr: float = 0.95) -> float:
    """The share of negatives that pass the highest threshold (score ≥ it) which lets `tpr` of positives pass."""
    # the tolerance undoes products like 0.07 · 100 = 7.000000000000001
    needed = math.ceil(tpr * int(positive.sum()) - 1e-9)
    threshold = scores[positive].sort(descending=True).values[needed - 1]
    return float((scores[~positive] >= threshold).double().mean())


def confusion_matrix(probs: Tensor, labels: Tensor) -> Tensor:
    """Counts, int64 (C, C): row = true class, column = likeliest class."""
    classes = probs.shape[1]
    return torch.bincount(labels.long() * classes + probs.argmax(1), minlength=classes**2).view(classes, classes)


class Evaluation(NamedTuple):
    """A run's test set, the predictions for it and for the out-of-distribution set, and evaluation.json."""

    task: Task
    test: data.ImageSet
    labels: Tensor
    prediction: ClassPrediction
    ood: ClassPrediction | None
    found: Row


def reliability(probs: Tensor, labels: Tensor) -> list[dict[str, float]]:
    """Of each bin of confidence that holds images, how many, their mean confidence and their accuracy."""
    bins = metrics.reliability_bins(probs, labels)
    columns = zip(bins.counts.tolist(), bins.confidence.tolist(), bins.accuracy.tolist(), strict=True)
    keys = ("images", "confidence", "accuracy")
    return [{key: round(value, 6) for key, value in zip(keys, row, strict=True)} for row in columns if row[0]]


def load_model(run: Run) -> Classifier:
    """A TAGI run's classifier, ready to predict."""
    run.require_checkpoint()
    model = load(run.checkpoint)
    if not isinstance(model, Classifier):
        raise RunError(f"{run.folder} is not a run of a classifier")
    multiply_in(model.predicting, PRECISIONS[run.config.get("precision", "float32")])
    return model


def load_predictor(run: Run) -> Classifier | Baseline:
    """Whatever learned in `run`, ready to predict."""
    return load_model(run) if run.method == "tagi" else load_baseline(run)


def evaluate(run: Run, download: bool = True, progress: Callable[[str], None] | None = None) -> Evaluation:
    """Predict the test set and the out-of-distribution set, and write `evaluation.json`.

    If the latter is absent, and cannot be downloaded or must not be, that is no failure: `note` says so.
    """
    say = progress or (lambda message: None)
    task = find_task(run.config["task"])
    predictor = load_predictor(run)
    limit = slice(run.config.get("test_samples"))
    test = data.load(task.name, "test").subset(limit).to("cpu", torch.channels_last)
    if test.labels is None:
        raise RunError(f"{task.name} has no labels to compare with")
    say(f"predicting {len(test):,} test {task.thing}s")
    prediction = predictor.predict(test.images)
    ood, note = None, None
    try:
        say(f"looking for {task.ood}")
        loaded = data.load(task.ood, "test", preprocessing=test.preprocessing, download=download)
        images = loaded.subset(limit).to("cpu", torch.channels_last).images
        say(f"predicting {len(images):,} images of {task.ood}")
        ood = predictor.predict(images)
    except data.DataError as error:
        note = f"out-of-distribution detection skipped: {error}"
    probs, labels = prediction.probs, test.labels
    # the 0, 1, …, 100 % quantiles of the test set's entropies, to rank one image's uncertainty by
    quantiles = prediction.entropy.double().quantile(torch.linspace(0, 1, 101, dtype=torch.float64))
    found = {
        "epochs": len(run.metrics()),
        "images": len(test),
        **metrics.classification_scores(probs, labels),
        "confusion": confusion_matrix(probs, labels).tolist(),
        "out_of_distribution": None if ood is None else out_of_distribution(prediction, ood),
        "out_of_distribution_set": task.ood,
        "out_of_distribution_note": note,
        "reliability": reliability(probs, labels),
        "entropy_quantiles": [round(value, 6) for value in quantiles.tolist()],
    }
    run.write_json(EVALUATION, found)
    return Evaluation(task, test, labels, prediction, ood, found)
