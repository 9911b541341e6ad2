"""A GAN that can be trained, saved and evaluated, by inference (`step`) or by backprop (`backprop`)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.experiments.gan.latent import Latents, LatentSpace
from torchtagi.experiments.gan.networks import Networks
from torchtagi.experiments.gan.pseudo_labels import PseudoLabels
from torchtagi.experiments.gan.tasks import Constants
from torchtagi.gaussian import Gaussian
from torchtagi.inference.average import Average

EVALUATION_BATCH = 500  # fast enough, and small enough for a few hundred MB

Report = dict[str, float]
"""What happened in a step:

real, fake, fooled      Pnet's mean output, −1 real and +1 generated: for real and generated images before D learned
                        from them, and for the generated ones after
code_error              the share of the categorical codes that Qnet read wrongly before it learned
discriminator_alpha, generator_alpha, generator_innovation    of the updates; by inference only
largest_pixel           |mean| of the generated images: divergence shows here first
"""


class Gan(ABC):
    """`state` holds whatever a checkpoint keeps besides the networks."""

    def __init__(self, networks: Networks, space: LatentSpace, constants: Constants, batch_size: int = 16) -> None:
        self.networks, self.space, self.constants = networks, space, constants
        self.device = next(networks.parameters()).device
        self.state = nn.ModuleDict()
        self.pseudo_labels = None
        if constants.pseudo_label_noise_std is not None:
            self.pseudo_labels = PseudoLabels(batch_size, len(space.categories)).to(self.device)
            self.state["pseudo_labels"] = self.pseudo_labels
        self.average = None
        if constants.average:
            self.average = Average(networks, constants.average)
            self.state["average"] = self.average.net

    @abstractmethod
    def begin_epoch(self, epoch: int) -> None:
        """Set what changes from epoch to epoch; epochs count from 0."""

    @abstractmethod
    def step(self, real: Tensor, batch: int) -> Report:
        """Learn from a batch of real images, the epoch's so-manieth from 0. Latent points come from torch's global
        generator."""

    @abstractmethod
    def class_log_probs(self, codes: Any) -> list[Tensor]:
        """(n, classes) for each categorical code, by Qnet's outputs."""

    @abstractmethod
    def generated_probability(self, labels: Any) -> Tensor:
        """By Pnet's outputs."""

    def assign_pseudo_labels(self, images: Tensor) -> None:
        """Label the real images of the next batches."""
        assert self.pseudo_labels is not None
        with evaluating(self.networks):
            outputs = [self.networks.discriminator(self.noisy(x)) for x in images.split(EVALUATION_BATCH)]
            found = [self.class_log_probs(output.codes) for output in outputs]
        self.pseudo_labels.assign([torch.cat(parts) for parts in zip(*found, strict=True)])

    def noisy(self, images: Any) -> Any:
        """Images with instance noise, drawn on the CPU, so that every device draws the same."""
        std, mean = self.constants.instance_noise, mean_of(images)
        return images + std * torch.randn(mean.shape).to(mean) if std else images

    # ---- evaluation: by the averaged networks, in batches, without a trace -------------------------------

    @property
    def shown(self) -> Networks:
        """The networks that draw and classify in an evaluation; training does not use their average."""
        shown = self.networks if self.average is None else self.average.net
        assert isinstance(shown, Networks)
        return shown

    def draw(self, latents: Latents) -> Tensor:
        """The images of these latent points, in the data's scale, on the CPU; a Gaussian's means."""
        return self.in_batches(lambda x: mean_of(self.shown.generator(x)), self.space.encode(latents))

    def features(self, images: Tensor) -> Tensor:
        """Dnet's features of images, (n, f)."""
        return self.in_batches(lambda x: mean_of(self.shown.discriminator.dnet(x)), images)

    def classify(self, images: Tensor, read_codes: bool = True) -> tuple[Tensor, Tensor | None]:
        """Pnet's probability that each image is generated, (n,), and Qnet's likeliest class of each categorical
        code, (n, codes)."""
        read_codes = read_codes and bool(self.space.categories)
        probabilities, classes = [], []
        with evaluating(self.shown):
            for x in images.split(EVALUATION_BATCH):
                output = self.shown.discriminator(x.to(self.device), codes_from=0 if read_codes else None)
                probabilities.append(self.generated_probability(output.labels).flatten().cpu())
                if read_codes:
                    classes.append(likeliest(self.class_log_probs(output.codes)).cpu())
        return torch.cat(probabilities), torch.cat(classes) if read_codes else None

    def in_batches(self, function: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        with evaluating(self.shown):
            return torch.cat([function(x.to(self.device)).cpu() for x in inputs.split(EVALUATION_BATCH)])


def likeliest(log_probs: list[Tensor]) -> Tensor:
    """(n, codes) from the log-probabilities (n, classes) of each code."""
    return torch.stack([each.argmax(1) for each in log_probs], 1)


def mean_of(output: Gaussian | Tensor) -> Tensor:
    return output.mean if isinstance(output, Gaussian) else output


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, and back to each part's own mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
