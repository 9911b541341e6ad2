"""Classes of real digits without labels and without a game: what Dnet and Qnet learn from their own readings.

    python benchmarks/gan_grouping.py --json results/ablation/gan_grouping.jsonl

The infoGAN's trunk and Qnet play `gan.grouping` alone on 9,600 digits, batches of 16, one thread, seed 0. Settings
differ in what is read, what the class is then observed at, and how many images are read at once. A setting takes
about a minute and a half.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from torchtagi.experiments import data
from torchtagi.experiments.gan.assignment import assign
from torchtagi.experiments.gan.config import configure_gan
from torchtagi.experiments.gan.game import teach_classes
from torchtagi.experiments.gan.grouping import BLOCK, balanced_classes, distorted
from torchtagi.experiments.gan.inference import InferenceEngine

IMAGES, BATCH, MEASURED = 9600, 16, 3200
SETTINGS: dict[str, tuple[bool, bool, int]] = {  # reads a copy, observes at a copy, images read at once
    "read of the image, observed at a copy": (False, True, BLOCK),
    "read of a copy, observed at another": (True, True, BLOCK),
    "read of a copy, observed at the image": (True, False, BLOCK),
    "read of the image, observed at a copy, batch by batch": (False, True, BATCH),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="append rows here")
    parser.add_argument("--only", help="settings that contain this text")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sets = data.load_train_test("mnist")
    for name, (reads_copy, observes_copy, block) in SETTINGS.items():
        if asked.only and asked.only not in name:
            continue
        for row in play(sets, copy_if(reads_copy), copy_if(observes_copy), block):
            row = {"setting": name, "seed": 0, **row}
            print(json.dumps(row), flush=True)
            if asked.json:
                with asked.json.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def copy_if(wanted: bool) -> Callable[[Tensor], Tensor]:
    return distorted if wanted else lambda images: images


def play(
    sets: data.TrainTest, read: Callable[[Tensor], Tensor], observed: Callable[[Tensor], Tensor], block: int
) -> list[dict[str, object]]:
    engine = InferenceEngine(configure_gan("infogan-mnist", threads=1, average=0))
    engine.begin_epoch(0)
    images = sets.train.images[data.epoch_order(len(sets.train), 0, 0)[:IMAGES]]
    rows: list[dict[str, object]] = []
    for start in range(0, IMAGES, block):
        part = images[start : start + block]
        classes = read_classes(engine, read(part))
        for x, y in zip(part.split(BATCH), classes.split(BATCH), strict=True):
            copies = observed(x).contiguous(memory_format=torch.channels_last)
            teach_classes(engine.game, copies, y[:, None], engine.real_codes)
        seen = start + block
        if seen % MEASURED == 0:
            _, codes = engine.opinions(sets.test.images)
            assert codes is not None
            assert sets.test.labels is not None
            found = assign(codes[:, 0], sets.test.labels)
            rows.append({"images": seen, "accuracy": found.accuracy, "own_codes": found.own_codes})
    return rows


def read_classes(engine: InferenceEngine, images: Tensor) -> Tensor:
    discriminator = engine.players.discriminator
    discriminator.eval()
    with torch.no_grad():
        parts = [engine.class_log_probs(discriminator(engine.seen(x)).codes)[0] for x in images.split(160)]
    discriminator.train()
    return balanced_classes(torch.cat(parts))


if __name__ == "__main__":
    main()
