"""Pseudo-labels of real images: what makes categorical codes the classes of the data.

infoGAN asks that a code can be read from the images drawn with it, and any ten sorts of images will do. Nothing
says that they should be those of the data. So Qnet classifies real images too, and observes the class of an image
at a distorted copy of it. A class is then something that survives shearing, turning, moving and scaling, as a digit
does and a slant does not (Ojha et al. 2020 do so for infoGAN by contrast, Asano et al. 2020 without a generator).

Left to itself, Qnet would agree with itself best by giving one class to all images. Pseudo-labels are therefore
assigned to a block of images at once, every class equally often: of all assignments that do so, the one that Qnet
finds likeliest, up to an entropy that makes it quick to find (Sinkhorn's iteration). In a batch of 16 the ten
digits do not have equal shares; in a block of hundreds they nearly do (docs/maths.md has figures).
"""

import math

import torch
from torch import Tensor, nn

BLOCK = 640  # images that are labelled at once
SHARPNESS = 10.0  # of the assignment, in standard deviations of the log-probabilities
ROUNDS = 20


class PseudoLabels(nn.Module):
    """The classes of the real images in the present block; a checkpoint keeps them."""

    classes: Tensor

    def __init__(self, batch_size: int, codes: int) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.batches = max(1, BLOCK // batch_size)
        most = self.batches * batch_size + 1  # an epoch's last batch may have one image more
        self.register_buffer("classes", torch.zeros(most, codes, dtype=torch.long))

    def begins_at(self, batch: int) -> bool:
        """Whether the epoch's batch of this number, from 0, is the first of a block."""
        return batch % self.batches == 0

    def assign(self, log_probs: list[Tensor]) -> None:
        """Label a block, from the log-probabilities (n, classes) of each categorical code."""
        classes = torch.stack([balanced_classes(each) for each in log_probs], 1)
        self.classes[: len(classes)] = classes.to(self.classes.device)

    def of_batch(self, batch: int, images: int) -> Tensor:
        """The classes of a batch of this block, (images, codes)."""
        start = batch % self.batches * self.batch_size
        return self.classes[start : start + images]


def balanced_classes(log_probs: Tensor) -> Tensor:
    """A class for each of n images from log-probabilities (n, classes), every class about equally often.

    An offset on each class is adjusted until log-probabilities + offset, normalised over the classes for each
    image, sum to n/classes over the images. What all images have in common is removed first, and what is left is
    stretched, so that differences decide however small they are.
    """
    if log_probs.ndim != 2 or not log_probs.numel():
        raise ValueError(f"log-probabilities must have shape (images, classes), got {tuple(log_probs.shape)}")
    n, classes = log_probs.shape
    score = log_probs.cpu().double()  # small, and not every device has doubles
    score = score - score.mean(0)
    spread = score.square().mean().sqrt()
    score = score * (SHARPNESS / spread) if spread > 0 else score
    offset = score.new_zeros(classes)
    for _ in range(ROUNDS):
        image = -torch.logsumexp(score + offset, 1, keepdim=True)
        offset = math.log(n / classes) - torch.logsumexp(score + image, 0)
    return (score + offset).argmax(1)
