"""One registry of layers: every case in `CASES` meets every oracle that applies to it.

A case says how to build the layer and, independently of it, which function a single draw of its input and
parameters passes through (`draw`). The functions are written with `torch.nn.functional` only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchtagi import Gaussian, GaussianParameter
from torchtagi import nn as tnn

RUNNING_MEAN = (0.5, -0.75, 0.25)  # exact in float32 too
RUNNING_VAR = (0.75, 1.5, 0.625)

Parameters = dict[str, Tensor]
# parameters, input, and the input's Gaussian for what depends on its moments (a norm's statistics)
Function = Callable[[Parameters, Tensor, Gaussian], Tensor]


@dataclass(frozen=True)
class Case:
    """A layer, an input for it, and what is known about it."""

    id: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    draw: Function | None = None  # one draw through the layer; None if no simple function says it
    expected: Function | None = None  # the mean map, where it is not the draw at the means
    exact: bool = True  # forward moments are exact, not linearised
    bilinear: bool = True  # affine in the input and in the parameters
    moves_statistics: bool = False  # the message to the input's mean knows that the statistics move with it
    batch_coupled: bool = False  # a sample's output depends on the others in the batch
    training: bool = True
    input_var: float = 1.0  # scale of the input's variance

    def layer(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
        """The layer with random parameters, all variances of a size that matters."""
        layer = self.build().to(dtype).train(self.training)
        generator = torch.Generator().manual_seed(1000 + seed)
        for parameter in gaussian_parameters(layer).values():
            mean = torch.randn(parameter.mean.shape, generator=generator, dtype=torch.float64)
            var = 0.1 + 0.5 * torch.rand(parameter.mean.shape, generator=generator, dtype=torch.float64)
            parameter.set_(mean.to(dtype), var.to(dtype))
        for part in layer.modules():
            if isinstance(part, tnn.BatchNorm1d | tnn.BatchNorm2d) and part.running_mean is not None:
                part.running_mean.copy_(torch.tensor(RUNNING_MEAN[: part.num_features]))
                part.running_var.copy_(torch.tensor(RUNNING_VAR[: part.num_features]))
                part.num_batches_tracked.fill_(3)
        return layer

    def input(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> Gaussian:
        generator = torch.Generator().manual_seed(2000 + seed)
        mean = torch.randn(self.shape, generator=generator, dtype=torch.float64)
        var = self.input_var * (0.1 + torch.rand(self.shape, generator=generator, dtype=torch.float64))
        return Gaussian(mean.to(dtype), var.to(dtype))

    def mean_map(self) -> Function:
        function = self.expected or self.draw
        assert function is not None
        return function


def gaussian_parameters(layer: nn.Module) -> dict[str, GaussianParameter]:
    return {name: part for name, part in layer.named_modules() if isinstance(part, GaussianParameter)}


# ---- functions of a single draw ------------------------------------------------------------------------------


def linear(p: Parameters, x: Tensor, _: Gaussian) -> Tensor:
    return F.linear(x, p["weight"], p.get("bias"))


def convolution(**options: object) -> Function:
    return lambda p, x, _: F.conv2d(x, p["weight"], p.get("bias"), **options)


def transposed(**options: object) -> Function:
    return lambda p, x, _: F.conv_transpose2d(x, p["weight"], p.get("bias"), **options)


def unitwise(function: Callable[[Tensor], Tensor]) -> Function:
    return lambda p, x, _: function(x)


def expected_rectified(mean: Tensor, var: Tensor) -> Tensor:
    """E[max(0, z)] = ½ m (1 + erf(m/√(2v))) + √(v/2π) exp(−m²/2v)."""
    wave = torch.exp(-mean.square() / (2 * var)) * (var / (2 * math.pi)).sqrt()
    return 0.5 * mean * (1 + torch.erf(mean / (2 * var).sqrt())) + wave


def expected_clamped(mean: Tensor, var: Tensor) -> Tensor:
    """min(1, max(−1, z)) is max(0, z + 1) − max(0, z − 1) − 1."""
    return expected_rectified(mean + 1, var) - expected_rectified(mean - 1, var) - 1


def even_exp(z: Tensor) -> Tensor:
    return torch.stack([z[..., 0::2], z[..., 1::2].exp()], -1).flatten(-2)


def expected_even_exp(p: Parameters, mean: Tensor, x: Gaussian) -> Tensor:
    return torch.stack([mean[..., 0::2], (mean + x.variance / 2)[..., 1::2].exp()], -1).flatten(-2)


def normalised(x: Tensor, gaussian: Gaussian, dims: tuple[int, ...], eps: float, correction: int) -> Tensor:
    """Paper eq. 3 and 4: by the mean and variance of the mixture of the Gaussians over `dims`."""
    count = 1
    for dim in dims:
        count *= gaussian.shape[dim]
    centre = gaussian.mean.sum(dims, keepdim=True) / count
    second = (gaussian.mean.square() + gaussian.variance).sum(dims, keepdim=True)
    spread = (second - count * centre.square()) / (count - correction)
    return (x - centre) / (spread + eps).sqrt()


def layer_norm(dims: tuple[int, ...], eps: float = 1e-5, correction: int = 0) -> Function:
    def function(p: Parameters, x: Tensor, gaussian: Gaussian) -> Tensor:
        z = normalised(x, gaussian, dims, eps, correction)
        if "weight" in p:
            z = z * p["weight"]
        return z + p["bias"] if "bias" in p else z

    return function


def batch_norm(rank: int, correction: int = 0) -> Function:
    dims = (0, *range(2, rank))
    channels = (-1, *(1,) * (rank - 2))

    def function(p: Parameters, x: Tensor, gaussian: Gaussian) -> Tensor:
        z = normalised(x, gaussian, dims, 1e-5, correction)
        return z * p["weight"].view(channels) + p["bias"].view(channels) if "weight" in p else z

    return function


def running_norm(rank: int) -> Function:
    """With the running statistics that `Case.layer` sets."""

    def function(p: Parameters, x: Tensor, _: Gaussian) -> Tensor:
        channels = (-1, *(1,) * (rank - 2))
        count = len(p["weight"])
        centre = torch.tensor(RUNNING_MEAN[:count], dtype=x.dtype).view(channels)
        var = torch.tensor(RUNNING_VAR[:count], dtype=x.dtype).view(channels)
        return (x - centre) / (var + 1e-5).sqrt() * p["weight"].view(channels) + p["bias"].view(channels)

    return function


# ---- the registry --------------------------------------------------------------------------------------------

AFFINE = [
    Case("Linear", lambda: tnn.Linear(4, 3), (3, 4), linear),
    Case("Linear-nobias", lambda: tnn.Linear(4, 3, bias=False), (3, 4), linear),
    Case("Linear-sequence", lambda: tnn.Linear(4, 2), (2, 3, 4), linear),
    Case("Conv2d", lambda: tnn.Conv2d(2, 3, 3), (2, 2, 4, 5), convolution()),
    Case("Conv2d-nobias", lambda: tnn.Conv2d(2, 3, 2, bias=False), (2, 2, 3, 4), convolution()),
    Case(
        "Conv2d-geometry",
        lambda: tnn.Conv2d(2, 2, (3, 2), (2, 1), (1, 2), (1, 2)),
        (2, 2, 5, 4),
        convolution(stride=(2, 1), padding=(1, 2), dilation=(1, 2)),
    ),
    Case(
        "Conv2d-groups",
        lambda: tnn.Conv2d(4, 6, 2, padding=1, groups=2),
        (2, 4, 3, 2),
        convolution(padding=1, groups=2),
    ),
    Case(
        "Conv2d-same", lambda: tnn.Conv2d(1, 2, (3, 1), padding="same"), (2, 1, 4, 3), convolution(padding="same")
    ),
    Case("ConvTranspose2d", lambda: tnn.ConvTranspose2d(2, 3, 3), (2, 2, 2, 3), transposed()),
    Case(
        "ConvTranspose2d-geometry",
        lambda: tnn.ConvTranspose2d(2, 2, (3, 2), (2, 3), (1, 0), (1, 2), dilation=(2, 1)),
        (2, 2, 3, 2),
        transposed(stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(2, 1)),
    ),
    Case(
        "ConvTranspose2d-groups-nobias",
        lambda: tnn.ConvTranspose2d(4, 2, 2, 2, groups=2, bias=False),
        (2, 4, 2, 2),
        transposed(stride=2, groups=2),
    ),
]

LINEARISED = [
    Case("ReLU", tnn.ReLU, (3, 5), unitwise(F.relu), exact=False, bilinear=False),
    Case("LeakyReLU", tnn.LeakyReLU, (3, 5), unitwise(F.leaky_relu), exact=False, bilinear=False),
    Case(
        "LeakyReLU-slope",
        lambda: tnn.LeakyReLU(0.3),
        (3, 5),
        unitwise(lambda z: F.leaky_relu(z, 0.3)),
        exact=False,
        bilinear=False,
    ),
    Case("Tanh", tnn.Tanh, (3, 5), unitwise(torch.tanh), exact=False, bilinear=False),
    Case("Sigmoid", tnn.Sigmoid, (3, 5), unitwise(torch.sigmoid), exact=False, bilinear=False),
    Case("Softplus", tnn.Softplus, (3, 5), unitwise(F.softplus), exact=False, bilinear=False),
    Case(
        "Softplus-options",
        lambda: tnn.Softplus(2.5, 1.5),
        (3, 5),
        unitwise(lambda z: F.softplus(z, 2.5, 1.5)),
        exact=False,
        bilinear=False,
    ),
]

EXACT_ACTIVATIONS = [
    Case(
        "MixtureReLU",
        tnn.MixtureReLU,
        (3, 5),
        unitwise(F.relu),
        lambda p, m, x: expected_rectified(m, x.variance),
        bilinear=False,
    ),
    Case(
        "MixtureTanh",
        tnn.MixtureTanh,
        (3, 5),
        unitwise(lambda z: z.clamp(-1, 1)),
        lambda p, m, x: expected_clamped(m, x.variance),
        bilinear=False,
    ),
    Case(
        "MixtureSigmoid",
        tnn.MixtureSigmoid,
        (3, 5),
        unitwise(lambda z: (z.clamp(-1, 1) + 1) / 2),
        lambda p, m, x: (expected_clamped(m, x.variance) + 1) / 2,
        bilinear=False,
    ),
    Case(
        "Exp",
        tnn.Exp,
        (3, 4),
        unitwise(torch.exp),
        lambda p, m, x: torch.exp(m + x.variance / 2),
        bilinear=False,
        input_var=0.2,
    ),
    Case("EvenExp", tnn.EvenExp, (3, 4), unitwise(even_exp), expected_even_exp, bilinear=False, input_var=0.2),
]

PROBABILITIES = [
    Case("Remax", tnn.Remax, (3, 4), exact=False, bilinear=False),
    Case("ClosedFormSoftmax", tnn.ClosedFormSoftmax, (3, 4), exact=False, bilinear=False),
]

POOLING = [
    Case("AvgPool2d", lambda: tnn.AvgPool2d(2), (2, 2, 4, 4), unitwise(lambda x: F.avg_pool2d(x, 2))),
    Case(
        "AvgPool2d-overlap",
        lambda: tnn.AvgPool2d((3, 2), (2, 1), (1, 0)),
        (2, 2, 5, 4),
        unitwise(lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0))),
    ),
    Case(
        "AvgPool2d-divisor",
        lambda: tnn.AvgPool2d(3, 2, 1, True, False, divisor_override=5),
        (2, 1, 6, 5),
        unitwise(lambda x: F.avg_pool2d(x, 3, 2, 1, True, False, divisor_override=5)),
    ),
    Case(
        "AvgPool2d-exclude-pad",
        lambda: tnn.AvgPool2d(3, 2, 1, count_include_pad=False),
        (2, 1, 5, 4),
        unitwise(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    ),
    Case(
        "AvgPool2d-ceil",
        lambda: tnn.AvgPool2d(3, 2, 1, ceil_mode=True),
        (2, 2, 6, 4),
        unitwise(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
    ),
    Case(
        "AvgPool2d-ceil-exclude-pad",
        lambda: tnn.AvgPool2d(3, 2, 1, True, False),
        (2, 1, 6, 5),
        unitwise(lambda x: F.avg_pool2d(x, 3, 2, 1, True, False)),
    ),
    Case(
        "MaxPool2d",
        lambda: tnn.MaxPool2d(2),
        (2, 2, 4, 4),
        unitwise(lambda x: F.max_pool2d(x, 2)),
        exact=False,
        bilinear=False,
    ),
    Case(
        "MaxPool2d-geometry",
        lambda: tnn.MaxPool2d((2, 3), (2, 1), (1, 1), (2, 1), True),
        (2, 2, 5, 6),
        unitwise(lambda x: F.max_pool2d(x, (2, 3), (2, 1), (1, 1), (2, 1), True)),
        exact=False,
        bilinear=False,
    ),
    Case(
        "MaxPool2d-stochastic-eval",
        lambda: tnn.MaxPool2d(2, stochastic=True),
        (2, 1, 4, 2),
        exact=False,
        bilinear=False,
        training=False,
    ),
]

NORMS = [
    Case("LayerNorm", lambda: tnn.LayerNorm(5), (3, 5), layer_norm((-1,)), moves_statistics=True),
    Case(
        "LayerNorm-plain",
        lambda: tnn.LayerNorm(5, elementwise_affine=False),
        (3, 5),
        layer_norm((-1,)),
        moves_statistics=True,
    ),
    Case(
        "LayerNorm-nobias", lambda: tnn.LayerNorm(5, bias=False), (3, 5), layer_norm((-1,)), moves_statistics=True
    ),
    Case(
        "LayerNorm-images",
        lambda: tnn.LayerNorm((2, 3, 2)),
        (2, 2, 3, 2),
        layer_norm((-3, -2, -1)),
        moves_statistics=True,
    ),
    Case(
        "LayerNorm-corrected",
        lambda: tnn.LayerNorm([2, 3, 2], 1e-2, correction=1),
        (2, 2, 3, 2),
        layer_norm((-3, -2, -1), 1e-2, 1),
        moves_statistics=True,
    ),
    Case(
        "LayerNorm-sequence",
        lambda: tnn.LayerNorm(4, correction=1),
        (2, 3, 4),
        layer_norm((-1,), 1e-5, 1),
        moves_statistics=True,
    ),
    Case(
        "BatchNorm1d",
        lambda: tnn.BatchNorm1d(3),
        (5, 3),
        batch_norm(2),
        moves_statistics=True,
        batch_coupled=True,
    ),
    Case(
        "BatchNorm1d-sequence",
        lambda: tnn.BatchNorm1d(2),
        (3, 2, 4),
        batch_norm(3),
        moves_statistics=True,
        batch_coupled=True,
    ),
    Case(
        "BatchNorm1d-eval",
        lambda: tnn.BatchNorm1d(3),
        (4, 3),
        running_norm(2),
        training=False,
    ),
    Case(
        "BatchNorm2d",
        lambda: tnn.BatchNorm2d(2),
        (3, 2, 2, 3),
        batch_norm(4),
        moves_statistics=True,
        batch_coupled=True,
    ),
    Case(
        "BatchNorm2d-plain-corrected",
        lambda: tnn.BatchNorm2d(2, affine=False, correction=1),
        (3, 2, 2, 3),
        batch_norm(4, correction=1),
        moves_statistics=True,
        batch_coupled=True,
    ),
    Case(
        "BatchNorm2d-untracked-eval",
        lambda: tnn.BatchNorm2d(2, track_running_stats=False),
        (3, 2, 2, 3),
        batch_norm(4),
        moves_statistics=True,
        batch_coupled=True,
        training=False,
    ),
    Case(
        "BatchNorm2d-eval",
        lambda: tnn.BatchNorm2d(2),
        (3, 2, 2, 3),
        running_norm(4),
        training=False,
    ),
    # paper eq. 5: messages that hold the statistics constant
    Case("LayerNorm-held", lambda: tnn.LayerNorm(5, differentiate_statistics=False), (3, 5), layer_norm((-1,))),
    Case(
        "LayerNorm-held-corrected",
        lambda: tnn.LayerNorm((2, 3, 2), correction=1, differentiate_statistics=False),
        (2, 2, 3, 2),
        layer_norm((-3, -2, -1), 1e-5, 1),
    ),
    Case(
        "BatchNorm1d-held",
        lambda: tnn.BatchNorm1d(3, differentiate_statistics=False),
        (5, 3),
        batch_norm(2),
        batch_coupled=True,
    ),
    Case(
        "BatchNorm2d-held",
        lambda: tnn.BatchNorm2d(2, differentiate_statistics=False),
        (3, 2, 2, 3),
        batch_norm(4),
        batch_coupled=True,
    ),
    Case(
        "BatchNorm2d-held-plain-corrected",
        lambda: tnn.BatchNorm2d(2, affine=False, correction=1, differentiate_statistics=False),
        (3, 2, 2, 3),
        batch_norm(4, correction=1),
        batch_coupled=True,
    ),
]

SHAPES = [
    Case("Flatten", tnn.Flatten, (2, 2, 3, 2), unitwise(lambda x: x.flatten(1))),
    Case("Unflatten", lambda: tnn.Unflatten(1, (2, 3)), (2, 6), unitwise(lambda x: x.unflatten(1, (2, 3)))),
    Case(
        "ZeroPad2d", lambda: tnn.ZeroPad2d((0, 1, 2, 0)), (2, 1, 3, 2), unitwise(lambda x: F.pad(x, (0, 1, 2, 0)))
    ),
    Case(
        "ZeroPad2d-crop",
        lambda: tnn.ZeroPad2d((0, -1, 1, -2)),
        (2, 2, 3, 3),
        unitwise(lambda x: F.pad(x, (0, -1, 1, -2))),
    ),
    Case("Identity", tnn.Identity, (2, 3), unitwise(lambda x: x)),
]

CASES = {
    case.id: case for case in (*AFFINE, *LINEARISED, *EXACT_ACTIVATIONS, *PROBABILITIES, *POOLING, *NORMS, *SHAPES)
}

# ---- adaptive pooling ----------------------------------------------------------------------------------------

ADAPTIVE_POOLING = [
    Case(
        "AdaptiveAvgPool2d",
        lambda: tnn.AdaptiveAvgPool2d(2),
        (2, 2, 4, 6),
        unitwise(lambda x: F.adaptive_avg_pool2d(x, 2)),
    ),
    Case(
        "AdaptiveAvgPool2d-overlap",
        lambda: tnn.AdaptiveAvgPool2d((3, None)),
        (2, 2, 5, 4),
        unitwise(lambda x: F.adaptive_avg_pool2d(x, (3, None))),
    ),
    Case(
        "AdaptiveAvgPool2d-larger",
        lambda: tnn.AdaptiveAvgPool2d((5, 1)),
        (2, 1, 3, 2),
        unitwise(lambda x: F.adaptive_avg_pool2d(x, (5, 1))),
    ),
]
CASES |= {case.id: case for case in ADAPTIVE_POOLING}

# ---- torch's functions on Gaussians --------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionCase:
    """A function of torch: of a tensor it is one draw, of a Gaussian what is tested."""

    function: Callable[..., object]
    shape: tuple[int, ...] = (2, 4, 6)
    linear: bool = True  # hence exact in its moments


def known(*shape: int) -> Tensor:
    """Irregular numbers that vmap knows how to make."""
    return torch.arange(1, math.prod(shape) + 1, dtype=torch.float64).mul(2.3).sin().view(shape)


IMAGES = (2, 2, 4, 6)
UNITWISE_FUNCTIONS = {
    "relu": torch.relu,
    "F.relu": lambda x: F.relu(x, inplace=not isinstance(x, Tensor)),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "tanh": torch.tanh,
    "F.tanh": F.tanh,
    "sigmoid": torch.sigmoid,
    "F.sigmoid": F.sigmoid,
    "softplus": lambda x: F.softplus(x, 2.5, 1.5),
    "x.relu": lambda x: x.relu(),
}
FUNCTIONS: dict[str, FunctionCase] = {
    **{name: FunctionCase(function, linear=False) for name, function in UNITWISE_FUNCTIONS.items()},
    "max_pool2d": FunctionCase(lambda x: F.max_pool2d(x, (2, 3), (1, 2), (1, 1), (2, 1), True), IMAGES, False),
    "avg_pool2d": FunctionCase(lambda x: F.avg_pool2d(x, 2), IMAGES),
    "avg_pool2d-options": FunctionCase(lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), IMAGES),
    "adaptive_avg_pool2d": FunctionCase(lambda x: F.adaptive_avg_pool2d(x, (3, 1)), IMAGES),
    "flatten": FunctionCase(lambda x: torch.flatten(x, 1)),
    "x.flatten": FunctionCase(lambda x: x.flatten(0, 1)),
    "reshape": FunctionCase(lambda x: torch.reshape(input=x, shape=(4, -1))),
    "x.reshape": FunctionCase(lambda x: x.reshape((4, 12))),
    "x.view": FunctionCase(lambda x: x.view(x.size(0), -1)),
    "x.contiguous": FunctionCase(lambda x: x.contiguous().clone()),
    "unflatten": FunctionCase(lambda x: torch.unflatten(x, 2, (2, 3))),
    "squeeze": FunctionCase(lambda x: torch.squeeze(x, 1), (2, 1, 3)),
    "unsqueeze": FunctionCase(lambda x: x.unsqueeze(-1)),
    "transpose": FunctionCase(lambda x: torch.transpose(x, 0, 2)),
    "swapaxes": FunctionCase(lambda x: torch.swapaxes(x, 0, 1)),
    "permute": FunctionCase(lambda x: torch.permute(x, (2, 0, 1))),
    "x.permute": FunctionCase(lambda x: x.permute(2, 0, 1)),
    "movedim": FunctionCase(lambda x: torch.movedim(x, 0, -1)),
    "x.T": FunctionCase(lambda x: x.T, (2, 3)),
    "t": FunctionCase(torch.t, (2, 3)),
    "narrow": FunctionCase(lambda x: torch.narrow(x, 2, 1, 3)),
    "select": FunctionCase(lambda x: torch.select(x, 1, 2)),
    "index_select": FunctionCase(lambda x: torch.index_select(x, 2, torch.tensor([4, 1]))),
    "index": FunctionCase(lambda x: x[:, 1:, ::2]),
    "expand": FunctionCase(lambda x: x.expand(2, 3, 4), (2, 1, 4)),
    "flip": FunctionCase(lambda x: torch.flip(x, (1,))),
    "roll": FunctionCase(lambda x: torch.roll(x, 1, 2)),
    "pixel_shuffle": FunctionCase(lambda x: F.pixel_shuffle(x, 2), (2, 4, 2, 3)),
    "pad": FunctionCase(lambda x: F.pad(x, (1, 0, 2, -1))),
    "pad-value": FunctionCase(lambda x: F.pad(x, (1, 2), value=0.5)),
    "cat": FunctionCase(lambda x: torch.cat([x[:, :1], known(2, 1, 6), x], 1)),
    "concat": FunctionCase(lambda x: torch.concat((x, x))),
    "stack": FunctionCase(lambda x: torch.stack([x, known(2, 4, 6)], 2)),
    "chunk": FunctionCase(lambda x: torch.chunk(x, 2, 1)[1]),
    "split": FunctionCase(lambda x: torch.split(x, [1, 3, 2], 2)[1]),
    "x.split": FunctionCase(lambda x: x.split(4, dim=2)[1]),
    "unbind": FunctionCase(lambda x: torch.unbind(x, 1)[2]),
    "add": FunctionCase(lambda x: torch.add(x, known(4, 1), alpha=2)),
    "add-tensor-first": FunctionCase(lambda x: torch.add(known(2, 4, 6), x, alpha=-3)),
    "add-gaussians": FunctionCase(lambda x: torch.add(x[:1], x[1:], alpha=2)),
    "tensor + x": FunctionCase(lambda x: known(4, 6) + x),
    "tensor - x": FunctionCase(lambda x: known(4, 6) - x),
    "sub": FunctionCase(lambda x: torch.sub(x[:1], x[1:])),
    "sub-number": FunctionCase(lambda x: 1.5 - torch.sub(x, 2)),
    "rsub": FunctionCase(lambda x: torch.rsub(x, 2, alpha=3)),
    "mul": FunctionCase(lambda x: torch.mul(x, known(6))),
    "tensor * x": FunctionCase(lambda x: known(4, 6) * x),
    "div": FunctionCase(lambda x: torch.div(x, known(6)) / 3),
    "neg": FunctionCase(torch.neg),
    "sum": FunctionCase(torch.sum),
    "sum-dim": FunctionCase(lambda x: x.sum((0, 2), keepdim=True)),
    "mean": FunctionCase(torch.mean),
    "mean-dim": FunctionCase(lambda x: torch.mean(x, dim=(1, 2))),
    "linear": FunctionCase(lambda x: F.linear(x, known(3, 6), known(3))),
    "conv2d": FunctionCase(lambda x: F.conv2d(x, known(3, 2, 3, 2), known(3), 2, padding=1), IMAGES),
    "conv_transpose2d": FunctionCase(lambda x: F.conv_transpose2d(x, known(2, 1, 2, 2), None, 2), IMAGES),
    "conv1d": FunctionCase(lambda x: F.conv1d(x, known(2, 4, 3))),
    "matmul": FunctionCase(lambda x: x @ known(6, 3)),
    "matmul-tensor-first": FunctionCase(lambda x: torch.matmul(known(3, 4), x)),
    "dropout": FunctionCase(lambda x: x if isinstance(x, Tensor) else F.dropout(F.dropout2d(x), 0.9)),
}
