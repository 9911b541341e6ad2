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

from torchtagi.checks import require_values, require_variance
from torchtagi.compat import pytree


# A dataclass, because FSDP and DDP look into dataclasses, but into no other class, for a module's output tensors.
@dataclass(init=False, repr=False, eq=False, slots=True)
class Gaussian:
    """Independent Gaussian units N(mean, var); `var` None means they are known exactly.

    What autograd carries back to `mean` and `var` is a message: a gradient and a curvature. Ordinary tensors in
    front of Gaussian layers are owed the gradient of the loss instead. Where one of them requires it, `plain` holds
    the same moments once more, as ordinary differentiable functions of it.

    Torch's functions and a tensor's methods work on it where they have a Gaussian meaning (`torchtagi.functions`),
    but for `x.mean(dim)`: `mean` is an attribute here, so write `torch.mean(x, dim)`.
    """

    mean: Tensor
    var: Tensor | None
    plain: Gaussian | None

    def __init__(self, mean: Tensor, var: Tensor | None = None, plain: Any = ...) -> None:
        if plain is not ...:  # all fields, by the `dataclasses.replace` of FSDP: what carries messages carries on
            self.mean, self.var, self.plain = mean, var, plain
            return
        require_values("mean", mean)
        if var is not None:
            require_variance(var, mean)
        self.mean, self.var, self.plain = mean, var, None
        if torch.is_grad_enabled() and (mean.requires_grad or (var is not None and var.requires_grad)):
            self.plain = Gaussian.trusted(mean, var)
            self.mean, self.var = mean.detach(), None if var is None else var.detach()

    @staticmethod
    def trusted(mean: Tensor, var: Tensor | None, plain: Gaussian | None = None) -> Gaussian:
        """Without checks: for layers, whose outputs are valid by construction."""
        pair = object.__new__(Gaussian)
        pair.mean, pair.var, pair.plain = mean, var, plain
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

    @property
    def T(self) -> Gaussian:
        """The transpose of a Gaussian with two dimensions."""
        return self.map(lambda t: t.t())

    def __len__(self) -> int:
        return len(self.mean)

    def map(self, rearrange: Callable[[Tensor], Tensor]) -> Gaussian:
        """Apply one rearrangement (a view, an index, a copy) to mean and variance alike."""
        var = None if self.var is None else rearrange(self.var)
        plain = None if self.plain is None else self.plain.map(rearrange)
        return Gaussian.trusted(rearrange(self.mean), var, plain)

    def __getitem__(self, index: Any) -> Gaussian:
        return self.map(lambda t: t[index])

    # ---- arithmetic with independent Gaussians, and with what is known ----------------------------------------

    def __add__(self, other: Gaussian | Tensor | float) -> Gaussian:
        return lift(add_moments, self, other)

    __radd__ = __add__

    def __sub__(self, other: Gaussian | Tensor | float) -> Gaussian:
        return self + -1 * other

    def __rsub__(self, other: Tensor | float) -> Gaussian:
        return -self + other

    def __neg__(self) -> Gaussian:
        return self * -1

    def __mul__(self, factor: Any) -> Gaussian:
        """A known factor scales the standard deviation, hence the variance by its square."""
        if isinstance(factor, Gaussian):
            raise TypeError("mul: the product of two Gaussians is no Gaussian; multiply by a number or a tensor")
        if not isinstance(factor, int | float | Tensor):
            return NotImplemented
        return lift(scale_moments, self, factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Tensor | float) -> Gaussian:
        return self * (1 / divisor)

    def __rtruediv__(self, dividend: Any) -> Gaussian:
        raise TypeError("div: what is divided by a Gaussian is no Gaussian; divide by a number or a tensor")

    def __matmul__(self, known: Tensor) -> Gaussian:
        return torch.matmul(self, known)  # type: ignore[arg-type, return-value]

    # ---- torch's functions and a tensor's other methods ------------------------------------------------------

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torchtagi import functions  # which needs the layers, and they need this file

        return functions.apply(function.__name__, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        from torchtagi import functions

        return functions.method(self, name)

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
        """One log-density for each unit."""
        if value.shape != self.shape:
            raise ValueError(f"value must have the units' shape {tuple(self.shape)}, got {tuple(value.shape)}")
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
        """What these units are after the message they asked for: m − v·gradient and v − v²·curvature."""
        if self.var is None or self.mean.grad is None or self.var.grad is None:
            raise RuntimeError(
                "posterior() needs a Gaussian with a variance that asked for its message: call "
                "requires_grad_() on it before the forward pass, and backward() on the loss after it"
            )
        mean = self.mean.detach() - self.var * self.mean.grad
        # One message leaves a positive variance. Many add up as if independent, and might not: as in an update,
        # no more than nine tenths go at once.
        var = self.var.detach() * (1 - self.var.detach() * self.var.grad).clamp_min(0.1)
        return Gaussian.trusted(mean, var)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mean={self.mean!r}, var={self.var!r})"


