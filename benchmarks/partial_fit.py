"""What one row of a stream costs: `partial_fit` of a 13-50-1 perceptron, and how much of it lies where.

    python benchmarks/partial_fit.py [--rows 2000] [--json]

Medians over the rows, in µs, on one thread; also in processor time, which a busy machine disturbs less.
`partial_fit` calls the model's `update`, which calls `condition`, the step of inference. `learn_one` is the same
for a dict of features. An Adam step of the same network in torch, on tensors that are there already, is a measure
of the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import torchtagi as tagi
from torchtagi.sklearn import TAGIClassifier, TAGIRegressor

WARM_UP = 200  # rows


def calls(rows: int) -> dict[str, Callable[[int], object]]:
    """Each learns or predicts the row that it is given."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 13))
    y = X[:, 0] + 0.1 * rng.normal(size=rows)
    labels = (y > 0).astype(int)
    x, targets = torch.tensor(X), torch.tensor(y)
    dicts = [dict(zip("abcdefghijklm", row, strict=True)) for row in X.tolist()]
    regressor, updated, stepped, by_dict = (
        TAGIRegressor(covariance="diagonal", random_state=0).partial_fit(X, y) for _ in range(4)
    )
    by_dict.feature_names_in_ = np.array(list(dicts[0]), dtype=object)
    classifier = TAGIClassifier(random_state=0).partial_fit(X, labels, classes=[0, 1])
    model, inner = updated.model_, stepped.model_
    net = torch.nn.Sequential(torch.nn.Linear(13, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1)).double()
    adam = torch.optim.Adam(net.parameters())

    def adam_step(row: int) -> None:
        torch.nn.functional.mse_loss(net(x[row : row + 1]), targets[row : row + 1, None]).backward()
        adam.step()
        adam.zero_grad()

    def condition(row: int) -> None:
        inputs, target = x[row : row + 1], targets[row : row + 1, None]
        tagi.condition(inner.net, inner.likelihood, inner.posterior, inputs, target)

    return {
        "partial_fit": lambda row: regressor.partial_fit(X[row : row + 1], y[row : row + 1]),
        "  model.update": lambda row: model.update(x[row : row + 1], targets[row : row + 1]),
        "    condition": condition,
        "learn_one": lambda row: by_dict.learn_one(dicts[row], y[row]),
        "partial_fit, classifier": lambda row: classifier.partial_fit(X[row : row + 1], labels[row : row + 1]),
        "predict, one row": lambda row: regressor.predict(X[row : row + 1]),
        "predict_one": lambda row: by_dict.predict_one(dicts[row]),
        "Adam step": adam_step,
    }


def measured(call: Callable[[int], object], rows: int) -> dict[str, float]:
    """The median of all rows but the first ones, in µs."""
    wall, processor = [], []
    for row in range(rows):
        start, start_processor = time.perf_counter(), time.thread_time()
        call(row)
        processor.append(time.thread_time() - start_processor)
        wall.append(time.perf_counter() - start)
    return {
        "wall_us": round(1e6 * statistics.median(wall[WARM_UP:]), 1),
        "processor_us": round(1e6 * statistics.median(processor[WARM_UP:]), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000, help="that are measured, after 200 that are not")
    parser.add_argument("--json", action="store_true", help="print one object instead of a table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = options.rows + WARM_UP
    found = {name: measured(call, rows) for name, call in calls(rows).items()}
    if options.json:
        print(json.dumps({name.strip(): times for name, times in found.items()}, indent=1))
        return
    print(f"{'µs a row':<26}{'wall':>8}{'processor':>12}")
    for name, times in found.items():
        print(f"{name:<26}{times['wall_us']:>8.0f}{times['processor_us']:>12.0f}")


if __name__ == "__main__":
    main()
