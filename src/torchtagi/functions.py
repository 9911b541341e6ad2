"""Torch's functions on Gaussians, so that a `forward` written for torch runs on them too.

One table, `RULES`, from a function's name to its rule; a tensor's method of the same name has the same rule.

    activations, pooling    the rule of the layer of the same name (nn/activation.py, nn/pool.py)
    rearrangements          mean and variance alike
    + − × /                 independent Gaussians add; known numbers and tensors shift and scale
    sum, mean over n units  E[Σ a] = Σ m,  var[Σ a] = Σ v        the mean divides by n and by n²
    known weights w         E[w ⊛ a + b] = w ⊛ m + b,  var = w² ⊛ v
    dropout                 nothing: the uncertainty of the weights takes its place

All of these but the activations and the maximum are linear, hence exact for independent units. Any other function
is refused by name, with what to do instead (`REMEDIES`). Nothing works in place: `F.relu(x, inplace=True)` gives a
new Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchtagi import nn as tnn
from torchtagi.gaussian import Gaussian, Moments, join, lift

Rule = Callable[..., Any]

# ---- rearrangements ------------------------------------------------------------------------------------------

REARRANGEMENTS = (
    *("clone", "contiguous", "detach", "expand", "flatten", "flip", "index_select", "moveaxis", "movedim"),
    *("narrow", "permute", "ravel", "reshape", "roll", "select", "squeeze", "swapaxes", "swapdims", "t"),
    *("transpose", "unflatten", "unsqueeze", "cpu", "cuda", "double", "float", "to"),
)


def rearrange(function: Rule) -> Rule:
    return lambda x, *args, **options: x.map(lambda t: function(t, *args, **options))


def view(tensor: Tensor, *args: Any, **options: Any) -> Tensor:
    """`Tensor.view`; where the layout in memory has none, as channels_last of images, a copy. Which layout that
    is, the model decides and not the network."""
    try:
        return tensor.view(*args, **options)
    except RuntimeError:
        return tensor.reshape(*args, **options)


def divide_up(function: Rule) -> Rule:
    """For functions that return several tensors."""

    def rule(x: Gaussian, *args: Any, **options: Any) -> tuple[Gaussian, ...]:
        means = function(x.mean, *args, **options)
        none = (None,) * len(means)
        variances = none if x.var is None else function(x.var, *args, **options)
        plain = none if x.plain is None else rule(x.plain, *args, **options)
        return tuple(map(Gaussian.trusted, means, variances, plain))

    return rule


def pad(x: Gaussian, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Gaussian:
    """Certain numbers around the units."""
    if mode != "constant":
        raise TypeError(f"pad with mode={mode!r} repeats units, which are then not independent: use 'constant'")

    def moments(g: Gaussian) -> Moments:
        return F.pad(g.mean, pad, value=value), None if g.var is None else F.pad(g.var, pad)

    return lift(moments, x)


# ---- sums and products with what is known --------------------------------------------------------------------


def add(x: Any, y: Any, alpha: float = 1) -> Any:
    """x + α y, one of them a Gaussian; Python's own operators would come back here with a tensor on their left."""
    return x + alpha * y if isinstance(x, Gaussian) else alpha * y + x


def divide(x: Any, y: Any) -> Any:
    return x / y if isinstance(x, Gaussian) else y.__rtruediv__(x)


def average(x: Gaussian, *args: Any, **options: Any) -> Gaussian:
    summed = x.map(lambda t: torch.sum(t, *args, **options))
    return summed * (summed.mean.numel() / x.mean.numel())


def weigh(function: Rule) -> Rule:
    """For products with a known weight."""

    def rule(x: Any, weight: Any, bias: Any = None, *args: Any, **options: Any) -> Gaussian:
        if not isinstance(x, Gaussian) or isinstance(weight, Gaussian) or isinstance(bias, Gaussian):
            raise TypeError(refusal(function.__name__))

        def moments(g: Gaussian, w: Tensor, b: Tensor | None) -> Moments:
            mean = function(g.mean, w, b, *args, **options)
            return mean, None if g.var is None else function(g.var, w.square(), None, *args, **options)

        return lift(moments, x, weight, bias)

    return rule


def matmul(x: Any, y: Any) -> Gaussian:
    """One of the two is known."""
    if isinstance(x, Gaussian) and isinstance(y, Gaussian):
        raise TypeError(refusal("matmul"))

    def moments(a: Any, b: Any) -> Moments:
        if isinstance(a, Gaussian):
            return a.mean @ b, None if a.var is None else a.var @ b.square()
        return a @ b.mean, None if b.var is None else a.square() @ b.var

    return lift(moments, x, y)


# ---- the table -----------------------------------------------------------------------------------------------


def layer(kind: type[tnn.Layer]) -> Rule:
    """The rule of the layer of the same name, which has the function's arguments."""
    return lambda x, *args, inplace=False, return_indices=False, **options: kind(*args, **options)(x)


