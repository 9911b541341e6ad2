"""The GANs that can be trained: data, latent space, the networks of Appendix B, and the constants of a step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import nn

from torchtagi.experiments.data import find_named
from torchtagi.experiments.gan.latent import LatentSpace
from torchtagi.experiments.networks import generative


class Noises(NamedTuple):
    """Standard deviations of what the heads observe in one of the two steps, before their decay."""

    labels: float  # σ_P, of real or generated: larger, and D learns slower to tell images apart
    codes: float  # σ_Q, of the categorical codes
    continuous: float  # of the continuous codes: small in both, they keep the images of one code different


@dataclass(frozen=True)
class Constants:
    """The constants of a step. docs/maths.md says how ours were found: by ablations."""

    discriminator: Noises
    generator: Noises
    pseudo_label_noise_std: float | None = None
    """Noise with which Qnet observes pseudo-labels of real images (`gan.pseudo_labels`); None: there are none."""
    instance_noise: float = 0.2
    """Standard deviation of the noise on every pixel that D sees, drawn anew each time (Arjovsky and Bottou 2017):
    without it the exactly constant background of real digits tells them from generated ones."""
    code_gain: float = 2.0
    """With 1 the noise decides the digit, with 4 each code draws one shape (`networks.scale_prior`)."""
    deep_prior: bool = False
    """For a generator six layers deep (`networks.scale_prior`)."""
    horizon: int | None = 20_000
    """After how many images knowledge fades (`Update`): what was learned of images that G no longer draws is not
    evidence of those it draws now. None: never."""
    average: int = 500
    """Images are drawn, and codes read, by the mean of about so many states of the networks; 0: by the last."""
    paper: bool = False
    """The paper's step: its update rule, and real and generated images one after the other. Ours takes both in one
    batch, because the second of two pushes D's outputs towards "generated" for everything."""


def paper_constants(code_noise_std: float) -> Constants:
    """§4: σ_P = 3, one σ_Q for all codes, and nothing that is ours."""
    noises = Noises(3.0, code_noise_std, code_noise_std)
    return Constants(noises, noises, instance_noise=0.0, code_gain=1.0, horizon=None, average=0, paper=True)


# D soon sees what is wrong with digits, so its labels are noisier than those of the generator step. What a class is
# Qnet learns from pseudo-labels; were it to learn it from generated digits too, it would call them whatever G drew.
DIGITS = Constants(Noises(3.0, 20.0, 0.5), Noises(1.0, 1.0, 0.5), pseudo_label_noise_std=0.5)
# Ten codes of four nodes each outweigh one label unless they are noisier. What the codes of faces should be is not
# known, so they have no pseudo-labels.
FACES = Constants(Noises(1.0, 3.0, 0.5), Noises(1.0, 3.0, 0.5), deep_prior=True)


@dataclass(frozen=True)
class GanTask:
    """`network` is the name in results."""

    name: str
    network: str
    data: str
    space: LatentSpace
    networks: tuple[Callable[..., nn.Module], ...]
    """Dnet, Pnet, Qnet, Gnet."""
    default: Constants
    paper: Constants
    default_epochs: int

    @property
    def has_digits(self) -> bool:
        return self.data == "mnist"


INFOGAN_MNIST = GanTask(
    name="infogan-mnist",
    network="infogan",
    data="mnist",
    space=LatentSpace(62, (10,), 2),
    networks=(generative.mnist_dnet, generative.mnist_pnet, generative.mnist_qnet, generative.mnist_gnet),
    default=DIGITS,
    paper=paper_constants(3.0),
    default_epochs=15,
)
GAN_MNIST = replace(
    INFOGAN_MNIST,
    name="gan-mnist",
    network="gan",
    space=LatentSpace(62),
    default=replace(DIGITS, pseudo_label_noise_std=None),
)
INFOGAN_CELEBA = GanTask(
    name="infogan-celeba",
    network="infogan",
    data="celeba",
    space=LatentSpace(128, (10,) * 10),
    networks=(generative.celeba_dnet, generative.celeba_pnet, generative.celeba_qnet, generative.celeba_gnet),
    default=FACES,
    paper=paper_constants(8.0),
    default_epochs=5,
)
GAN_TASKS: Mapping[str, GanTask] = {task.name: task for task in (INFOGAN_MNIST, GAN_MNIST, INFOGAN_CELEBA)}


def find_gan_task(name: str) -> GanTask:
    return find_named("GAN", name, GAN_TASKS)
