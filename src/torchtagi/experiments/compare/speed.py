"""What a step costs relative to Adam's: all methods in turn on the same images, in one go, the best of some rounds.

Runs of a comparison may have been made on different days beside different work; their seconds say how long they
took, not which method is the cheaper.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from torchtagi.experiments import data
from torchtagi.experiments.baselines import LEARNERS
from torchtagi.experiments.classify.config import TrainConfig
from torchtagi.experiments.classify.learner import Learner
from torchtagi.experiments.classify.tagi_learner import TagiLearner
from torchtagi.experiments.compare.running import AnyConfig

IMAGES = 256  # a multiple of every batch size in use
ROUNDS = 5


def seconds_per_image(configs: Mapping[str, AnyConfig], train: data.ImageSet) -> dict[str, float]:
    """By name; each configuration's own batch size. A method that diverges at once has none."""
    few = train.subset(slice(IMAGES)).to("cpu", torch.channels_last)
    learners = {name: learner_of(config, few, len(train)) for name, config in configs.items()}
    best: dict[str, float] = {}
    for attempt in range(ROUNDS + 1):
        for name, learner in learners.items():
            torch.set_num_threads(configs[name].threads)
            images = few.subset(slice(configs[name].samples))
            learner.start_epoch(0)
            start = time.perf_counter()
            try:
                for x, y in data.batches(images, configs[name].batch_size):
                    learner.learn(x, y)
            except FloatingPointError:  # learns nothing any more, and its steps cost something else
                continue
            spent = (time.perf_counter() - start) / len(images)
            if attempt:  # the first round warms up
                best[name] = min(spent, best.get(name, spent))
    return best


def learner_of(config: AnyConfig, few: data.ImageSet, images: int) -> Learner:
    """As in a run on all of its images, without holding them."""
    if isinstance(config, TrainConfig):
        return TagiLearner(config, few)
    return LEARNERS[config.method](config, images if config.samples is None else min(config.samples, images))
