"""What each part of our default is worth: short runs on CIFAR-10 that differ in one thing.

    python benchmarks/parts.py --json results/ablation/cifar_parts.jsonl

One pass over the first 10,000 training images, one thread, error on the first 5,000 test images (so ±0.7 %).
`training error` is that of each image before it was learned from, over the whole pass. `variance_left` is the mean
variance of each layer's weights relative to the prior's; `sharing` is ρ of each shared tensor (`inference.update`),
weights and biases in turn, averaged over the last hundred steps.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.train import EpochEnd, Step, Training, prior_network
from torchtagi.inference.prior import weighted_layers

NETWORKS = ("3conv", "3conv-ln", "3conv-bn")
SETTINGS: dict[str, dict[str, object]] = {
    "default": {},
    "sharing not counted": {"count_sharing": False},
    "hidden means at He's scale": {"signal_spread": 0.0},
    "norm's statistics constant": {"differentiate_statistics": False},
    "norm before ReLU": {"norm_first": True},
    "noise 1": {"noise_std": 1.0, "learn_noise": False},
    "paper": {"paper": True},
}


def applies(setting: str, network: str) -> bool:
    return network != "3conv" or not setting.startswith("norm")


def learn(network: str, setting: str, samples: int, seed: int) -> dict[str, object]:
    size = {"epochs": 1, "samples": samples, "test_samples": 5000}
    config = configure("cifar10", network, threads=1, seed=seed, **size, **SETTINGS[setting])
    training = Training(config)
    update = training.learner.posterior
    sharing: list[list[float]] = []
    row: dict[str, object] = {}
    for event in training.events():
        if isinstance(event, Step):
            sharing = [*sharing[-99:], update.sharing]
        if isinstance(event, EpochEnd):
            row = {
                key: round(event.row[key], 4)
                for key in ("error", "nll", "ece", "train_error", "noise_std", "alpha")
            }
    layers = zip(
        weighted_layers(training.learner.net), weighted_layers(prior_network(config, training.train)), strict=True
    )
    left = [(now.weight.var.mean() / before.weight.var.mean()).item() for now, before in layers]
    return {
        **{"network": network, "setting": setting, "images": samples, "seed": seed, **row},
        "variance_left": [round(share, 4) for share in left],
        "sharing": [round(sum(column) / len(column), 1) for column in zip(*sharing, strict=True)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="append the rows to this file; those it has are not run again")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = (
        [json.loads(line) for line in options.json.read_text().splitlines()]
        if options.json and options.json.exists()
        else []
    )
    done = {(row["network"], row["setting"], row["images"], row["seed"]) for row in rows}
    for seed in range(options.seeds):
        for network in options.networks:
            for setting in options.settings:
                if applies(setting, network) and (network, setting, options.samples, seed) not in done:
                    row = learn(network, setting, options.samples, seed)
                    print(row, flush=True)
                    if options.json:
                        with options.json.open("a") as file:
                            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
