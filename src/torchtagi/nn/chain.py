"""Several layers as one node of the autograd graph.

A layer's moments and messages are the two halves of a `torch.autograd.Function`. Run one by one, each costs a visit
from Python to the engine and back, which in a small network is most of the time. `Sequential` runs neighbouring
layers inside one Function: it calls the same two halves in turn, and the engine sees one node.

What lies between two layers of a chain is the chain's own, so a ReLU may work in place there; `owns_input` and
`owns_message` tell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.compat import has_global_module_hook, has_module_hook
from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.nn.layer import Layer


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


class ChainMoments(torch.autograd.Function):
    """`layers` in turn; `operands` are all of theirs in a row, `counts` how many each has."""

    @staticmethod
    def forward(
        ctx: Any, layers: list[Layer], counts: list[int], mean: Tensor, var: Tensor | None, *operands: Any
    ) -> tuple[Tensor, Tensor | None]:
        mean, var, ctx.links = moments(layers, parts(operands, counts), mean, var)
        # torch keeps them, and frees them after the backward pass
        ctx.save_for_backward(*(tensor for link in ctx.links for tensor in link.saved_tensors))
        ctx.kept = [len(link.saved_tensors) for link in ctx.links]
        for link in ctx.links:
            link.saved_tensors = ()
        return mean, var

    @staticmethod
    def backward(ctx: Any, *message: Tensor | None) -> tuple[Tensor | None, ...]:
        for link, saved in zip(ctx.links, parts(ctx.saved_tensors, ctx.kept), strict=True):
            link.saved_tensors = saved
        dmean, dvar, answers = messages(ctx.links, *message)
        return None, None, dmean, dvar, *(answer for part in answers for answer in part)


def parts(row: Sequence[Any], counts: Iterable[int]) -> list[Sequence[Any]]:
    """A row cut into pieces of these lengths."""
    rest = iter(row)
    return [tuple(islice(rest, count)) for count in counts]


class Sequential(nn.Sequential):
    """`torch.nn.Sequential`, which runs neighbouring layers as one node where it can.

    It makes no difference to results. A layer with hooks of its own (a debugger's, FSDP's) is called by itself.
    """

    def forward(self, x: Any) -> Any:
        whole = not has_global_module_hook()
        chain: list[Layer] = []
        for part in self._modules.values():
            if whole and joins(part):
                chain.append(part)  # type: ignore[arg-type]
            else:
                x = part(run(chain, x))
                chain = []
        return run(chain, x)


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


def run(chain: list[Layer], x: Any) -> Any:
    if len(chain) > 1:
        x = as_gaussian(x)
        if x.plain is None:
            operands = [layer.operands() for layer in chain]
            counts = [len(own) for own in operands]
            flat = (one for own in operands for one in own)
            return Gaussian.trusted(*ChainMoments.apply(chain, counts, x.mean, x.var, *flat))
    for layer in chain:
        x = layer(x)
    return x
