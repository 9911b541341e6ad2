"""All numbers about a GAN: after each epoch, and once more with the check against copying.

accuracy, own_codes      Qnet on real test digits, codes assigned to digits
read_error               % of generated images that the judge does not read as the digit their code stands for
frechet                  Fréchet distance between features of real and generated images: the judge's, or Dnet's
c1_slant, …              correlation of each continuous code with measured slant and stroke width
fake_as_fake, …          Pnet's mean probability of "generated" for generated and for real test images
neighbour_ratio, …       distances to the nearest training image
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.experiments import data
from torchtagi.experiments.baselines.methods import configure_baseline
from torchtagi.experiments.classify.evaluation import load_model
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.data.cifar import CIFAR10_PREPROCESSING
from torchtagi.experiments.gan.config import GanConfig, open_gan
from torchtagi.experiments.gan.measures import code_effects, code_measures, copying, frechet_distance
from torchtagi.experiments.gan.model import Gan, mean_of
from torchtagi.experiments.runs.folder import EVALUATION, Run, RunError
from torchtagi.model import PREDICTION_BATCH
from torchtagi.prediction import ClassPrediction

MEASURE_SEED = 11  # every epoch and every run is measured at the same latent points
DRAWN = 2000
NEIGHBOURS = 200  # generated and held-out images whose nearest training image is looked for
QUICK_SEED = 2021  # the judge is the same for every run that is compared


# ---- the judge, a classifier that never saw a generated image ------------------------------------------------


@dataclass(frozen=True)
class Judge:
    """What predicts with `net`, whose layers but the last give features."""

    net: nn.Sequential
    predict: Callable[[Tensor], ClassPrediction]
    name: str

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """(n, f)"""
        parts = images.to(memory_format=torch.channels_last).split(PREDICTION_BATCH)
        return torch.cat([mean_of(self.net[:-1](x)) for x in parts])


def find_judge(name: str, train: data.ImageSet) -> Judge:
    """`quick`, or the classifier of that run folder."""
    return quick_judge(train.to("cpu")) if name == "quick" else judge_from_run(name, "mnist")


def judge_from_run(folder: str, task: str) -> Judge:
    """The classifier of a `tagi train` run: any can be a judge."""
    run = Run.open(folder)
    if run.config["task"] != task:
        raise RunError(f"{folder} was trained on {run.config['task']}: the judge here needs a {task} run")
    model = load_model(run)
    if not isinstance(model.predicting, nn.Sequential):
        raise RunError(f"{folder}: a judge needs a network of layers in sequence, to take its features from")
    return Judge(model.predicting, model.predict, folder)


def quick_judge(train: data.ImageSet, batch_size: int = 64) -> Judge:
    """The paper's CNN as an ordinary network, by an epoch of Adam, in half a minute; leaves the global random state
    as it was."""
    values = {"learning_rate": 2e-3, "schedule": "cosine"}
    length = {"epochs": 1, "batch_size": batch_size, "test_samples": 1}
    config = configure_baseline("mnist", "adam", None, values, seed=QUICK_SEED, **length)
    with torch.random.fork_rng(devices=[]):
        training = Training(config, sets=data.TrainTest(train, train))
        for _ in training.events():
            pass
    return Judge(training.learner.net.eval(), training.learner.predict, "cnn by Adam, 1 epoch")


# ---- measures ------------------------------------------------------------------------------------------------


def measure(
    gan: Gan,
    test: data.ImageSet,
    judge: Judge | None,
    features: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Any]:
    """What can be said after an epoch, in seconds. `features` (n, f) are those of Fréchet's distance where there is
    no judge, Dnet's unless given."""
    latents = gan.space.sample(min(DRAWN, len(test)), MEASURE_SEED)
    images = gan.draw(latents)
    real = test.images.cpu()
    of_real, codes = gan.classify(real, read_codes=test.labels is not None)
    of_images, _ = gan.classify(images, read_codes=False)
    found: dict[str, Any] = {
        "fake_as_fake": float(of_images.mean()),
        "real_as_fake": float(of_real.mean()),
    }
    # as they come out of a picture file: G's pixels may lie outside of the colours that there are
    shown = test.preprocessing.apply(test.to_uint8(images))
    features = features or (gan.features if judge is None else judge.features)
    found["frechet"] = frechet_distance(features(real), features(shown))
    read = None
    if judge is not None:
        read = judge.predict(shown).labels
        found.update(code_effects(latents, test.to_uint8(images).float() / 255))
    if codes is not None and test.labels is not None:
        found.update(code_measures(codes[:, 0], test.labels.cpu(), latents.categories[:, 0], read))
    return found


def evaluate_gan(
    run: Run, judge_folder: str | None = None, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measure `run` and write `evaluation.json`.

    `judge_folder` names the judge's run: of `tagi train mnist` for digits; of `tagi train cifar10` for faces, whose
    features make Fréchet distances comparable. Without it the run's own judge, or for faces its own Dnet.
    """
    say = progress or (lambda message: None)
    config = GanConfig.from_json(run.config)
    gan, _ = open_gan(run)
    say(f"loading {config.data}")
    sets = config.split(data.load_train_test(config.data))
    train, test = sets.train, sets.test
    judge, features, name = None, None, "its own Dnet"
    if config.kind.has_digits:
        judge = find_judge(judge_folder or config.judge or "quick", train)
        name = judge.name
    elif judge_folder is not None:
        classifier = judge_from_run(judge_folder, "cifar10")  # the images of both have the same size
        name = f"classifier of {judge_folder}"

        def features(images: Tensor) -> Tensor:
            return classifier.features(CIFAR10_PREPROCESSING.apply(test.to_uint8(images)))

    say("measuring generated images")
    found = {**measure(gan, test, judge, features), "judge": name}
    say("looking for copies among the training images")
    images = gan.draw(gan.space.sample(min(NEIGHBOURS, len(test)), MEASURE_SEED))
    shown = test.preprocessing.apply(test.to_uint8(images))
    found.update(copying(shown, train.images, test.images[:NEIGHBOURS]))
    found.update(drawn=min(DRAWN, len(test)), epochs=len(run.metrics()))
    run.write_json(EVALUATION, found)
    return found
