"""The pair that flows through a network: a mean and a variance for every unit.

The units of one Gaussian are independent (TAGI keeps only the diagonal of the covariance). A variance of None
means *certain*: the layer that receives it then saves a product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchtagi.checks import require_values, require_variance


# A dataclass, because FSDP and DDP look into dataclasses, but into no other class, for a module's output tensors.
@dataclass(init=False, repr=False, eq=False, slots=True)
class Gaussian:
    """Independent Gaussian units N(mean, var); `var` None means they are known exactly."""

    mean: Tensor
    var: Tensor | None

    def __init__(self, mean: Tensor, var: Tensor | None = None) -> None:
        require_values("mean", mean)
        if var is not None:
            require_variance("var", var, mean)
        self.mean = mean
        self.var = var

    @staticmethod
    def trusted(mean: Tensor, var: Tensor | None) -> Gaussian:
        """Without checks: for layers, whose outputs are valid by construction."""
        pair = object.__new__(Gaussian)
        pair.mean = mean
        pair.var = var
        return pair

    # ---- shape -------------------------------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        return self.mean.shape

    @property
    def ndim(self) -> int:
        return self.mean.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.mean.dtype

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def __len__(self) -> int:
        return len(self.mean)

    def map(self, rearrange: Callable[[Tensor], Tensor]) -> Gaussian:
        """Apply one rearrangement (a view, an index, a copy) to mean and variance alike."""
        return Gaussian.trusted(rearrange(self.mean), None if self.var is None else rearrange(self.var))

    def __getitem__(self, index: Any) -> Gaussian:
        return self.map(lambda t: t[index])

    def reshape(self, *shape: int) -> Gaussian:
        return self.map(lambda t: t.reshape(*shape))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Gaussian:
        return self.map(lambda t: t.flatten(start_dim, end_dim))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Gaussian:
        return self.map(lambda t: t.unflatten(dim, tuple(sizes)))

    def permute(self, *dims: int) -> Gaussian:
        return self.map(lambda t: t.permute(*dims))

    def to(self, *args: Any, **kwargs: Any) -> Gaussian:
        return self.map(lambda t: t.to(*args, **kwargs))

    def detach(self) -> Gaussian:
        return self.map(lambda t: t.detach())

    # ---- sums: means add, variances add (branches are taken as independent) ------------------------------

    def __add__(self, other: Gaussian | Tensor | float) -> Gaussian:
        mean = self.mean + (other.mean if isinstance(other, Gaussian) else other)
        other_var = other.var if isinstance(other, Gaussian) else None
        if self.var is not None and other_var is not None:
            return Gaussian.trusted(mean, self.var + other_var)
        var = self.var if other_var is None else other_var
        return Gaussian.trusted(mean, var if var is None or var.shape == mean.shape else var.expand(mean.shape))

    __radd__ = __add__

    def __mul__(self, factor: object) -> Gaussian:
        """A known factor scales the standard deviation, hence the variance by its square."""
        if not isinstance(factor, int | float):
            return NotImplemented  # the product of two Gaussians is not one
        return Gaussian.trusted(self.mean * factor, None if self.var is None else self.var * factor**2)

    __rmul__ = __mul__

    # ---- use ---------------------------------------------------------------------------------------------

    @property
    def variance(self) -> Tensor:
        """The variance as a tensor, zeros where the units are certain."""
        return torch.zeros_like(self.mean) if self.var is None else self.var

    @property
    def std(self) -> Tensor:
        return self.variance.sqrt()

    def sample(self, *size: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw samples, `size` in front of the units' own shape."""
        shape = (*size, *self.shape)
        noise = torch.randn(shape, dtype=self.dtype, device=self.device, generator=generator)
        return self.mean + self.std * noise

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The central credible interval: it holds the unit with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, got {level}")
        half = self.std * float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))
        return self.mean - half, self.mean + half

    def log_prob(self, value: Tensor) -> Tensor:
        var = self.variance
        return -0.5 * ((value - self.mean) ** 2 / var + torch.log(2 * math.pi * var))

    # ---- hidden-state inference: an input asks for its message -------------------------------------------

    def requires_grad_(self, requires_grad: bool = True) -> Gaussian:
        """Ask for the message that the next `backward()` brings to these units."""
        self.mean.requires_grad_(requires_grad)
        if self.var is not None:
            self.var.requires_grad_(requires_grad)
        return self

    @torch.no_grad()
    def posterior(self) -> Gaussian:
        """What these units are after the message they asked for: m + v·dm and v + v²·dv."""
        if self.var is None or self.mean.grad is None or self.var.grad is None:
            raise RuntimeError(
                "posterior() needs a Gaussian with a variance that asked for its message: call "
                "requires_grad_() on it before the forward pass, and backward() on the evidence after it"
            )
        mean = self.mean.detach() + self.var * self.mean.grad
        # One message leaves a positive variance. Many add up as if independent, and might not: as in an update,
        # no more than nine tenths go at once.
        var = self.var.detach() * (1 + self.var.detach() * self.var.grad).clamp_min(0.1)
        return Gaussian.trusted(mean, var)

    def __repr__(self) -> str:
        return f"Gaussian(mean={self.mean!r}, var={self.var!r})"


def as_gaussian(x: Gaussian | Tensor, name: str = "input") -> Gaussian:
    """What a layer does first: a plain tensor is a certain input, and is checked here, once."""
    if isinstance(x, Gaussian):
        return x
    require_values(name, x)
    return Gaussian.trusted(x, None)


def cat(parts: Sequence[Gaussian], dim: int = 0) -> Gaussian:
    """Concatenate Gaussians along `dim`; a certain part has variance zero beside uncertain ones."""
    var = None
    if any(part.var is not None for part in parts):
        var = torch.cat([part.variance for part in parts], dim)
    return Gaussian.trusted(torch.cat([part.mean for part in parts], dim), var)


# torch.func and torch.export find tensors with pytree, and so did FSDP before torch 2.13.
pytree.register_pytree_node(
    Gaussian,
    lambda pair: ([pair.mean, pair.var], None),
    lambda children, _: Gaussian.trusted(*children),
    serialized_type_name="torchtagi.Gaussian",
)
