"""Fine-tuning by inference: a CNN that Adam has trained on five of the digits learns all ten from few images.

    python benchmarks/finetune.py --out results/finetune.json

The network of Appendix B.1.1 is trained on those of the first 50,000 MNIST digits that are 0 to 4, then converted
with its weights as prior means (`tagi.convert(net, from_weights=True)`). Beside it the same network from scratch.
Both learn the same digits of all ten classes, 30 epochs; error and NLL on the 10,000 test digits, three seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path

import torch

import torchtagi as tagi
from torchtagi.experiments import data
from torchtagi.experiments.networks import mnist_cnn
from torchtagi.fitting import epoch_order

PRIOR_STDS = (0.1, 0.3, 1.0)
SAMPLES = (100, 500)


def pretrained(seed: int, train: data.ImageSet, epochs: int = 2) -> torch.nn.Sequential:
    """The ordinary network after Adam has shown it the digits 0 to 4."""
    torch.manual_seed(seed)
    net = mnist_cnn(5, layers=torch.nn)
    few = train.labels[:50_000] < 5
    x, y = train.images[:50_000][few], train.labels[:50_000][few]
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for epoch in range(epochs):
        for rows in epoch_order(len(x), seed, epoch).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    net[-1] = torch.nn.Linear(150, 10)
    return net.eval()


def learned(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, test: data.ImageSet, seed: int) -> dict:
    torch.manual_seed(seed)
    model = tagi.Classifier(net, classes=10)
    model.fit((x, y), epochs=30, seed=seed, progress=False)
    scores = model.evaluate(test.images, test.labels)
    return {"error": scores["error"], "nll": round(scores["nll"], 4), "ece": round(scores["ece"], 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    train, test = data.load("mnist", "train"), data.load("mnist", "test")
    rows = []
    for seed in range(options.seeds):
        net = pretrained(seed, train)
        for samples in SAMPLES:
            few = 50_000 + epoch_order(10_000, seed, 0)[:samples]
            x, y = train.images[few], train.labels[few]
            torch.manual_seed(seed)
            starts = {"scratch": mnist_cnn(10)}
            starts |= {f"prior_std={s}": tagi.convert(net, from_weights=True, prior_std=s) for s in PRIOR_STDS}
            for start, net_then in starts.items():
                row = {"samples": samples, "start": start, "seed": seed, **learned(net_then, x, y, test, seed)}
                rows.append(row)
                print(json.dumps(row), flush=True)
    for samples, start in dict.fromkeys((row["samples"], row["start"]) for row in rows):
        own = [row for row in rows if (row["samples"], row["start"]) == (samples, start)]
        error, nll = (statistics.fmean(row[name] for row in own) for name in ("error", "nll"))
        print(f"{samples} digits, {start:>14}: {error:.2f} % error, NLL {nll:.3f}, mean of {len(own)} seeds")
    if options.out:
        asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        options.out.write_text(json.dumps({"commit": asked.stdout.strip(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
