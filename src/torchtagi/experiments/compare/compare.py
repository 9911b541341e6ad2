"""A comparison: each method tuned if it has something to tune, trained with several seeds, and measured.

The runs that are compared are in <entry>/seed<k>/, those that chose hyperparameters in tuning/<entry>/. What came
of them, and each entry's hyperparameters with how they were found, is in comparison.json.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchtagi import metrics
from torchtagi.experiments.baselines.methods import METHODS, Hyperparameters
from torchtagi.experiments.classify.evaluation import evaluate, load_predictor
from torchtagi.experiments.compare.runner import Runner, read_study
from torchtagi.experiments.compare.study import method_of
from torchtagi.experiments.compare.table import rows_of
from torchtagi.experiments.compare.tuning import tune
from torchtagi.experiments.data import find_named
from torchtagi.experiments.runs.folder import COMPARISON, Row, Run, RunError, reading

EPOCH_KEYS = ("epoch", "error", "nll", "ece", "train_error", "seconds", "train_curve")
TIMED_IMAGES = 200


def compare(
    runner: Runner,
    methods: Sequence[str],
    seeds: Sequence[int],
    given: Mapping[str, Hyperparameters] | None = None,
    tuned: bool = True,
) -> Row:
    """Do what is missing for `methods` and `seeds`, then collect. `Stopped` if the runner's watcher asks for it.

    `given` hyperparameters of a method take the place of its tuning; without `tuned`, defaults do. An entry is
    tuned right before its first run.
    """
    study, given = runner.study, given or {}
    jobs = {f"{entry}/seed{seed}": (entry, seed) for seed in seeds for entry in study.entries(methods)}
    for method, values in given.items():
        if method == "tagi" or method not in methods:
            why = "has no hyperparameters to set" if method == "tagi" else "is not compared"
            raise ValueError(f"hyperparameters are given for {method}, which {why}")
        find_named("method", method, METHODS).hyperparameters(values)
    runner.open(entries={})
    for entry, known in collect(runner.folder)["entries"].items():
        before = known["hyperparameters"]
        if (asked := given.get(method_of(entry), before)) != before:
            raise RunError(f"{runner.folder} has {entry} with {before}, not {asked}; give another --out")

    def work(name: str) -> None:
        entry, seed = jobs[name]
        known = runner.read()["entries"].get(entry)
        if known is None:
            known = choose(runner, entry, given, tuned)
            with runner.changing() as content:
                content["entries"][entry] = known
        config = study.config(entry, seed, runner.threads, known["hyperparameters"])
        runner.train(name, config, lambda run: measured(run, study.stream))

    runner.share(jobs, work)
    return collect(runner.folder)


def choose(runner: Runner, entry: str, given: Mapping[str, Hyperparameters], tuned: bool) -> Row:
    """An entry's hyperparameters, and where they come from."""
    method = method_of(entry)
    row: Row = {"method": method, "batch_size": runner.study.batch_size(entry), "hyperparameters": {}}
    if method == "tagi":
        return {**row, "chosen_by": "nothing to choose"}
    if method in given:
        return {**row, "hyperparameters": given[method], "chosen_by": "given"}
    if not tuned:
        return {**row, "chosen_by": "defaults"}
    found = tune(runner, entry)
    chosen_by = "defaults, as every cell of the grid diverged" if found["chosen"] is None else "tuning"
    return {**row, "hyperparameters": found["chosen"] or {}, "chosen_by": chosen_by, "tuning": found}


def measured(run: Run, stream: bool) -> Row:
    """The rows of its epochs, and the scores of the finished network. Only a stream keeps the course of its epoch;
    an epoch that was not measured has no scores."""
    _, test, labels, prediction, _, found = evaluate(run)
    bins = metrics.reliability_bins(prediction.probs, labels)
    predictor, images = load_predictor(run), test.images[:TIMED_IMAGES]
    start = time.perf_counter()
    predictor.predict(images)
    spent = time.perf_counter() - start
    keys = EPOCH_KEYS if stream else EPOCH_KEYS[:-1]
    return {
        "epochs": [{key: row.get(key) for key in keys} for row in run.metrics()],
        "summary": {
            "scores": metrics.classification_scores(prediction.probs, labels),
            "out_of_distribution": found["out_of_distribution"],
            "out_of_distribution_note": found["out_of_distribution_note"],
            "reliability": {
                "count": bins.counts.tolist(),
                "confidence": bins.confidence.tolist(),
                "accuracy": bins.accuracy.tolist(),
            },
            "predict_seconds_per_1000": 1000 * spent / len(images),
        },
    }


def collect(folder: Path) -> Row:
    """What comparison.json holds, with the `rows` of its table."""
    with reading(folder / COMPARISON):
        content = read_study(folder, COMPARISON)
        return {**content, "rows": rows_of(content)}
