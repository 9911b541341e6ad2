"""What a trained network knows, and whether it knows when it does not.

`scores` are the numbers of one test set. `out_of_distribution` asks if uncertainty tells images of the task from
foreign ones. `evaluate` does both for a run and keeps the answer in its folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi import metrics
from torchtagi.experiments import data
from torchtagi.experiments.baselines import load_baseline
from torchtagi.experiments.classify.learner import Predictor
from torchtagi.experiments.classify.prediction import Scores, channels_last, predict, scores
from torchtagi.experiments.classify.tasks import Task, find_task
from torchtagi.experiments.runs.folder import EVALUATION, Run, RunError
from torchtagi.likelihoods import ClassPrediction, HierarchicalClassification
from torchtagi.nn.affine import PRECISIONS, multiply_in

UNCERTAINTIES: dict[str, Callable[[ClassPrediction], Tensor]] = {
    "entropy": lambda prediction: prediction.entropy,
    "max_probability": lambda prediction: 1 - prediction.confidence,
    "epistemic_variance": lambda prediction: prediction.epistemic.sum(1),
}
"""Three measures of how foreign an image looks; larger is more foreign."""


def out_of_distribution(inside: ClassPrediction, outside: ClassPrediction) -> dict[str, Scores]:
    """For each measure, the AUROC of telling foreign images from the task's own, and the share of the task's
    own that is taken for foreign at the threshold which finds 95 % of the foreign ones."""
    foreign = torch.cat([torch.zeros(len(inside.probs)), torch.ones(len(outside.probs))])
    found = {}
    for name, measure in UNCERTAINTIES.items():
        values = torch.cat([measure(inside), measure(outside)]).cpu()
        found[name] = {
            "auroc": metrics.auroc(values, foreign),
            "fpr_at_95_tpr": metrics.fpr_at_tpr(values, foreign),
        }
    return found


@dataclass(frozen=True)
class Evaluation:
    """A run's test set, the predictions for it, and what they are worth."""

    task: Task
    test: data.ImageSet
    labels: Tensor
    prediction: ClassPrediction
    scores: Scores
    confusion: Tensor
    outside: ClassPrediction | None
    detection: dict[str, Scores] | None
    note: str | None
    """Why there is no `detection`, if there is none."""
    epochs: int
    """How many epochs had been learned."""

    @property
    def entropy_quantiles(self) -> Tensor:
        """The 0, 1, …, 100 % quantiles of the test set's entropies: a ruler for one image's uncertainty."""
        return self.prediction.entropy.double().quantile(torch.linspace(0, 1, 101, dtype=torch.float64))

    def reliability(self) -> list[dict[str, float]]:
        """Of each bin of confidence that holds images, how many, their mean confidence and their accuracy."""
        bins = metrics.reliability_bins(self.prediction.probs, self.labels)
        columns = zip(bins.counts.tolist(), bins.confidence.tolist(), bins.accuracy.tolist(), strict=True)
        return [
            {"images": images, "confidence": round(confidence, 6), "accuracy": round(accuracy, 6)}
            for images, confidence, accuracy in columns
            if images
        ]

    def summary(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "epochs": self.epochs,
            "images": len(self.labels),
            **self.scores,
            "confusion": self.confusion.tolist(),
            "out_of_distribution": self.detection,
            "out_of_distribution_set": self.task.outside,
            "out_of_distribution_note": self.note,
            "reliability": self.reliability(),
            "entropy_quantiles": [round(value, 6) for value in self.entropy_quantiles.tolist()],
        }


def load_model(run: Run, device: str = "cpu") -> tuple[nn.Module, HierarchicalClassification]:
    """A TAGI run's network and likelihood, ready to predict."""
    with torch.random.fork_rng(devices=[]):  # layers draw a prior when they are built, for nothing here
        saved = run.load()
    if not isinstance(saved.likelihood, HierarchicalClassification):
        raise RunError(f"{run.folder} is not a classifier: its likelihood is {type(saved.likelihood).__name__}")
    multiply_in(saved.net, PRECISIONS[run.config.get("precision", "float32")])
    return channels_last(saved.net, device).eval(), saved.likelihood.to(device).eval()


@dataclass(frozen=True)
class GaussianPredictor:
    """A TAGI network that has been loaded from its file alone."""

    net: nn.Module
    likelihood: HierarchicalClassification

    def predict(self, images: Tensor) -> ClassPrediction:
        return predict(self.net, self.likelihood, images)


def load_predictor(run: Run, device: str = "cpu") -> Predictor:
    """Whatever learned in `run`, ready to predict."""
    if run.method == "tagi":
        return GaussianPredictor(*load_model(run, device))
    return load_baseline(run, device)


def evaluate(run: Run, download: bool = True, progress: Callable[[str], None] | None = None) -> Evaluation:
    """Predict the test set and the foreign set, and write `evaluation.json`.

    A foreign set that is absent, and cannot be fetched or must not be, is no failure: `note` says so.
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
    outside, note = None, None
    try:
        say(f"looking for {task.outside}")
        foreign = data.load(task.outside, "test", preprocessing=test.preprocessing, download=download)
        images = foreign.subset(limit).to("cpu", torch.channels_last).images
        say(f"predicting {len(images):,} images of {task.outside}")
        outside = predictor.predict(images)
    except data.DataError as error:
        note = f"out-of-distribution detection skipped: {error}"
    evaluation = Evaluation(
        task=task,
        test=test,
        labels=test.labels,
        prediction=prediction,
        scores=scores(prediction, test.labels),
        confusion=metrics.confusion_matrix(prediction.probs, test.labels),
        outside=outside,
        detection=None if outside is None else out_of_distribution(prediction, outside),
        note=note,
        epochs=len(run.metrics()),
    )
    run.write_json(EVALUATION, evaluation.summary())
    return evaluation
