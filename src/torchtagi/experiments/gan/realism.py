"""How real generated digits are, by an independent classifier's eyes, and what the continuous codes do to them.

read_error        share of images that the judge does not read as the digit their code stands for
digits_drawn      how many different digits the codes draw, each by the majority of its images
frechet           Fréchet distance between the judge's features of real and of generated images
c1_slant, …       correlation of each continuous code with measured slant and stroke width
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchtagi.experiments.gan.frechet import frechet_distance
from torchtagi.experiments.gan.judge import Judge
from torchtagi.experiments.gan.latent import Latents
from torchtagi.experiments.gan.strokes import correlation, slant, stroke_width

Measures = dict[str, float]


def realism(
    judge: Judge, images: Tensor, real: Tensor, codes: Tensor | None, digit_of: tuple[int, ...]
) -> Measures:
    """Of generated images (n, 1, 28, 28) in the data's own scale; `codes` are the classes they were drawn from, and
    `digit_of` says which digit each stands for. Without codes only the Fréchet distance is defined."""
    read, features = judge.look(images)
    _, real_features = judge.look(real)
    found: Measures = {"frechet": frechet_distance(real_features, features)}
    if codes is None:
        return found
    meant = torch.tensor(digit_of, device=codes.device)[codes]
    found["read_error"] = 100 * float((read != meant).float().mean())
    found["digits_drawn"] = float(digits_drawn(codes, read, len(digit_of)))
    return found


def digits_drawn(codes: Tensor, read: Tensor, classes: int) -> int:
    """How many different digits are the majority reading of some code's images."""
    drawn = set()
    for code in range(classes):
        here = read[codes == code]
        if len(here):
            counts = torch.bincount(here, minlength=classes)
            if 2 * int(counts.max()) > len(here):
                drawn.add(int(counts.argmax()))
    return len(drawn)


def code_effects(latents: Latents, brightness: Tensor) -> Measures:
    """What each continuous code does to the writing; `brightness` are the images with paper at 0."""
    measures = {"slant": slant(brightness), "width": stroke_width(brightness)}
    group = latents.categories[:, 0] if latents.categories.shape[1] else torch.zeros(len(latents), dtype=torch.long)
    return {
        f"c{place + 1}_{name}": correlation(latents.continuous[:, place], measure.cpu(), group)
        for place in range(latents.continuous.shape[1])
        for name, measure in measures.items()
    }
