"""All numbers about a game that is being played, by the measures of their own files.

accuracy, own_codes    Qnet on real test digits, codes assigned to digits (`assignment`)
read_error, …          the judge on generated digits (`realism`)
frechet                between features of real and generated images: the judge's, or without one Dnet's own or
                       other eyes'; like the judge's reading, of images with their pixels clipped to the colours
                       that there are
fake_as_fake, …        Pnet's mean probability of "generated" for generated and for real test images
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtagi.experiments import data
from torchtagi.experiments.gan.assignment import Assignment, assign
from torchtagi.experiments.gan.engine import Engine
from torchtagi.experiments.gan.frechet import frechet_distance
from torchtagi.experiments.gan.judge import Judge
from torchtagi.experiments.gan.neighbours import nearest_neighbours
from torchtagi.experiments.gan.realism import code_effects, realism

MEASURE_SEED = 11  # every epoch and every run is measured at the same latent points
DRAWN = 2000


def measure(
    engine: Engine,
    test: data.ImageSet,
    judge: Judge | None,
    drawn: int = DRAWN,
    eyes: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Any]:
    """What can be said after an epoch, in seconds; lists for the readers of one run, numbers for tables.

    Without a judge, `eyes` maps images to the features (n, f) that are compared, as Dnet does unless given.
    """
    latents = engine.space.sample(drawn, torch.Generator().manual_seed(MEASURE_SEED))
    images = engine.draw(latents)
    real = test.images.cpu()
    real_probability, read = engine.opinions(real, read_codes=test.labels is not None)
    fake_probability, _ = engine.opinions(images, read_codes=False)
    found: dict[str, Any] = {
        "fake_as_fake": float(fake_probability.mean()),
        "real_as_fake": float(real_probability.mean()),
        "pixel_mean": float(images.mean()),
        "pixel_std": float(images.std()),
        "pixel_largest": float(images.abs().max()),
    }
    assignment = assignment_on(test, read)
    if assignment is not None:
        found.update(
            {
                "error": round(100 * (1 - assignment.accuracy), 4),
                "accuracy": assignment.accuracy,
                "own_codes": assignment.own_codes,
                "digit_of_code": list(assignment.digit_of),
                "codes_by_digits": assignment.table.tolist(),
            }
        )
    shown = as_shown(images, test)
    if judge is not None:
        codes = latents.categories[:, 0] if engine.space.categories else None
        found.update(realism(judge, shown, real, codes, assignment.digit_of if assignment else ()))
        found.update(code_effects(latents, brightness(images, test)))
    else:
        eyes = eyes or engine.features
        found["frechet"] = frechet_distance(eyes(real), eyes(shown))
    return found


def assignment_on(test: data.ImageSet, read: Tensor | None) -> Assignment | None:
    if test.labels is None or read is None or not read.shape[1]:
        return None
    return assign(read[:, 0], test.labels.cpu(), max(len(test.classes), 2))


def copying(engine: Engine, train: data.ImageSet, test: data.ImageSet, drawn: int = 500) -> dict[str, float]:
    """The check against copying, on at most `drawn` generated and held-out images."""
    images = engine.draw(engine.space.sample(drawn, torch.Generator().manual_seed(MEASURE_SEED)))
    found = nearest_neighbours(as_shown(images, test), train.images, test.images[:drawn])
    return {"neighbour_ratio": found.ratio, "neighbour_closest_share": found.closest_share}


def as_shown(images: Tensor, images_like: data.ImageSet) -> Tensor:
    """As they come out of a picture file: G's pixels may lie outside of the colours that there are."""
    return images_like.preprocessing.apply(images_like.to_uint8(images))


def brightness(images: Tensor, images_like: data.ImageSet) -> Tensor:
    """From the network's scale to 0…1, paper at 0."""
    return images_like.to_uint8(images).float() / 255
