"""What shifts the balance of the infoGAN game: short runs on MNIST that differ in one thing each.

    python benchmarks/gan_balance.py --steps 500 --json results/ablation/gan_balance.jsonl

A row is the mean over a tenth of the run: Pnet's outputs for real and generated images before it learned and for
the latter after (−1 real, +1 generated), the share of codes that Qnet misread, both α, G's innovations relative to
what was predicted, and the largest pixel.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import torch

from torchtagi import data
from torchtagi.gan.config import configure_gan
from torchtagi.gan.inference import InferenceEngine

PLAIN = {"reality_noise_std": 3.0, "code_noise_std": 3.0, "continuous_noise_std": 3.0, "joint": False}
ONE = {"reality_noise_std": 1.0, "code_noise_std": 1.0, "continuous_noise_std": 1.0}
SETTINGS = {
    "noise 3, in turn": PLAIN,
    "noise 3, in turn, frozen share ignored": {**PLAIN, "count_frozen": False},
    "noise 3, joint": {**PLAIN, "joint": True},
    "noise 1, in turn": {**PLAIN, **ONE},
    "noise 1, joint": {**PLAIN, **ONE, "joint": True},
    "noise 1, codes 0.5, joint": {**ONE, "code_noise_std": 0.5, "continuous_noise_std": 0.5, "joint": True},
}


def play(name: str, changes: dict[str, object], steps: int, digits: data.ImageSet) -> list[dict[str, object]]:
    engine = InferenceEngine(configure_gan("infogan-mnist", threads=1, **changes))
    engine.begin_epoch(0)
    order = data.epoch_order(len(digits), 0, 0)
    rows, reports = [], []
    for step, x in enumerate(data.batches(digits.images, 16, order=order[: 16 * steps])):
        reports.append(dataclasses.asdict(engine.step(x.contiguous(memory_format=torch.channels_last), step)))
        if (step + 1) % max(steps // 10, 1) == 0:
            means = {key: round(sum(r[key] for r in reports) / len(reports), 3) for key in reports[0]}
            rows.append({"setting": name, "step": step + 1, **means})
            print(*(f"{key} {value}" if key != "setting" else value for key, value in rows[-1].items()), flush=True)
            reports = []
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--json", type=Path, help="append the rows to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    digits = data.load("mnist", "train")
    for name in options.settings:
        rows = play(name, SETTINGS[name], options.steps, digits)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            with options.json.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
