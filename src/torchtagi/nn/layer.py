"""What all layers share: constructor arguments kept as attributes of the same name.

Their names are read off the constructor; `repr`, saved checkpoints and conversion are made from them, so none can
drift from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, TypedDict

import torch
from torch import Tensor, nn

from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.nn import mean_pass
from torchtagi.parameter import GaussianParameter

Pair = tuple[int, int]


class Place(TypedDict, total=False):
    """Where a layer is, not what it is."""

    device: torch.device | str | None
    dtype: torch.dtype | None


class NoContext:
    """Stands in for torch's context where a Function's moments are taken as ordinary differentiable code."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        pass


def apply_function(function: Any, x: Gaussian, *operands: Any, plain: Sequence[Any] = ()) -> Gaussian:
    """The moments of a layer's Function; the plain ones too, for which the layer's own tensors are constants. The
    first operands may be others there: a norm's statistics. In a mean pass torch's autograd follows the forward
    half."""
    if mean_pass.state.active:
        return Gaussian.trusted(*function.forward(NoContext(), x.mean, None, *operands))
    z = Gaussian.trusted(*function.apply(x.mean, x.var, *operands))
    if x.plain is not None:
        constants = [one.detach() if isinstance(one, Tensor) else one for one in operands[len(plain) :]]
        moments = function.forward(NoContext(), x.plain.mean, x.plain.var, *plain, *constants)
        z.plain = Gaussian.trusted(*moments)
    return z


class Layer(nn.Module):
    """A map from a Gaussian to a Gaussian.

    A layer that is one autograd Function of (mean, var, *operands) names it in `function`; a step can then do
    without autograd (`inference.direct`).
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    """The constructor's, but for its `Place`."""
    function: type[torch.autograd.Function] | None = None
    output_is_free: ClassVar[bool] = False
    """Its Function neither keeps what it returns nor returns what it was given: a chain may work in place on it."""
    passes_message_on: ClassVar[bool] = False
    """Its Function's messages may be views of those it got."""
    weight: GaussianParameter | None
    bias: GaussianParameter | None

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("torchtagi."):  # a user's subclass has those of the layer that it extends
            named = inspect.signature(cls).parameters.values()
            own = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            cls.arguments = tuple(one.name for one in named if one.kind in own)

    def forward(self, x: Gaussian | Tensor) -> Gaussian:
        x = as_gaussian(x)
        self.check_input(x.mean, x.var)
        return apply_function(self.function, x, *self.operands())

    def operands(self) -> tuple[Any, ...]:
        """The arguments of `function` after mean and variance."""
        return ()

    def mean_needs_var(self) -> bool:
        """Whether its output's mean depends on its input's variance."""
        return False

    def check_input(self, mean: Tensor, var: Tensor | None) -> None:
        """Refuse an input that does not fit."""

    def config(self) -> dict[str, Any]:
        """The constructor's arguments: `type(layer)(**layer.config())` has the same architecture."""
        return {name: self.bias is not None if name == "bias" else getattr(self, name) for name in self.arguments}

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.config().items())


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
