"""What all layers share: constructor arguments kept as attributes of the same name.

A layer class lists them in `arguments`; `repr` and saved checkpoints are made from that list, so neither can
drift from the constructor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.parameter import GaussianParameter, Positions, prior_std

Pair = tuple[int, int]
PRIOR_ARGUMENTS = ("prior", "mean_gain", "var_gain")


class PriorOptions(TypedDict, total=False):
    """What layers with weights take by name: the scale of their prior (`parameter.prior_std`), and its place."""

    prior: str
    mean_gain: float
    var_gain: float
    device: torch.device | str | None
    dtype: torch.dtype | None


class NoContext:
    """Stands in for torch's context where a Function's moments are taken as ordinary differentiable code."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        pass


def apply_function(function: Any, x: Gaussian, *operands: Any, plain: Sequence[Any] = ()) -> Gaussian:
    """The moments of a layer's Function; the plain ones too, for which the layer's own tensors are constants. The
    first operands may be others there: a norm's statistics."""
    z = Gaussian.trusted(*function.apply(x.mean, x.var, *operands))
    if x.plain is not None:
        constants = [one.detach() if isinstance(one, Tensor) else one for one in operands[len(plain) :]]
        moments = function.forward(NoContext(), x.plain.mean, x.plain.var, *plain, *constants)
        z.plain = Gaussian.trusted(*moments)
    return z


class Layer(nn.Module):
    """A map from a Gaussian to a Gaussian.

    A layer that is one autograd Function of (mean, var, *operands) names it in `function`; `Sequential` can then
    join it with its neighbours.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    function: type[torch.autograd.Function] | None = None
    output_is_free: ClassVar[bool] = False
    """Its Function neither keeps what it returns nor returns what it was given: a chain may work in place on it."""
    passes_message_on: ClassVar[bool] = False
    """Its Function's messages may be views of those it got."""
    weight: GaussianParameter | None
    bias: GaussianParameter | None

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        x = as_gaussian(x)
        self.check_input(x.mean, x.var)
        return apply_function(self.function, x, *self.operands())

    def operands(self) -> tuple[Any, ...]:
        """The arguments of `function` after mean and variance."""
        return ()

    def check_input(self, mean: Tensor, var: Tensor | None) -> None:
        """Refuse an input that does not fit."""

    def config(self) -> dict[str, Any]:
        """The constructor's arguments: `type(layer)(**layer.config())` has the same architecture."""
        return {name: self.bias is not None if name == "bias" else getattr(self, name) for name in self.arguments}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.config().items())

    def add_weight_and_bias(
        self,
        shape: tuple[int, ...],
        bias_units: int,
        fans: Pair,
        shared: Positions | None = None,
        *,
        prior: str = "lecun",
        mean_gain: float = 1.0,
        var_gain: float = 1.0,
        **place: Any,
    ) -> None:
        """The parameters of an affine layer with these fans, in and out. The bias has the weights' scale, as in the
        authors' code, but not their gains: those set how much the inputs count."""
        self.prior, self.mean_gain, self.var_gain = prior, mean_gain, var_gain
        std = prior_std(prior, *fans)
        self.weight = GaussianParameter(shape, std, mean_gain=mean_gain, var_gain=var_gain, shared=shared, **place)
        bias = GaussianParameter((bias_units,), std, shared=shared, **place) if bias_units else None
        self.register_module("bias", bias)

    if TYPE_CHECKING:

        def __call__(self, x: Gaussian | Tensor) -> Gaussian: ...


def as_pair(name: str, value: int | Pair) -> Pair:
    pair = tuple(value) if isinstance(value, tuple | list) else (value, value)
    lowest = 0 if "padding" in name else 1
    if len(pair) != 2 or not all(isinstance(n, int) and n >= lowest for n in pair):
        raise ValueError(f"{name} must be a whole number of at least {lowest} or two of them, got {value!r}")
    return pair[0], pair[1]


def require_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a positive whole number, got {size!r}")
