"""All measures of a finished game, kept in its run folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchtagi import data
from torchtagi.gan.config import GanConfig
from torchtagi.gan.engine import Engine
from torchtagi.gan.frechet import frechet_distance
from torchtagi.gan.judge import Judge, judge_from_run, quick_judge
from torchtagi.gan.measuring import DRAWN, MEASURE_SEED, as_shown, copying, measure
from torchtagi.gan.tasks import find_gan_task
from torchtagi.gan.training import open_engine
from torchtagi.runs import EVALUATION, Run, RunError

NEIGHBOURS = 200  # generated and held-out images whose nearest training image is looked for


def evaluate_gan(
    run: Run, judge_folder: str | None = None, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measure `run` and write `evaluation.json`.

    `judge_folder` names the run whose eyes are used: a `tagi train mnist` run for digits; for faces another game,
    whose Dnet's features make Fréchet distances comparable. Without it the run's own choice, or for faces its own
    Dnet.
    """
    say = progress or (lambda message: None)
    config = GanConfig.from_json(run.config)
    task = find_gan_task(config.task)
    engine, _ = open_engine(run)
    say(f"loading {task.data}")
    sets = data.load_train_test(task.data)
    train, test = sets.train.subset(slice(config.samples)), sets.test.subset(slice(config.test_samples))
    drawn = min(DRAWN, len(test))
    judge: Judge | None = None
    if task.has_digits:
        wanted = judge_folder or config.judge or "quick"
        say(f"asking a judge: {wanted}")
        judge = quick_judge(train) if wanted == "quick" else judge_from_run(Run.open(wanted))
    say(f"measuring {drawn:,} generated {task.thing}s")
    found = {**measure(engine, test, judge, drawn), "judge": "its own Dnet" if judge is None else judge.name}
    if judge is None and judge_folder is not None:
        found["frechet"] = frechet_by(open_other(judge_folder, config.task), engine, test, drawn)
        found["judge"] = f"Dnet of {judge_folder}"
    say("looking for copies among the training images")
    found.update(copying(engine, train, test, min(NEIGHBOURS, len(test))))
    found["drawn"], found["epochs"] = drawn, len(run.metrics())
    run.write_json(EVALUATION, found)
    return found


def open_other(folder: str, task: str) -> Engine:
    run = Run.open(folder)
    if run.config["task"] != task:
        raise RunError(f"{folder} was trained on {run.config['task']}: its Dnet cannot judge {task}")
    return open_engine(run)[0]


def frechet_by(eyes: Engine, engine: Engine, test: data.ImageSet, drawn: int) -> float:
    """Fréchet distance with the features of another game's Dnet."""
    images = engine.draw(engine.space.sample(drawn, torch.Generator().manual_seed(MEASURE_SEED)))
    return frechet_distance(eyes.features(test.images), eyes.features(as_shown(images, test)))
