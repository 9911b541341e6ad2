"""An ordinary torch network as a Gaussian one.

    net = tagi.convert(torch_net)                       the architecture, with new priors
    net = tagi.convert(torch_net, from_weights=True)    trained weights as prior means, for fine-tuning by inference

Layers become those of the same name in `torchtagi.nn`. A module of one's own is copied with its parts replaced; its
`forward` then runs on Gaussians, as far as it uses torch's functions of `torchtagi.functions`.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import sys
from typing import Any

from torch import nn

from torchtagi import nn as tnn
from torchtagi.checks import require_positive
from torchtagi.compat import has_module_hook
from torchtagi.functions import remedy
from torchtagi.nn.layer import Layer
from torchtagi.parameter import GaussianParameter

PRIOR_STD = 1.0
"""How far trained weights may move, in standard deviations of a new layer's prior. A network that knows five digits
learns all ten from 100 or 500 images (results/finetune.json) best with 1; with 0.1 and 0.3 it is too stiff."""

TWINS = [name for name in tnn.__all__ if hasattr(nn, name) and issubclass(getattr(tnn, name), Layer)]
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
LAYERS: dict[type[nn.Module], type[Layer]] = {
    **{getattr(nn, name): getattr(tnn, name) for name in TWINS},
    **dict.fromkeys(DROPOUTS, tnn.Identity),
}
KEPT = (Layer, GaussianParameter, nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.PixelShuffle, nn.PixelUnshuffle)
ORDINARY = "leave it out, or in a network of its own in front: ordinary layers learn beside Gaussian ones"
WITHOUT_MEANING = ("inplace", "p", "device", "dtype")
"""Options that make no difference here, or are dealt with apart."""


def problem(path: str, what: str) -> TypeError:
    return TypeError(f"{path or 'the network'}: {what}")


def convert(net: nn.Module, *, from_weights: bool = False, prior_std: float = PRIOR_STD) -> nn.Module:
    """A Gaussian copy of `net`, which stays as it is; dtype, device, training mode and what is frozen are kept.

    Dropout becomes the identity: the weights' uncertainty takes its place. Modules and layers that are used twice
    stay shared, and Gaussian layers stay as they are.

    With `from_weights` the trained weights become prior means, and running statistics are taken over. The prior
    variances are `prior_std`² times those of a new layer: prior_std²/fan_in for weights and biases of linear and
    convolutional layers, prior_std²/features for the affine part of norms. So `prior_std` says how far the weights
    may move, and 1 lets them go as far as those of a network that starts from nothing. Calibrating the prior leaves
    them alone. Without `from_weights`, `prior_std` means nothing.
    """
    require_positive("prior_std", prior_std)
    copies: dict[int, Any] = {}  # deepcopy takes these in place of the modules with these ids
    owners: dict[int, str] = {}
    for path, module in net.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in owners and type(module) in LAYERS:
                first = owners[id(parameter)]
                raise problem(path, f"its {name} is that of {first} too; call one layer twice instead")
            owners[id(parameter)] = path
        if type(module) in LAYERS:
            copies[id(module)] = gaussian_layer(path, module, prior_std if from_weights else None)
        else:
            require_convertible(path, module)
    converted = copy.deepcopy(net, copies)
    for part in converted.modules():
        if type(part) is nn.Sequential:
            part.__class__ = tnn.Sequential  # the same with fewer calls
        elif not isinstance(part, KEPT):
            part.register_forward_hook(explain_call_of_mean, always_call=True)
    return converted


def require_convertible(path: str, module: nn.Module) -> None:
    """Refuse a module that is no layer of ours and cannot be copied with its parts replaced either."""
    kind = type(module)
    if kind.__module__.startswith("torch.nn.") and not isinstance(module, KEPT):
        raise problem(path, f"{kind.__name__} has no Gaussian counterpart: {remedy(kind.__name__, ORDINARY)}")
    own = [name for name, _ in module.named_parameters(recurse=False)]
    if own and not isinstance(module, GaussianParameter):
        what = f"{kind.__name__} has a parameter of its own, {own[0]}"
        raise problem(path, f"{what}. Put it into a layer, or make it a buffer if it is to stay as it is")


def gaussian_layer(path: str, module: nn.Module, prior_std: float | None) -> Layer:
    """The layer of ours with the module's options; its weights too, if there is a `prior_std` for them."""
    kind = LAYERS[type(module)]
    weights = dict(module.named_parameters(recurse=False))
    if has_module_hook(module) or not weights.keys() <= {"weight", "bias"}:
        raise problem(path, f"{type(module).__name__} has hooks, a weight norm's say: remove them first")
    options: dict[str, Any] = {}
    for name, option in inspect.signature(type(module)).parameters.items():
        if option.kind in (option.VAR_POSITIONAL, option.VAR_KEYWORD) or name in WITHOUT_MEANING:
            continue
        value = getattr(module, name)
        if name == "bias":
            value = value is not None or "weight" not in weights
        if name in kind.arguments:
            options[name] = value
        elif value != option.default:
            raise problem(path, f"tagi.nn.{kind.__name__} has no {name}={value!r}: use {option.default!r}")
    like = next(itertools.chain(weights.values(), module.buffers()), None)
    if like is not None:
        options |= {"device": like.device, "dtype": like.dtype}
    try:
        layer = kind(**options)
    except ValueError as error:
        raise problem(path, str(error)) from None
    for name, trained in weights.items():
        parameter: GaussianParameter = getattr(layer, name)
        if prior_std is not None:
            parameter.set_(trained.detach(), parameter.var.detach() * prior_std**2)
        parameter.requires_grad_(trained.requires_grad)
    if prior_std is not None:
        for name, buffer in module.named_buffers():
            layer.get_buffer(name).copy_(buffer)
    return layer.train(module.training)


CALL_OF_MEAN = "mean and var are attributes of a Gaussian: instead of x.mean(dim) write torch.mean(x, dim)"


def explain_call_of_mean(module: nn.Module, inputs: Any, output: Any) -> None:
    """Where Python can only say that a tensor was called, say what to do about it."""
    error = sys.exception()
    if isinstance(error, TypeError) and str(error) == "'Tensor' object is not callable":
        error.__notes__ = [CALL_OF_MEAN]  # once, however many modules it passes through