def same(names: str, value: Any) -> dict[str, Any]:
    """One value for several names."""
    return dict.fromkeys(names.split(), value)


RULES: dict[str, Rule] = {
    "relu": layer(tnn.ReLU),
    "leaky_relu": layer(tnn.LeakyReLU),
    "tanh": layer(tnn.Tanh),
    "sigmoid": layer(tnn.Sigmoid),
    "softplus": layer(tnn.Softplus),
    "avg_pool2d": layer(tnn.AvgPool2d),
    "max_pool2d": layer(tnn.MaxPool2d),
    "adaptive_avg_pool2d": layer(tnn.AdaptiveAvgPool2d),
    **{name: rearrange(getattr(Tensor, name)) for name in REARRANGEMENTS},
    "view": rearrange(view),
    **{f.__name__: rearrange(f) for f in (F.pixel_shuffle, F.pixel_unshuffle)},
    **{f.__name__: divide_up(f) for f in (torch.chunk, torch.split, torch.tensor_split, torch.unbind)},
    **same("cat concat concatenate", partial(join, torch.cat)),
    "stack": partial(join, torch.stack),
    "pad": pad,
    "add": add,
    **same("sub subtract", lambda x, y, alpha=1: add(x, y, -alpha)),
    "rsub": lambda x, y, alpha=1: add(y, x, -alpha),
    **same("mul multiply", lambda x, y: x * y if isinstance(x, Gaussian) else y * x),
    **same("div divide true_divide", divide),
    **same("neg negative", lambda x: -x),
    "sum": rearrange(torch.sum),
    "mean": average,
    **{f.__name__: weigh(f) for f in (F.linear, F.conv1d, F.conv2d, F.conv3d)},
    **{f.__name__: weigh(f) for f in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)},
    **same("matmul mm", matmul),
    **same("dropout dropout1d dropout2d dropout3d", lambda x, *args, **options: x),
    **same("alpha_dropout feature_dropout feature_alpha_dropout", lambda x, *args, **options: x),
    "numel": lambda x: x.mean.numel(),
    "size": lambda x, dim=None: x.mean.size(dim),
    "dim": lambda x: x.mean.ndim,
}

ACTIVATIONS = "use relu, leaky_relu, tanh, sigmoid or softplus"
LIKELIHOOD = "remove it, for the likelihood takes its place"
KNOWN = "a product of Gaussians is none; one of the two must be known: a number or a tensor"
OTHERWISE = "torchtagi.functions.RULES lists what has one; x.mean is a tensor, without the uncertainty"
REMEDIES: dict[str, str] = {
    **same("softmax logsoftmax softmin logsumexp softmax2d gumbelsoftmax crossentropy nllloss mseloss", LIKELIHOOD),
    **same("l1loss smoothl1loss huberloss binarycrossentropy binarycrossentropywithlogits", LIKELIHOOD),
    **same("gelu silu mish elu selu celu relu6 prelu rrelu glu hardtanh hardswish hardsigmoid", ACTIVATIONS),
    **same("logsigmoid softsign clamp tanhshrink softshrink hardshrink threshold abs", ACTIVATIONS),
    **same("matmul bmm einsum baddbmm addmm div pow square", KNOWN),
    **same("linear conv2d convtranspose2d", "use the layer of this name in tagi.nn"),
    **same("batchnorm groupnorm instancenorm", "use tagi.nn.BatchNorm2d or tagi.nn.LayerNorm"),
    "conv1d": "use Conv2d with a kernel of height 1",
    "layernorm": "use tagi.nn.LayerNorm",
    "exp": "use tagi.nn.Exp",
    "maxpool2dwithindices": "use max_pool2d without return_indices",
}


def remedy(name: str, otherwise: str = OTHERWISE) -> str:
    """What to do instead of a function, or of a module, of this name."""
    return REMEDIES.get(name.lower().replace("_", ""), otherwise)


def refusal(name: str) -> str:
    if name.endswith("_") and not name.startswith("__"):
        return f"{name} works in place, and Gaussians never do: use {name[:-1]}"
    return f"{name} has no rule for Gaussians: {remedy(name)}"


def apply(name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Torch's function `name`, called with a Gaussian among its arguments."""
    if name not in RULES:
        raise TypeError(refusal(name))
    if options.get("out") is not None:
        raise TypeError(f"{name} with out= works in place, and Gaussians never do: leave it out")
    named = [options.pop(first) for first in ("input", "tensors") if first in options]
    second = [options.pop("other")] if "other" in options else []
    return RULES[name](*named, *args, *second, **options)


def method(x: Gaussian, name: str) -> Any:
    """A tensor's method `name` for a Gaussian."""
    if name in RULES:
        return lambda *args, **options: apply(name, (x, *args), options)
    if hasattr(Tensor, name) and not name.startswith("_"):
        raise AttributeError(f"a Gaussian is no tensor: {refusal(name)}")
    raise AttributeError(f"'Gaussian' object has no attribute {name!r}")
