"""What a step costs relative to Adam's: all methods in turn on the same images, in one go, the best of some rounds.

Runs of a comparison may have been made on different days beside different work; their seconds say how long they
took, not which method is the cheaper.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from torchtagi import data
from torchtagi.baselines.training import RivalTraining
from torchtagi.comparison.running import AnyConfig
from torchtagi.config import TrainConfig
from torchtagi.loop import Loop
from torchtagi.train import Training

IMAGES = 256  # a multiple of every batch size in use
ROUNDS = 5


def seconds_per_image(configs: Mapping[str, AnyConfig], sets: data.TrainTest) -> dict[str, float]:
    """By name; each configuration's own batch size. A method that diverges at once has none."""
    loops: dict[str, Loop[TrainConfig] | RivalTraining] = {
        name: Training(config, sets=sets) if isinstance(config, TrainConfig) else RivalTraining(config, sets=sets)
        for name, config in configs.items()
    }
    best: dict[str, float] = {}
    for attempt in range(ROUNDS + 1):
        for name, loop in loops.items():
            images = min(IMAGES, len(loop.train))
            loop.learner.start_epoch(0)
            batches = data.batches(loop.train.subset(slice(images)), loop.config.batch_size, shuffle=False)
            start = time.perf_counter()
            try:
                for x, y in batches:
                    loop.learner.learn(x, y)
            except FloatingPointError:  # learns nothing any more, and its steps cost something else
                continue
            spent = (time.perf_counter() - start) / images
            if attempt:  # the first round warms up
                best[name] = min(spent, best.get(name, spent))
    return best
