"""The games that can be trained: data, latent space, and the networks of Appendix B for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torch import nn

from torchtagi.experiments import networks as models
from torchtagi.experiments.gan.latent import LatentSpace


@dataclass(frozen=True)
class GanTask:
    """`network` is the name in results; the noises are the paper's initial σ_P and σ_Q (§4)."""

    name: str
    network: str
    data: str
    space: LatentSpace
    dnet: Callable[..., nn.Module]
    pnet: Callable[..., nn.Module]
    qnet: Callable[..., nn.Module] | None
    gnet: Callable[..., nn.Module]
    reality_noise_std: float
    code_noise_std: float
    default_epochs: int
    thing: str

    @property
    def has_digits(self) -> bool:
        return self.data == "mnist"

    def one_hot(self) -> LatentSpace:
        """The latent space as an ordinary network takes it."""
        return replace(self.space, coding="one-hot")


GAN_TASKS: Mapping[str, GanTask] = {
    "infogan-mnist": GanTask(
        name="infogan-mnist",
        network="infogan",
        data="mnist",
        space=LatentSpace(62, (10,), 2),
        dnet=models.mnist_dnet,
        pnet=models.mnist_pnet,
        qnet=models.mnist_qnet,
        gnet=models.mnist_gnet,
        reality_noise_std=3.0,
        code_noise_std=3.0,
        default_epochs=15,
        thing="digit",
    ),
    "gan-mnist": GanTask(
        name="gan-mnist",
        network="gan",
        data="mnist",
        space=LatentSpace(62),
        dnet=models.mnist_dnet,
        pnet=models.mnist_pnet,
        qnet=None,
        gnet=models.mnist_gnet,
        reality_noise_std=3.0,
        code_noise_std=3.0,
        default_epochs=15,
        thing="digit",
    ),
    "infogan-celeba": GanTask(
        name="infogan-celeba",
        network="infogan",
        data="celeba",
        space=LatentSpace(128, (10,) * 10),
        dnet=models.celeba_dnet,
        pnet=models.celeba_pnet,
        qnet=models.celeba_qnet,
        gnet=models.celeba_gnet,
        reality_noise_std=3.0,
        code_noise_std=8.0,
        default_epochs=5,
        thing="face",
    ),
}


def find_gan_task(name: str) -> GanTask:
    if name not in GAN_TASKS:
        raise ValueError(f"there is no game {name!r}; there are {', '.join(GAN_TASKS)}")
    return GAN_TASKS[name]