def as_gaussian(x: Gaussian | Tensor, finite: bool = False) -> Gaussian:
    """What a layer does first: a plain tensor is a certain input, and is checked here, once, unless it is known to
    be finite."""
    if isinstance(x, Gaussian):
        return x
    if not finite:
        require_values("input", x)
    if x.requires_grad and torch.is_grad_enabled():
        return Gaussian.trusted(x.detach(), None, Gaussian.trusted(x, None))
    return Gaussian.trusted(x, None)


Moments = tuple[Tensor, Tensor | None]


def lift(rule: Callable[..., Moments], *operands: Any) -> Gaussian:
    """A rule for moments, made of differentiable torch functions that are linear in means and in variances, applied
    to Gaussians and to what is known. The messages go to the Gaussians alone; ordinary operands that require a
    gradient get theirs by the plain moments."""
    asks = [x.plain is not None for x in operands if isinstance(x, Gaussian)]
    asks += [x.requires_grad for x in operands if isinstance(x, Tensor)]
    if not (any(asks) and torch.is_grad_enabled()):
        return Gaussian.trusted(*rule(*operands))
    known = [x.detach() if isinstance(x, Tensor) else x for x in operands]
    plain = [plain_of(x) if isinstance(x, Gaussian) else x for x in operands]
    return Gaussian.trusted(*rule(*known), Gaussian.trusted(*rule(*plain)))


def plain_of(x: Gaussian) -> Gaussian:
    return x.map(Tensor.detach) if x.plain is None else x.plain


def add_moments(a: Gaussian, b: Gaussian | Tensor | float) -> Moments:
    """Means add; variances add, as if the two were independent."""
    mean = a.mean + (b.mean if isinstance(b, Gaussian) else b)
    other_var = b.var if isinstance(b, Gaussian) else None
    if a.var is not None and other_var is not None:
        return mean, a.var + other_var
    var = a.var if other_var is None else other_var
    return mean, var if var is None or var.shape == mean.shape else var.expand(mean.shape)


def scale_moments(a: Gaussian, factor: Tensor | float) -> Moments:
    return a.mean * factor, None if a.var is None else a.var * factor**2


def cat(parts: Sequence[Gaussian], dim: int = 0) -> Gaussian:
    """Concatenate Gaussians along `dim`; a certain part has variance zero beside uncertain ones."""
    return join(torch.cat, parts, dim)


def join(function: Callable[..., Tensor], parts: Sequence[Gaussian | Tensor], dim: int = 0) -> Gaussian:
    """`torch.cat` or `torch.stack` of Gaussians and of what is known."""

    def join_moments(*each: Gaussian) -> Moments:
        uncertain = any(part.var is not None for part in each)
        var = function([part.variance for part in each], dim) if uncertain else None
        return function([part.mean for part in each], dim), var

    return lift(join_moments, *(as_gaussian(part) for part in parts))


# torch.func and torch.export find tensors with pytree, and so did FSDP before torch 2.13.
pytree.register_pytree_node(
    Gaussian,
    lambda pair: ([pair.mean, pair.var, pair.plain], None),
    lambda children, _: Gaussian.trusted(*children),
    serialized_type_name="torchtagi.Gaussian",
)
