"""Affine layers: Linear, Conv2d, ConvTranspose2d.

    z = w ⊛ a + b,      ⊛ a product with shared weights; a, w, b independent Gaussians

    forward     E[z]   = W ⊛ a + b
                var[z] = (W² + V) ⊛ v + V ⊛ a² + V_b
    backward    to a:    Wᵀ ⊛ dm             (W²)ᵀ ⊛ dv
                to w:    Σ dm·a              Σ dv·a²
                to b:    Σ dm                Σ dv

(TAGI, Goulet et al. 2021; section 3.1 of the paper for convolutions.) W, V: mean and variance of the weight;
a, v: mean and variance of the input; dm, dv: the message from z. The variance's message takes the same path
as the mean's, with every factor squared: one `Product` serves both streams and all three layers.

Convolutions may multiply in a lower precision than their parameters have (`multiply_in`): operands are rounded
where they enter a product, and what comes out goes on in the parameters' precision.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from torchtagi.nn import mean_pass
from torchtagi.nn.layer import Layer, Pair, Place, as_pair, require_sizes
from torchtagi.parameter import GaussianParameter, Positions, prior_std

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}
"""What convolutions may multiply in, as configurations name it; float32 is the parameters' own."""

Geometry = tuple[Pair, Pair, Pair, bool, Pair, int]  # stride, padding, dilation, transposed, output_padding, groups
Needs = tuple[bool, bool, bool]
Grads = tuple[Tensor | None, Tensor | None, Tensor | None]


class MatrixProduct:
    """a ↦ a Wᵀ + b over the last dimension."""

    precision = None

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    def backward(self, dout: Tensor, x: Tensor, weight: Tensor, needs: Needs) -> Grads:
        if x.ndim != 2:
            flat = self.backward(dout.reshape(-1, dout.shape[-1]), x.reshape(-1, x.shape[-1]), weight, needs)
            return flat[0] if flat[0] is None else flat[0].view(x.shape), flat[1], flat[2]
        return (
            dout.mm(weight) if needs[0] else None,
            dout.t().mm(x) if needs[1] else None,
            dout.sum(0) if needs[2] else None,
        )


class Convolution:
    """A convolution or a transposed one, with torch's own options."""

    def __init__(self, options: Geometry) -> None:
        self.options = options
        self.positions = Positions()
        self.precision: torch.dtype | None = None  # to multiply in; None: the operands' own

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out = torch.convolution(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype), *self.options)
        self.positions.count = max(x.shape[2] * x.shape[3], out.shape[2] * out.shape[3])
        return out

    def backward(self, dout: Tensor, x: Tensor, weight: Tensor, needs: Needs) -> Grads:
        dx, dweight, _ = torch.ops.aten.convolution_backward.default(
            dout.to(x.dtype), x, weight.to(x.dtype), None, *self.options, (needs[0], needs[1], False)
        )
        return (
            dx.to(dout.dtype) if needs[0] else None,
            dweight.to(dout.dtype) if needs[1] else None,
            dout.sum((0, 2, 3)) if needs[2] else None,
        )


class AffineMoments(torch.autograd.Function):
    """The moments and the messages at the head of this file."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        var: Tensor | None,
        product: MatrixProduct | Convolution,
        weight: Tensor,
        weight_var: Tensor | None,
        bias: Tensor | None,
        bias_var: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        own, low = mean.dtype, product.precision or mean.dtype
        x = mean.to(low)
        ctx.product = product
        out_mean = product.forward(x, weight, bias).to(own)
        if weight_var is None:  # a mean pass
            ctx.save_for_backward(x, None, weight)
            return out_mean, None
        squared = x * x
        ctx.save_for_backward(x, squared, weight)
        out_var = product.forward(squared, weight_var, bias_var).to(own)
        if var is not None:
            out_var += product.forward(var.to(low), torch.addcmul(weight_var, weight, weight), None)
        return out_mean, out_var

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor | None) -> tuple[Tensor | None, ...]:
        mean, squared, weight = ctx.saved_tensors
        mean_asks, var_asks, _, weight_asks, weight_var_asks, bias_asks, bias_var_asks = ctx.needs_input_grad
        dx, dw, db = ctx.product.backward(dmean, mean, weight, (mean_asks, weight_asks, bias_asks))
        if squared is None:
            return dx, None, None, dw, None, db, None
        dx_var, dw_var, db_var = ctx.product.backward(
            dvar, squared, weight * weight if var_asks else weight, (var_asks, weight_var_asks, bias_var_asks)
        )
        return dx, dx_var, None, dw, dw_var, db, db_var


class Affine(Layer):
    """Shared by the three layers: apply the product to the input's moments."""

    function = AffineMoments
    output_is_free = True
    product: MatrixProduct | Convolution
    prior: str

    def add_parameters(
        self, shape: tuple[int, ...], bias_units: int, fans: Pair, prior: str, place: Place, **shared: Any
    ) -> None:
        """Of a layer with these fans, in and out. The bias has the weights' scale, as in the authors' code."""
        self.prior = prior
        std = prior_std(prior, *fans)
        self.weight = GaussianParameter(shape, std, **place, **shared)
        self.bias = GaussianParameter((bias_units,), std, **place, **shared) if bias_units else None

    def operands(self) -> tuple[Any, ...]:
        parameters: dict[str, Any] = self._modules  # past the slow look-up, as in GaussianParameter.pair
        weight, bias = parameters["weight"].pair(), parameters.get("bias")
        bias = (None, None) if bias is None else bias.pair()
        if mean_pass.state.active:
            return self.product, weight[0], None, bias[0], None
        return self.product, *weight, *bias

    def check_input(self, mean: Tensor, var: Tensor | None) -> None:
        dtype = self._modules["weight"].pair()[0].dtype  # type: ignore[union-attr, operator]
        if mean.dtype != dtype:
            raise TypeError(f"{type(self).__name__}: input is {mean.dtype}, but the weights are {dtype}")


