"""All measures of a finished game, kept in its run folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchtagi.experiments import data
from torchtagi.experiments.data.cifar import CIFAR10_PREPROCESSING
from torchtagi.experiments.gan.config import GanConfig
from torchtagi.experiments.gan.judge import Judge, classifier_of, judge_from_run, quick_judge
from torchtagi.experiments.gan.measuring import DRAWN, copying, measure
from torchtagi.experiments.gan.tasks import find_gan_task
from torchtagi.experiments.gan.training import open_engine
from torchtagi.experiments.runs.folder import EVALUATION, Run, RunError

NEIGHBOURS = 200  # generated and held-out images whose nearest training image is looked for


def evaluate_gan(
    run: Run, judge_folder: str | None = None, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measure `run` and write `evaluation.json`.

    `judge_folder` names the run whose eyes are used: a `tagi train mnist` run for digits; for faces a classifier of
    CIFAR-10 or another game, whose features make Fréchet distances comparable. Without it the run's own choice, or
    for faces its own Dnet.
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
    eyes, name = None, "its own Dnet"
    if task.has_digits:
        wanted = judge_folder or config.judge or "quick"
        say(f"asking a judge: {wanted}")
        judge = quick_judge(train) if wanted == "quick" else judge_from_run(Run.open(wanted))
        name = judge.name
    elif judge_folder is not None:
        eyes, name = other_eyes(judge_folder, config.task, test)
    say(f"measuring {drawn:,} generated {task.thing}s")
    found = {**measure(engine, test, judge, drawn, eyes), "judge": name}
    say("looking for copies among the training images")
    found.update(copying(engine, train, test, min(NEIGHBOURS, len(test))))
    found["drawn"], found["epochs"] = drawn, len(run.metrics())
    run.write_json(EVALUATION, found)
    return found


def other_eyes(folder: str, task: str, test: data.ImageSet) -> tuple[Callable[[Tensor], Tensor], str]:
    """How another run sees images of `test`'s scale, (n, features), and who that is."""
    run = Run.open(folder)
    if run.config["task"] == task:
        return open_engine(run)[0].features, f"Dnet of {folder}"
    if run.config["task"] != "cifar10":  # the images of both have the same size
        raise RunError(
            f"{folder} was trained on {run.config['task']}: a judge of {task} is another such game or a classifier "
            "of cifar10"
        )
    classifier = classifier_of(run)

    def features(images: Tensor) -> Tensor:
        return classifier.look(CIFAR10_PREPROCESSING.apply(test.to_uint8(images)))[1]

    return features, f"classifier of {folder}"
