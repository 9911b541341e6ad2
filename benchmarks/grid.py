"""The grid that must not collapse: noise × batch × network × seed, default rule, few samples.

    python benchmarks/grid.py [--networks mnist-cnn] [--threads 1]

Each cell trains on 10,000 samples (2,000 at batch 1) and is tested on 2,000 images. Batches are conditioned on in
chunks of 16, the default; for comparison those of 64 and 256 are also taken whole, in one step. Rows go to
results/grid/<network>.jsonl as they are done; a restarted run does only what is missing. A cell has collapsed if a
value is not finite, a variance is not positive, or the error reaches the limit: 40 % on MNIST, 85 % on CIFAR-10,
where chance is 90 %. Exits with 1 if any has that was conditioned on in chunks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path

import torch

import torchtagi as tagi
from torchtagi import metrics
from torchtagi.experiments import data
from torchtagi.experiments import networks as models
from torchtagi.fitting import epoch_order

NETWORKS = {"mnist-cnn": ("mnist", models.mnist_cnn, 40.0), "cifar-3conv": ("cifar10", models.cifar_3conv, 85.0)}
NOISES = (0.03, 0.1, 0.3, 1.0)
BATCHES = (1, 16, 64, 256)
SEEDS = (0, 1)
RESULTS = Path(__file__).parent.parent / "results" / "grid"


def train_cell(
    network: str,
    noise_std: float,
    batch: int,
    seed: int,
    taken: str,
    train: data.ImageSet,
    test: data.ImageSet,
    samples: int,
    tested: int = 2000,
) -> dict[str, object]:
    """Train one cell and measure it."""
    _, build, limit = NETWORKS[network]
    torch.manual_seed(seed)
    net = build().to(memory_format=torch.channels_last)
    order = epoch_order(len(train), seed, 0)[:samples]
    tagi.use_relu_prior(net)
    tagi.match_prior(net, train.images[order[:16]])
    likelihood = tagi.HierarchicalClassification(10, noise_std)
    posterior = tagi.Update(net)
    start, alpha, worst = time.perf_counter(), 0.0, 0.0
    steps = 0
    finite = True
    for rows in order.split(batch):
        x, y = train.images[rows], train.labels[rows]
        try:
            tagi.condition(net, likelihood, posterior, x, y, chunk=batch if taken == "whole" else tagi.CHUNK)
        except FloatingPointError:
            finite = False
            break
        steps += 1
        alpha += posterior.reports[0]["alpha"]
        worst = max(worst, posterior.reports[0]["innovation"])
    seconds = time.perf_counter() - start
    variances = [value for name, value in net.named_parameters() if name.endswith(".var")]
    with torch.no_grad():
        z = [net(x) for x in test.images[:tested].split(500)]
        probs = torch.cat([likelihood.predict(part).probs for part in z])
    labels = test.labels[:tested]
    finite = finite and bool(torch.isfinite(probs).all())
    error = 100 * metrics.error_rate(probs, labels) if finite else 100.0
    smallest = min(var.min().item() for var in variances)
    return {
        "network": network,
        "noise_std": noise_std,
        "batch": batch,
        "seed": seed,
        "taken": taken,
        "samples": samples,
        "error": round(error, 2),
        "nll": round(metrics.nll(probs, labels), 4) if finite else None,
        "alpha": round(alpha / max(steps, 1), 4),
        "worst_innovation": round(worst, 2),
        "smallest_var": smallest,
        "seconds": round(seconds, 1),
        "collapsed": not (finite and smallest > 0 and math.isfinite(smallest) and error < limit),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="comma-separated; default: both")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    collapsed = 0
    for network in options.networks.split(","):
        if network not in NETWORKS:
            parser.error(f"unknown network {network!r}; there are {', '.join(NETWORKS)}")
        path = RESULTS / f"{network}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        done = {(row["noise_std"], row["batch"], row["seed"], row["taken"]) for row in rows}
        train, test = (
            data.load(NETWORKS[network][0], split).to("cpu", torch.channels_last) for split in ("train", "test")
        )
        for cell in itertools.product(NOISES, BATCHES, SEEDS, ("chunks", "whole")):
            if cell in done or (cell[1] <= tagi.CHUNK and cell[3] == "whole"):
                continue
            row = train_cell(network, *cell, train, test, 2_000 if cell[1] == 1 else 10_000)
            rows.append(row)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps(row), flush=True)
        lost = [row for row in rows if row["collapsed"]]
        collapsed += sum(row["taken"] == "chunks" for row in lost)
        print(f"{network}: {len(rows)} cells, collapsed: {lost or 'none'}")
        print(f"{'mean error % at noise':<24}" + "".join(f"{noise:>8}" for noise in NOISES))
        for batch, taken in itertools.product(BATCHES, ("chunks", "whole")):
            errors = [
                [r["error"] for r in rows if (r["batch"], r["taken"], r["noise_std"]) == (batch, taken, noise)]
                for noise in NOISES
            ]
            if all(errors):
                print(f"{f'batch {batch}, {taken}':<24}" + "".join(f"{sum(e) / len(e):>8.1f}" for e in errors))
    sys.exit(1 if collapsed else 0)


if __name__ == "__main__":
    main()
