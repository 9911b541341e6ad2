"""A step without autograd: a plain chain of layers, run forward and back by hand.

Autograd is what lets a network be any Python function. A small network pays for it: a third of its step goes into
nodes that are built, queued and torn down for each batch. A `Sequential` of layers needs none of them. Its layers'
forward halves in turn, the likelihood's message, the update's record and the backward halves in reverse are the
calls that autograd would make, with the same operands in the same order, so updates are equal to the bit.

That holds where nobody else takes part. With a hook, a second update, a wrapper, a layer that is not one Function,
a parameter that is not this update's or an input that asks for its message, the step is autograd's.

What lies between two layers is the chain's own, so a ReLU may work in place there; `owns_input` and `owns_message`
tell it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.compat import has_global_module_hook, has_module_hook, has_tensor_hook
from torchtagi.gaussian import Gaussian
from torchtagi.inference.output_hook import Call, is_only_hook
from torchtagi.inference.update import Update
from torchtagi.likelihoods.observation import Message, Observer
from torchtagi.nn.layer import Layer
from torchtagi.nn.mean_pass import mean_pass

Watch = Callable[[Any, Gaussian, Tensor], object]


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
    if not all(map(joins, layers)):
        return None
    with nullcontext() if full else mean_pass():
        operands = [layer.operands() for layer in layers]
    learning = [one for own in operands for one in own if isinstance(one, Tensor) and one.requires_grad]
    if not learning or any(map(has_tensor_hook, learning)) or not update.holds(learning):
        return None
    with torch.inference_mode():  # cheaper than no_grad; nothing made here is seen outside, z apart
        mean, var, links = moments(layers, operands, units.mean, units.var)
    if full and var is None:
        return None
    with torch.no_grad():  # what a likelihood keeps must be an ordinary tensor
        z = Gaussian.trusted(mean, var) if full else update.passes.outputs(mean)
        message = say(likelihood, update, x, z, y, full, before)
    with torch.inference_mode():
        gradient, curvature = receive(update, z, message)
        _, _, answers = messages(links, gradient, curvature if full else None)
        for own, to_own in zip(reversed(operands), reversed(answers), strict=True):  # autograd's order
            for parameter, answer in zip(own, to_own, strict=True):
                if answer is not None:
                    parameter.grad = answer if parameter.grad is None else parameter.grad + answer
        update.apply_messages(full)
    return message.loss


def say(
    likelihood: Any, update: Update, x: Any, z: Gaussian, y: Tensor, full: bool, before: Watch | None
) -> Message:
    """What y says of outputs z."""
    if full:
        update.passes.remember(z)
    if before is not None:
        before(x, z, y)
    message: Message = likelihood.message(z, y)
    return message


def receive(update: Update, z: Gaussian, message: Message) -> tuple[Tensor, Tensor]:
    """The message to outputs z as the update passes it on."""
    # as autograd does: targets in float64 send messages in float64
    gradient, curvature = (part.to(z.dtype) for part in (message.gradient, message.curvature))
    return update.receive(Call(len(z)), z.variance, gradient, curvature)


def is_alone(net: nn.Module, likelihood: nn.Module, update: Update, x: Gaussian) -> bool:
    """Whether autograd would do nothing but call one half after the other."""
    return (
        isinstance(net, nn.Sequential)
        and isinstance(likelihood, Observer)
        and function_of(net.forward) is nn.Sequential.forward
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


class Link:
    """Stands in for torch's context where a chain calls one of its layers' Functions."""

    owns_message = False
    saved_tensors: tuple[Tensor, ...] = ()

    def __init__(self, layer: Layer, needs_input_grad: tuple[bool, ...], owns_input: bool) -> None:
        self.function: Any = layer.function
        self.passes_message_on = layer.passes_message_on
        self.needs_input_grad, self.owns_input = needs_input_grad, owns_input

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors


def moments(
    layers: Sequence[Layer], operands: Sequence[Sequence[Any]], mean: Tensor, var: Tensor | None
) -> tuple[Tensor, Tensor | None, list[Link]]:
    """The layers' forward halves in turn, each with its own operands."""
    mean_asks, var_asks = mean.requires_grad, var is not None and var.requires_grad
    links = []
    free = False
    for layer, own in zip(layers, operands, strict=True):
        layer.check_input(mean, var)
        function: Any = layer.function
        asks = [isinstance(one, Tensor) and one.requires_grad for one in own]
        link = Link(layer, (mean_asks, var_asks, *asks), free)
        mean, var = function.forward(link, mean, var, *own)
        links.append(link)
        mean_asks = mean_asks or any(asks)
        var_asks = mean_asks and var is not None
        free = layer.output_is_free
    return mean, var, links


def messages(
    links: Sequence[Link], dmean: Tensor | None, dvar: Tensor | None
) -> tuple[Tensor | None, Tensor | None, list[Sequence[Tensor | None]]]:
    """Their backward halves: the message to the input, and to each layer's operands."""
    answers: list[Sequence[Tensor | None]] = []
    owned = False
    for link in reversed(links):
        if dmean is None and dvar is None:  # nothing further up asks
            answers.append((None,) * (len(link.needs_input_grad) - 2))
            link.saved_tensors = ()
            continue
        link.owns_message = owned
        dmean, dvar, *to_operands = link.function.backward(link, dmean, dvar)
        link.saved_tensors = ()
        answers.append(to_operands)
        owned = owned or not link.passes_message_on
    return dmean, dvar, answers[::-1]


def joins(part: Any) -> bool:
    """Whether calling its Function is all that calling the layer does."""
    return (
        isinstance(part, Layer)
        and part.function is not None
        and function_is_forward(type(part))  # type: ignore[arg-type]
        and "forward" not in part.__dict__
        and not has_module_hook(part)
    )


@cache
def function_is_forward(kind: type) -> bool:
    """A subclass that has its own `forward`, and not its own `function` with it, does something else."""
    with_forward, with_function = (
        next(base for base in kind.__mro__ if name in base.__dict__) for name in ("forward", "function")
    )
    return issubclass(with_function, with_forward)
