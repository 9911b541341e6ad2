"""What shifts the balance of the infoGAN game: short runs on MNIST that differ in one or two things.

    python benchmarks/gan_balance.py --json results/ablation/gan_balance.jsonl --judge runs/demo

Each plays once through the first 20,000 digits, one thread, seed 0, and is measured as every run is
(`experiments.gan.measuring`); `train_…` are means over the epoch. A run takes about four minutes. Those with grain
played through all 60,000 (`--samples 60000`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from torchtagi.experiments.gan.config import configure_gan
from torchtagi.experiments.gan.training import GanTraining
from torchtagi.experiments.runs.resumable import EpochEnd

WITHOUT = {"real_code_noise_std": None, "code_noise_std": 0.5, "generator_code_noise_std": 2.0}  # no real codes
ONE = {**WITHOUT, "reality_noise_std": 1.0, "code_noise_std": 1.0, "continuous_noise_std": 1.0, "memory": None}
ONE |= {"generator_reality_noise_std": None, "generator_code_noise_std": None, "grain": 0.0, "code_gain": 1.0}
HALF = {**ONE, "code_noise_std": 0.5, "continuous_noise_std": 0.5}
MEMORY = {"memory": 20_000}
LOUDER = {"code_noise_std": 2.0}  # Qnet hears the classes of generated digits, as it did by default once
QUIET = {"generator_code_noise_std": 2.0, "generator_continuous_noise_std": 2.0}
SETTINGS: dict[str, dict[str, object]] = {
    "all noises 1, memory 20,000": {**ONE, **MEMORY},
    "all noises 1, memory 5,000": {**ONE, "memory": 5000},
    "codes 0.5": HALF,
    "codes 0.5, sharing not counted": {**HALF, "count_sharing": False},
    "codes 0.5, memory 20,000": {**HALF, **MEMORY},
    "codes 0.5, memory 20,000, two steps of G": {**HALF, **MEMORY, "generator_steps": 2},
    "codes 0.5, memory 20,000, labels 3 but 1 for G": {
        **HALF,
        **MEMORY,
        "reality_noise_std": 3.0,
        "generator_reality_noise_std": 1.0,
    },
    "codes 0.5 but 2 for G, memory 20,000": {**HALF, **MEMORY, **QUIET},
    "codes 0.5 but 2 for G, labels 1 but 3 for G, memory 20,000": {
        **HALF,
        **MEMORY,
        **QUIET,
        "generator_reality_noise_std": 3.0,
    },
    "grain 0.2": {**WITHOUT, "code_gain": 1.0, "generator_continuous_noise_std": 2.0},
    "grain 0.2, codes 5 for G": {
        **WITHOUT,
        "code_gain": 1.0,
        "generator_code_noise_std": 5.0,
        "generator_continuous_noise_std": 5.0,
    },
    "grain 0.2, code gain 4": {**WITHOUT, "code_gain": 4.0, "generator_continuous_noise_std": 2.0},
    "grain 0.2, code gain 2, continuous codes 0.5": WITHOUT,
    "grain 0.2, code gain 3, continuous codes 0.5": {**WITHOUT, "code_gain": 3.0},
    "real codes 0.5": {"code_noise_std": 0.5, "generator_code_noise_std": 2.0},
    "real codes 0.5, generated codes 2 but 1 for G": LOUDER,
    "real codes 0.5, generated codes 6 but 1 for G": {"code_noise_std": 6.0},
    "the default, continuous noise learned": {**LOUDER, "continuous_noise": "learned", "continuous_noise_std": 0.1},
    "the default, continuous noise predicted": {**LOUDER, "continuous_noise": "predicted"},
}
KEPT = (
    *("accuracy", "own_codes", "read_error", "digits_drawn", "frechet", "fake_as_fake", "real_as_fake"),
    *("pixel_std", "train_real", "train_fake", "train_code_error", "train_discriminator_alpha"),
    *("train_generator_alpha", "train_generator_innovation", "train_largest_pixel", "seconds"),
    *("c1_slant", "c1_width", "c2_slant", "c2_width"),
)


def play(name: str, samples: int, judge: str) -> dict[str, object]:
    size = {"samples": samples, "epochs": 1, "judge": judge, "average": 0}
    training = GanTraining(configure_gan("infogan-mnist", threads=1, **size, **SETTINGS[name]))
    row = next(event.row for event in training.events() if isinstance(event, EpochEnd))
    return {"setting": name, "images": samples, "seed": 0, **{key: round(row[key], 4) for key in KEPT}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--judge", default="quick", help="a run folder of `tagi train mnist`, or `quick`")
    parser.add_argument("--json", type=Path, help="append a line for each setting to this file")
    options = parser.parse_args()
    for name in options.settings:
        row = play(name, options.samples, options.judge)
        print(json.dumps(row), flush=True)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
