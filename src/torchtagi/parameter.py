"""A Gaussian parameter: the only things in a network that learn.

`mean` and `var` are ordinary `torch.nn.Parameter`s, so `state_dict`, `.to()`, DDP and FSDP treat them as usual.
After `backward()` their `.grad` holds the summed message (dmean, dvar), which `torchtagi.Update` applies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.checks import require_positive, require_values


def prior_std(prior: str, fan_in: int, fan_out: int) -> float:
    """The standard deviation of a prior. What the authors' code calls He is `lecun`; `he` is He et al.'s value for
    ReLU."""
    variances = {"lecun": 1 / fan_in, "he": 2 / fan_in, "xavier": 2 / (fan_in + fan_out)}
    if prior not in variances:
        raise ValueError(f"prior must be one of {', '.join(variances)}, got {prior!r}")
    return math.sqrt(variances[prior])


class Positions:
    """At how many spatial positions of a sample a shared parameter acted in the last forward pass."""

    count: float = math.inf


class GaussianParameter(nn.Module):
    """N(mean, var) for each entry of a tensor of weights.

    The prior's variance is std²; its mean is drawn from N(0, std²), so that units of a layer differ.

    `shared` says that each entry acts at many positions of a sample, as a convolution's do, and at how many;
    `Update` counts it. `given` says that the prior is the user's own (`set_`): `calibrate_prior` leaves it alone.
    `learned` says that an `Update` has written it.
    """

    given = False
    learned = False
    calibration = (1.0, 1.0)
    """By which factors `calibrate_prior` has multiplied the prior's means and variances."""

    @property
    def calibrated(self) -> bool:
        return self.calibration != (1.0, 1.0)

    def __init__(
        self,
        shape: Sequence[int],
        std: float = 1.0,
        *,
        shared: Positions | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        require_positive("std", std)
        self.shared = shared
        mean, var = (torch.empty(*shape, device=device, dtype=dtype) for _ in range(2))
        if not mean.is_meta:  # no memory to fill, and finding that out takes torch half a millisecond
            mean.normal_(0.0, std)
            var.fill_(std**2)
        self.mean, self.var = nn.Parameter(mean), nn.Parameter(var)

    def pair(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, past `nn.Module`'s attribute look-up, which costs small networks dear."""
        tensors = self._parameters
        return tensors["mean"], tensors["var"]  # type: ignore[return-value]

    @torch.no_grad()
    def set_(self, mean: float | Tensor, var: float | Tensor, *, given: bool = True) -> GaussianParameter:
        """Set mean and variance to a prior of your own, or to a posterior that you know."""
        require_positive("var", var)
        if isinstance(mean, Tensor):
            require_values("mean", mean)
        new = [
            value.expand_as(self.mean) if isinstance(value, Tensor) else torch.full_like(self.mean, value)
            for value in (mean, var)
        ]
        self.mean.copy_(new[0])
        self.var.copy_(new[1])
        self.given = given
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Refuse what is no Gaussian; `load_state_dict` collects the reasons and raises them together."""
        try:
            for name in ("mean", "var"):
                value = state_dict.get(prefix + name)
                if isinstance(value, Tensor) and not value.is_meta:
                    require_values(prefix + name, value)
                    if name == "var" and not bool((value > 0).all()):  # fit for shards, which may be empty
                        raise ValueError(f"{prefix}var must be positive, got {value.min().item()}")
        except (TypeError, ValueError) as error:
            rest[-1].append(str(error))
        else:
            super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"{tuple(self.mean.shape)}"


def ordinary_parameters(net: nn.Module) -> list[nn.Parameter]:
    """The parameters of `net` that are no Gaussian ones: for a torch optimizer beside an `Update`."""
    ordinary = [part for part in net.modules() if not isinstance(part, GaussianParameter)]
    return list(dict.fromkeys(parameter for part in ordinary for parameter in part.parameters(recurse=False)))


def gaussian_parameters(modules: Iterable[nn.Module]) -> list[GaussianParameter]:
    """All of these modules', each once."""
    parts = (part for module in modules for part in module.modules())
    return list(dict.fromkeys(part for part in parts if isinstance(part, GaussianParameter)))
