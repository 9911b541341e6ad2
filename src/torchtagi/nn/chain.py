"""Several layers as one node of the autograd graph.

A layer's moments and messages are the two halves of a `torch.autograd.Function`. Run one by one, each costs a visit
from Python to the engine and back, which in a small network is most of the time. `Sequential` runs neighbouring
layers inside one Function: it calls the same two halves in turn, and the engine sees one node.

What lies between two layers of a chain is the chain's own, so a ReLU may work in place there; `owns_input` and
`owns_message` tell it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.nn.layer import Layer


class Link:
    """Stands in for torch's context where a chain calls one of its layers' Functions."""

    owns_message = False
    saved_tensors: tuple[Tensor, ...] = ()

    def __init__(self, function: Any, needs_input_grad: tuple[bool, ...], owns_input: bool) -> None:
        self.function, self.needs_input_grad, self.owns_input = function, needs_input_grad, owns_input

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors


class ChainMoments(torch.autograd.Function):
    """`layers` in turn; `operands` are all of theirs in a row, `counts` how many each has."""

    @staticmethod
    def forward(
        ctx: Any, layers: list[Layer], counts: list[int], mean: Tensor, var: Tensor | None, *operands: Any
    ) -> tuple[Tensor, Tensor | None]:
        _, _, mean_asks, var_asks, *operands_ask = ctx.needs_input_grad
        ctx.links = []
        saved: list[Tensor] = []
        start, free = 0, False
        for layer, count in zip(layers, counts, strict=True):
            layer.check_input(mean)
            function: Any = layer.function
            asking = operands_ask[start : start + count]
            link = Link(function, (mean_asks, var_asks, *asking), free)
            mean, var = function.forward(link, mean, var, *operands[start : start + count])
            saved += link.saved_tensors
            ctx.links.append((link, count, len(link.saved_tensors)))
            link.saved_tensors = ()  # torch keeps them, and frees them after the backward pass
            mean_asks = mean_asks or any(asking)
            var_asks = mean_asks and var is not None
            start += count
            free = function in OUTPUT_IS_FREE
        ctx.save_for_backward(*saved)
        return mean, var

    @staticmethod
    def backward(ctx: Any, *message: Tensor | None) -> tuple[Tensor | None, ...]:
        dmean, dvar = message
        saved = ctx.saved_tensors
        end, owned = len(saved), False
        answers: list[tuple[Tensor | None, ...]] = []
        for link, count, kept in reversed(ctx.links):
            if dmean is None and dvar is None:  # nothing further up asks
                answers.append((None,) * count)
                continue
            link.saved_tensors = saved[end - kept : end]
            link.owns_message = owned
            dmean, dvar, *to_operands = link.function.backward(link, dmean, dvar)
            link.saved_tensors = ()
            answers.append(tuple(to_operands))
            end -= kept
            owned = owned or link.function not in PASSES_ON
        return None, None, dmean, dvar, *(answer for part in reversed(answers) for answer in part)


OUTPUT_IS_FREE: set[Any] = set()
"""Functions that neither keep what they return nor return what they were given."""

PASSES_ON: set[Any] = set()
"""Functions whose messages may be views of those they got."""


class Sequential(nn.Sequential):
    """`torch.nn.Sequential`, which runs neighbouring layers as one node where it can.

    It makes no difference to results. A layer with hooks of its own (a debugger's, FSDP's) is called by itself.
    """

    def forward(self, x: Any) -> Any:
        whole = not _has_any_global_hook()
        chain: list[Layer] = []
        for part in self._modules.values():
            if whole and joins(part):
                chain.append(part)  # type: ignore[arg-type]
            else:
                x = part(run(chain, x))
                chain = []
        return run(chain, x)


def joins(part: Any) -> bool:
    return (
        isinstance(part, Layer)
        and part.function is not None
        and not (part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)
    )


def run(chain: list[Layer], x: Any) -> Any:
    if not chain:
        return x
    if len(chain) == 1:
        return chain[0](x)
    x = as_gaussian(x)
    operands = [layer.operands() for layer in chain]
    return Gaussian.trusted(
        *ChainMoments.apply(
            chain, [len(each) for each in operands], x.mean, x.var, *(one for each in operands for one in each)
        )
    )
