"""A step without autograd: a plain chain of layers, run forward and back by hand.

Autograd is what lets a network be any Python function. A small network pays for it: a third of its step goes into
nodes that are built, queued and torn down for each batch. A `Sequential` of layers needs none of them. Its layers'
forward halves in turn, the likelihood's message, the update's record and the backward halves in reverse are the
calls that autograd would make, with the same operands in the same order, so updates are equal to the bit.

That holds where nobody else takes part. With a hook, a second update, a wrapper, a layer that is not one Function,
a parameter that is not this update's or an input that asks for its message, the step is autograd's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.compat import has_global_module_hook, has_module_hook, has_tensor_hook
from torchtagi.gaussian import Gaussian
from torchtagi.inference.output_hook import Call, is_only_hook
from torchtagi.inference.update import Update
from torchtagi.likelihoods.observation import Observer
from torchtagi.nn import chain

Watch = Callable[[Any, Gaussian, Tensor], object]
FORWARDS = (nn.Sequential.forward, chain.Sequential.forward)


def learn_directly(
    net: nn.Module,
    likelihood: nn.Module,
    update: Update,
    x: Tensor | Gaussian,
    y: Tensor,
    full: bool,
    before: Watch | None = None,
) -> Tensor | None:
    """One step on y at finite x, by a full pass or by a mean pass: its loss, or None, and nothing done, where it
    takes autograd.

    `before` is shown x, the network's output and y before anything is learned from them.
    """
    units = x if isinstance(x, Gaussian) else Gaussian.trusted(x, None)
    if not is_alone(net, likelihood, update, units):
        return None
    layers: list[Any] = list(net._modules.values())
    if not all(map(chain.joins, layers)):
        return None
    operands = [layer.operands() for layer in layers]
    learning = [one for own in operands for one in own if isinstance(one, Tensor) and one.requires_grad]
    if not learning or any(map(has_tensor_hook, learning)) or not update.holds(learning):
        return None
    with torch.inference_mode():  # cheaper than no_grad; nothing made here is seen outside, z apart
        mean, var, links = chain.moments(layers, operands, units.mean, units.var)
        if full and var is None:
            return None
        with torch.inference_mode(False), torch.no_grad():  # what a likelihood keeps must be an ordinary tensor
            z = Gaussian.trusted(mean, var) if full else update.passes.outputs(mean)
            loss, gradient, curvature = say(likelihood, update, x, z, y, full, before)
        _, _, answers = chain.messages(links, gradient, curvature if full else None)
        for own, to_own in zip(operands, answers, strict=True):
            for parameter, answer in zip(own, to_own, strict=True):
                if answer is not None:
                    parameter.grad = answer if parameter.grad is None else parameter.grad + answer
        update.apply_messages(full)
    return loss


def say(
    likelihood: Any, update: Update, x: Any, z: Gaussian, y: Tensor, full: bool, before: Watch | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss of y at outputs z, and the message to them as the update passes it on."""
    if full:
        update.passes.remember(z)
    if before is not None:
        before(x, z, y)
    message = likelihood.message(z, y)
    # as autograd does: targets in float64 send messages in float64
    gradient, curvature = (part.to(z.dtype) for part in (message.gradient, message.curvature))
    return message.loss, *update.receive(Call(len(z)), z.variance, gradient, curvature)


def is_alone(net: nn.Module, likelihood: nn.Module, update: Update, x: Gaussian) -> bool:
    """Whether autograd would do nothing but call one half after the other."""
    return (
        isinstance(net, nn.Sequential)
        and isinstance(likelihood, Observer)
        and function_of(net.forward) in FORWARDS
        and function_of(likelihood.forward) is Observer.forward
        and update.process_group is None
        and not update.has_hooks()
        and x.plain is None
        and not x.mean.requires_grad
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled(x.device.type)
        and not has_global_module_hook()
        and not has_module_hook(likelihood)
        and is_only_hook(net, update)
    )


def function_of(method: Any) -> Any:
    return getattr(method, "__func__", None)
