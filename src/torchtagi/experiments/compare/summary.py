"""What a finished run says in a comparison: its scores and curves, once measured kept beside it."""

from __future__ import annotations

import time

import torch

from torchtagi import metrics
from torchtagi.experiments import data
from torchtagi.experiments.classify.evaluation import Evaluation, evaluate, load_predictor
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.compare.running import SUMMARY
from torchtagi.experiments.runs.folder import Row, Run, read_json

CURVE_POINTS = 100  # of a risk-coverage curve
TIMED_IMAGES = 200


def summarise(run: Run, download: bool = False) -> Row:
    """The run's summary, from its folder if it is there, is one of its last epoch and saw the foreign set, or if
    there is still no foreign set to see, or no network: a recorded run has what it has."""
    path = run.folder / SUMMARY
    epochs = len(run.metrics())
    if path.is_file():
        kept = read_json(path)
        final = kept["out_of_distribution"] or not run.checkpoint.is_file() or not has_foreign_set(run, download)
        if kept.get("epochs") == epochs and final:
            return kept
    found = evaluate(run, download)
    content = {"epochs": epochs, **measured(found), "predict_seconds_per_1000": prediction_seconds(run, found)}
    run.write_json(SUMMARY, content)
    return read_json(path)


def has_foreign_set(run: Run, download: bool) -> bool:
    try:
        data.load(find_task(run.config["task"]).outside, "test", download=download)
    except data.DataError:
        return False
    return True


def measured(found: Evaluation) -> Row:
    probs, labels = found.prediction.probs, found.labels
    bins = metrics.reliability_bins(probs, labels)
    curve = metrics.risk_coverage(probs, labels)
    places = torch.linspace(0, len(labels) - 1, min(CURVE_POINTS, len(labels))).round().long()
    return {
        "scores": found.scores,
        "out_of_distribution": found.detection,
        "out_of_distribution_note": found.note,
        "reliability": {
            "count": bins.counts.tolist(),
            "confidence": bins.confidence.tolist(),
            "accuracy": bins.accuracy.tolist(),
        },
        "risk_coverage": {
            "coverage": curve.coverage[places].tolist(),
            "risk": curve.risk[places].tolist(),
            "area": curve.area,
        },
    }


def prediction_seconds(run: Run, found: Evaluation) -> float:
    """How long the network takes for a thousand images, all its draws included."""
    images = found.test.images[:TIMED_IMAGES]
    predictor = load_predictor(run)
    start = time.perf_counter()
    predictor.predict(images)
    return 1000 * (time.perf_counter() - start) / len(images)
