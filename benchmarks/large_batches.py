"""Batches learned whole: by the line search, by a joint solve, in chunks of 16, and by Adam.

    python benchmarks/large_batches.py --digits 10000 --methods adam,chunks,line,solve:4

Linearised at its means a network gives outputs m + Jd for a step d of its weights, prior S and noise R. The exact
step is S Jᵀ u with (J S Jᵀ + R) u = r. `solve:K` approximates u by K iterations of preconditioned conjugate
gradients; each takes a vector–Jacobian and a Jacobian–vector product of the mean pass. Variances move as ever.
The network is the MNIST CNN, the error that of its last posterior on all test digits after an epoch, `products` how
much a step takes in products of a batch, of which a pass forward has one and a pass back has two. Adam's learning
rate is the best of four on the test digits, in its favour. Rows go to
results/ablation/large_batches.jsonl; one thread.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

import torchtagi as tagi
from torchtagi.checkpoint import write_atomically
from torchtagi.experiments import data, networks
from torchtagi.experiments.classify.config import configure
from torchtagi.fitting import epoch_order
from torchtagi.gaussian import as_gaussian
from torchtagi.inference.conditioning import condition
from torchtagi.nn.mean_pass import mean_pass

FILE = Path(__file__).parents[1] / "results" / "ablation" / "large_batches.jsonl"
RATES = (3e-4, 1e-3, 3e-3, 1e-2)  # of Adam
TEST_BATCH = 500
OUTPUT_BOUND = tagi.Update.output_bound


def joint_direction(net: nn.Module, x: Tensor, var: Tensor, message: tuple[Tensor, Tensor], iterations: int) -> Any:
    """S Jᵀ u by conjugate gradients, preconditioned by diag(v + R), for the message (gradient, curvature)."""
    gradient, curvature = message
    seen = curvature != 0
    r = torch.where(seen, -gradient / torch.where(seen, curvature, 1.0), 0.0)
    noise = torch.where(seen, 1 / torch.where(seen, curvature, 1.0) - var, 1.0)
    parameters = dict(net.named_parameters())
    names = [name for name in parameters if name.endswith("mean")]
    means = {name: parameters[name].detach() for name in names}
    variances = {name: parameters[name[: -len("mean")] + "var"].detach() for name in names}

    def outputs(at: dict[str, Tensor]) -> Tensor:
        with mean_pass():
            return functional_call(net, at, (as_gaussian(x),)).mean

    _, pull_back = vjp(outputs, means)

    def to_weights(u: Tensor) -> dict[str, Tensor]:
        (slopes,) = pull_back(u * seen)
        return {name: variances[name] * slopes[name] for name in names}

    precondition = torch.where(seen, 1 / (var + noise), 1.0)
    u, left = torch.zeros_like(r), r
    direction = scaled = precondition * left
    square = (left * scaled).sum()
    for _ in range(iterations):
        product = seen * jvp(outputs, (means,), (to_weights(direction),))[1] + noise * direction
        length = square / (direction * product).sum()
        u, left = u + length * direction, left - length * product
        scaled = precondition * left
        before, square = square, (left * scaled).sum()
        direction = scaled + square / before * direction
    step = to_weights(u)
    q = float(sum((step[name].square() / variances[name].clamp_min(1e-20)).sum() for name in names))
    scale = min(1.0, OUTPUT_BOUND / math.sqrt(max(q, 1e-12)))
    return {name: scale * change for name, change in step.items()}


def learn_jointly(model: tagi.Classifier, x: Tensor, y: Tensor, iterations: int) -> None:
    """A full pass for the variances; the means go where the solve says."""
    net, update, likelihood = model.net, model.posterior, model.likelihood
    messages: list[tuple[Tensor, Tensor]] = []
    receive = update.receive

    def keep(call: Any, var: Tensor, gradient: Tensor, curvature: Tensor) -> tuple[Tensor, Tensor]:
        messages.append(receive(call, var, gradient, curvature))
        return messages[-1]

    update.receive = keep  # type: ignore[method-assign]
    try:
        z = net(as_gaussian(x))
        likelihood(z, y).backward()
    finally:
        del update.receive  # type: ignore[attr-defined]
    step = joint_direction(net, x, z.variance.detach(), messages[0], iterations)
    parameters = dict(net.named_parameters())
    before = {name: parameters[name].detach().clone() for name in step}
    update.step()
    update.zero_grad()
    with torch.no_grad():
        for name, change in step.items():
            parameters[name].copy_(before[name] + change)


def error_of(guess: Any, test: data.ImageSet) -> float:
    assert test.labels is not None
    with torch.no_grad():
        wrong = [
            int((guess(test.images[start : start + TEST_BATCH]) != test.labels[start : start + TEST_BATCH]).sum())
            for start in range(0, len(test.images), TEST_BATCH)
        ]
    return 100 * sum(wrong) / len(test.images)


def by_tagi(sets: data.TrainTest, config: Any, method: str, batch: int) -> tuple[float, float]:
    model = config.build(sets.train)
    x, y = sets.train.images, sets.train.labels
    model.calibrate(model.prepared(x[:16]))
    model.net.train()
    model.likelihood.train()
    model.posterior.passes.possible = method == "chunks"
    start = time.perf_counter()
    for rows in epoch_order(len(x), config.seed, 0).split(batch):
        inputs, labels = model.prepared(x[rows]), y[rows]
        if method.startswith("solve:"):
            learn_jointly(model, inputs, labels, int(method.removeprefix("solve:")))
        else:
            size = 16 if method == "chunks" else batch
            condition(model.net, model.likelihood, model.posterior, inputs, labels, size)
    seconds = time.perf_counter() - start
    model.net.eval()
    error = error_of(lambda x: model.likelihood.log_probs(model.net(model.prepared(x))).argmax(1), sets.test)
    return error, seconds


def by_adam(sets: data.TrainTest, config: Any, rate: float, batch: int) -> tuple[float, float]:
    torch.manual_seed(config.seed)
    net = networks.mnist_cnn(10, layers=nn).to(memory_format=torch.channels_last)
    optimizer, loss = torch.optim.Adam(net.parameters(), lr=rate), nn.CrossEntropyLoss()
    x, y = sets.train.images, sets.train.labels
    start = time.perf_counter()
    for rows in epoch_order(len(x), config.seed, 0).split(batch):
        optimizer.zero_grad()
        loss(net(x[rows]), y[rows]).backward()
        optimizer.step()
    seconds = time.perf_counter() - start
    net.eval()
    return error_of(lambda x: net(x).argmax(1), sets.test), seconds


def products(method: str) -> int:
    """TAGI's full pass has 7, a mean pass or an Adam step 3, an iteration of the solve 1 back and 2 forward."""
    name, _, iterations = method.partition(":")
    return {"adam": 3, "line": 7, "solve": 7 + 3 * int(iterations or 0), "chunks": 3}[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--methods", default="adam,chunks,line,solve:4,solve:10")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    torch.set_num_threads(1)
    some = {"samples": options.digits} if options.digits < 60_000 else {}
    config = configure("mnist", epochs=1, seed=options.seed, threads=1, **some)
    halves = config.split(data.load_train_test("mnist"))
    sets = data.TrainTest(*(half.to("cpu", torch.channels_last) for half in (halves.train, halves.test)))
    for method in options.methods.split(","):
        if method == "adam":
            found = {rate: by_adam(sets, config, rate, options.batch) for rate in RATES}
            rate = min(found, key=lambda rate: found[rate][0])
            (error, seconds), extra = found[rate], {"rates": {str(r): round(e, 2) for r, (e, _) in found.items()}}
        else:
            (error, seconds), extra = by_tagi(sets, config, method, options.batch), {}
        row = {
            **{"method": method, "digits": options.digits, "batch": options.batch, "seed": options.seed},
            **{"error": round(error, 2), "seconds": round(seconds, 1), "products": products(method), **extra},
        }
        text = options.out.read_text() if options.out.exists() else ""
        write_atomically(options.out, (text + json.dumps(row) + "\n").encode())
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