class Linear(Affine):
    """`torch.nn.Linear` with Gaussian weights; `prior` is the scale of theirs (`parameter.prior_std`)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, prior: str = "lecun", **place: Unpack[Place]
    ) -> None:
        super().__init__()
        require_sizes(in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.product = MatrixProduct()
        shape, fans = (out_features, in_features), (in_features, out_features)
        self.add_parameters(shape, out_features if bias else 0, fans, prior, place)

    def check_input(self, mean: Tensor, var: Tensor | None) -> None:
        if mean.shape[-1:] != (self.in_features,):
            wanted, given = f"{self.in_features} features in its last dimension", tuple(mean.shape)
            raise ValueError(f"Linear: input must have {wanted}, got shape {given}")
        super().check_input(mean, var)


class ConvolutionLayer(Affine):
    """What Conv2d and ConvTranspose2d share; arguments are those of torch, and `prior` as in `Linear`."""

    transposed: ClassVar[bool]
    kernel_size: Pair
    stride: Pair
    padding: Pair
    output_padding: Pair = (0, 0)
    dilation: Pair

    def build(
        self, in_channels: int, out_channels: int, groups: int, bias: bool, prior: str, place: Place, **pairs: Any
    ) -> None:
        require_sizes(in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"groups={groups} must divide {in_channels=} and {out_channels=}")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        for name, value in pairs.items():
            setattr(self, name, as_pair(name, value))
        options = (self.stride, self.padding, self.dilation, self.transposed, self.output_padding, groups)
        self.product = Convolution(options)
        first, second = (in_channels, out_channels) if self.transposed else (out_channels, in_channels)
        window = math.prod(self.kernel_size)
        fans = in_channels // groups * window, out_channels // groups * window
        shape, shared = (first, second // groups, *self.kernel_size), self.product.positions
        self.add_parameters(shape, out_channels if bias else 0, fans, prior, place, shared=shared)

    def check_input(self, mean: Tensor, var: Tensor | None) -> None:
        if mean.ndim != 4 or mean.shape[1] != self.in_channels:
            wanted, given = f"(N, {self.in_channels}, H, W)", tuple(mean.shape)
            raise ValueError(f"{type(self).__name__}: input must have shape {wanted}, got {given}")
        super().check_input(mean, var)


class Conv2d(ConvolutionLayer):
    """`torch.nn.Conv2d` with Gaussian weights. For padding on some sides only, put a `ZeroPad2d` before it."""

    transposed: ClassVar = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair | str = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = True,
        prior: str = "lecun",
        **place: Unpack[Place],
    ) -> None:
        super().__init__()
        pairs: dict[str, Any] = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
        if padding == "same":
            padding = same_padding(**{name: as_pair(name, value) for name, value in pairs.items()})
        pairs["padding"] = 0 if padding == "valid" else padding
        self.build(in_channels, out_channels, groups, bias, prior, place, **pairs)


class ConvTranspose2d(ConvolutionLayer):
    """`torch.nn.ConvTranspose2d` with Gaussian weights."""

    transposed: ClassVar = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        output_padding: int | Pair = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | Pair = 1,
        prior: str = "lecun",
        **place: Unpack[Place],
    ) -> None:
        super().__init__()
        pairs = {"kernel_size": kernel_size, "stride": stride, "dilation": dilation}
        pairs |= {"padding": padding, "output_padding": output_padding}
        self.build(in_channels, out_channels, groups, bias, prior, place, **pairs)


def same_padding(kernel_size: Pair, stride: Pair, dilation: Pair) -> Pair:
    """What keeps an image's size; torch pads one side more than the other where that is uneven."""
    rows, columns = (gap * (size - 1) for size, gap in zip(kernel_size, dilation, strict=True))
    if stride != (1, 1) or rows % 2 or columns % 2:
        raise ValueError(
            "padding='same' is for stride 1 and kernels that reach as far to one side as to the other, got "
            f"{stride=} and {kernel_size=}: put a ZeroPad2d before the convolution"
        )
    return rows // 2, columns // 2


def multiply_in(net: torch.nn.Module, precision: torch.dtype | None) -> None:
    """Let the convolutions of `net` multiply in `precision`; None for the precision of their parameters.

    With `torch.bfloat16` they take half the time on processors that have it. Operands and products are rounded to
    eight bits; parameters, the sums of messages on them, norms and linear layers stay as they are, so that small
    steps are not lost. A network that is saved does not remember it.
    """
    if precision is not None and not precision.is_floating_point:
        raise ValueError(f"precision must be a floating dtype, got {precision}")
    for part in net.modules():
        if isinstance(part, ConvolutionLayer):
            part.product.precision = precision
