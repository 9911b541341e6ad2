"""A step without autograd: a plain chain of layers, run forward and back by hand.

Autograd is what lets a network be any Python function. A small network pays for it: a third of its step goes into
nodes that are built, queued and torn down for each batch. A `Sequential` of layers needs none of them. Its layers'
forward halves in turn, the likelihood's message, the update's ledger and the backward halves in reverse are the
calls that autograd would make, with the same operands in the same order, so posteriors are equal to the bit.

That holds where nobody else takes part. With a hook, a second update, a wrapper, a layer that is not one Function,
a parameter that is not this update's or an input that asks for its message, the step is autograd's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from torchtagi.gaussian import Gaussian
from torchtagi.inference.output_hook import Call, hears_alone
from torchtagi.inference.update import Update
from torchtagi.likelihoods.observation import Observer
from torchtagi.nn import chain

Watch = Callable[[Gaussian, Tensor], object]
FORWARDS = (nn.Sequential.forward, chain.Sequential.forward)


def learn(
    net: nn.Module, likelihood: nn.Module, posterior: Update, x: Tensor, y: Tensor, before: Watch | None = None
) -> Tensor | None:
    """One step on y at finite x: its negative log-evidence, or None, and nothing done, where it takes autograd.

    `before` is shown the network's output and y before anything is learned from them.
    """
    if not isinstance(likelihood, Observer) or not is_alone(net, likelihood, posterior, x):
        return None
    layers: list[Any] = list(net._modules.values())
    if not all(map(chain.joins, layers)):
        return None
    operands = [layer.operands() for layer in layers]
    learning = [one for own in operands for one in own if isinstance(one, Tensor) and one.requires_grad]
    if not learning or any(map(has_hooks, learning)) or not posterior.holds(learning):
        return None
    with torch.inference_mode():  # cheaper than no_grad; nothing made here is seen outside, z apart
        mean, var, links = chain.moments(layers, operands, x, None)
        if var is None:
            return None
        z = Gaussian.trusted(mean, var)
        with torch.inference_mode(False), torch.no_grad():  # what a likelihood keeps must be an ordinary tensor
            if before is not None:
                before(z, y)
            evidence, dmean, dvar = likelihood.message(z, y)
        # as autograd does: targets in float64 send messages in float64
        dmean, dvar = posterior.ledger.hear(Call(len(z)), var, dmean.to(mean.dtype), dvar.to(mean.dtype))
        _, _, answers = chain.messages(links, dmean, dvar)
        for own, to_own in zip(operands, answers, strict=True):
            for parameter, message in zip(own, to_own, strict=True):
                if message is not None:
                    parameter.grad = message if parameter.grad is None else parameter.grad + message
        posterior.step()
    return evidence


def is_alone(net: nn.Module, likelihood: nn.Module, posterior: Update, x: Tensor) -> bool:
    """Whether autograd would do nothing but call one half after the other."""
    return (
        isinstance(net, nn.Sequential)
        and function_of(net.forward) in FORWARDS
        and function_of(likelihood.forward) is Observer.forward
        and posterior.process_group is None
        and not posterior.has_hooks()
        and not x.requires_grad
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled(x.device.type)
        and not _has_any_global_hook()
        and not chain.has_hooks(likelihood)
        and hears_alone(net, posterior.ledger)
    )


def function_of(method: Any) -> Any:
    return getattr(method, "__func__", None)


def has_hooks(parameter: Any) -> bool:
    """Whether its message goes elsewhere on its way to `grad`."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
