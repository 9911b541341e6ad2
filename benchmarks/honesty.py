"""Do predicted variances fit the errors? Regression over epochs, few digits and many, streams, CIFAR-10.

    python benchmarks/honesty.py --out results/honesty.json

Every case is a model with the defaults. Each row holds what a user sees (errors, likelihood, the share of targets
in 95 % intervals, calibration error) and, on test data, the mean of r²/(v + R): 1 where v + R is the errors'
variance. R is the noise that predictions assume; for labels, that of the messages, for the link is not fitted to
variances. Rows that the file holds already are not measured again. UCI sets that are not found are left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_diabetes

import torchtagi as tagi
from torchtagi.checkpoint import write_atomically
from torchtagi.experiments import data
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.networks import mnist_cnn
from torchtagi.fitting import epoch_order

Row = dict[str, Any]
UCI = ("energy", "yacht", "concrete", "bostonHousing", "wine-quality-red")
TEST_DIGITS = 5000


def perceptron(features: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(features, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))


def of_regression(model: tagi.Regressor, x: torch.Tensor, y: torch.Tensor) -> Row:
    prediction, scores = model.predict(x), model.evaluate(x, y)
    fit = ((y - prediction.mean).square() / (prediction.epistemic + prediction.aleatoric)).mean().item()
    stds = {part: getattr(prediction, part).mean().sqrt().item() for part in ("epistemic", "aleatoric")}
    row = {"rmse": scores["rmse"], "ll": -scores["nll"], "coverage": scores["coverage_95"], "fit": fit, **stds}
    return {name: round(value, 4) for name, value in row.items()}


def of_labels(model: tagi.Classifier, test: data.ImageSet) -> Row:
    scores = model.evaluate(test.images, test.labels)
    fits = []
    with torch.no_grad():
        for start in range(0, 1000, 200):
            images, labels = test.images[start : start + 200], test.labels[start : start + 200]
            z = model.predicting(model.prepared(images))
            codes, _ = model.link.targets(z, labels)
            var = z.variance + model.likelihood.learned_noise_var
            fits.append(((codes - z.mean).square() / var).mean().item())
    row = {name: round(scores[name], 4) for name in ("error", "nll", "ece")}
    return row | {"fit": round(statistics.fmean(fits), 3)}


def diabetes(seed: int) -> Iterator[tuple[str, Row]]:
    x, y = (torch.tensor(part).float() for part in load_diabetes(return_X_y=True, scaled=False))
    order = epoch_order(len(x), seed, 0)
    train, test = order[:350], order[350:]
    for epochs in (1, 3, 10, 30, 100):
        torch.manual_seed(seed)
        model = tagi.Regressor(perceptron(10))
        model.fit((x[train], y[train]), epochs=epochs, progress=False, seed=seed)
        yield f"diabetes, {epochs} epochs", of_regression(model, x[test], y[test])


def uci(name: str, split: int) -> Iterator[tuple[str, Row]]:
    parts = data.load_uci(name, split)
    torch.manual_seed(split)
    model = tagi.Regressor(perceptron(parts.x_train.shape[1]))
    model.fit((parts.x_train, parts.y_train[:, 0]), epochs=40, batch_size=10, progress=False, seed=split)
    yield f"{name}, 40 epochs", of_regression(model, parts.x_test, parts.y_test[:, 0])


def learned(train: data.ImageSet, net: torch.nn.Module, augment: Any, epochs: int, seed: int) -> tagi.Classifier:
    torch.manual_seed(seed)
    model = tagi.Classifier(net, classes=10)
    model.fit((train.images, train.labels), epochs=epochs, augment=augment, progress=False, seed=seed)
    return model


def digits(samples: int, epochs: int, seed: int) -> Iterator[tuple[str, Row]]:
    """The first 5,000 test digits, as in the comparisons with baselines; those who learn from all see all."""
    train, test = data.load("mnist", "train"), data.load("mnist", "test")
    few = train.subset(epoch_order(len(train), seed, -1)[:samples])
    model = learned(few, mnist_cnn(10), data.augment_shift, epochs, seed)
    yield f"{samples:,} digits, {epochs} epochs", of_labels(model, test if samples == len(train) else first(test))


def first(test: data.ImageSet) -> data.ImageSet:
    return test.subset(slice(TEST_DIGITS))


def stream(samples: int, batch_size: int, seed: int) -> Iterator[tuple[str, Row]]:
    train, test = data.load("mnist", "train"), first(data.load("mnist", "test"))
    order = epoch_order(len(train), seed, -1)[:samples]
    torch.manual_seed(seed)
    model = tagi.Classifier(mnist_cnn(10), classes=10)
    for rows in order.split(batch_size):
        model.update(train.images[rows], train.labels[rows])
    yield f"stream of {samples:,} digits, batches of {batch_size}", of_labels(model, test)


def cifar(network: str, epochs: int, seed: int) -> Iterator[tuple[str, Row]]:
    train, test = data.load("cifar10", "train"), data.load("cifar10", "test")
    net = find_task("cifar10").network(network).build(10)
    model = learned(train, net, data.augment_crop_flip, epochs, seed)
    yield f"CIFAR-10 {network}, {epochs} epochs", of_labels(model, test)


def cases() -> Iterator[tuple[str, Any]]:
    for seed in range(20):
        yield f"diabetes/{seed}", lambda seed=seed: diabetes(seed)
    for name in UCI:
        for split in range(5):
            yield f"{name}/{split}", lambda name=name, split=split: uci(name, split)
    for seed in range(3):
        yield f"100 digits/{seed}", lambda seed=seed: digits(100, 100, seed)
        yield f"1000 digits/{seed}", lambda seed=seed: digits(1000, 30, seed)
        yield f"10000 digits/{seed}", lambda seed=seed: digits(10_000, 5, seed)
        yield f"stream/{seed}", lambda seed=seed: stream(10_000, 1, seed)
        yield f"stream of 16/{seed}", lambda seed=seed: stream(10_000, 16, seed)
        yield f"all digits/{seed}", lambda seed=seed: digits(60_000, 5, seed)
    yield "3conv/0", lambda: cifar("3conv", 10, 0)
    yield "resnet18half/0", lambda: cifar("resnet18half", 1, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    rows: Row = json.loads(options.out.read_text())["rows"] if options.out.is_file() else {}
    for name, case in cases():
        if name not in rows:
            try:
                rows[name] = dict(case())
            except data.DataError as missing:
                print(missing)
                continue
            content = json.dumps({"commit": asked.stdout.strip(), "rows": rows}, indent=1)
            write_atomically(options.out, content.encode())
    means: dict[str, list[Row]] = {}
    for row in rows.values():
        for case_name, scores in row.items():
            means.setdefault(case_name, []).append(scores)
    for case_name, scores in means.items():
        columns = "  ".join(f"{name} {statistics.fmean(s[name] for s in scores):.4g}" for name in scores[0])
        print(f"{case_name:>38} ({len(scores):2}): {columns}")


if __name__ == "__main__":
    main()
