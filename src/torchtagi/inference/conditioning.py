"""Conditioning a network on a batch, in chunks.

Bayes' rule is associative: the update after one chunk is the prior for the next, and in a linear model the
order makes no difference. Where every step linearises anew, small chunks are the better approximation: one step
on 256 correlated observations moves along a single direction, sixteen steps on 16 along sixteen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi import distributed
from torchtagi.checks import require_values
from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.inference import direct
from torchtagi.inference.update import Update
from torchtagi.likelihoods.observation import Observer
from torchtagi.nn.mean_pass import mean_pass

Inputs = Tensor | Gaussian

CHUNK = 16  # the paper's batch; docs/measurements.md compares batches of 1 to 256 taken whole and in chunks


def condition(
    net: nn.Module,
    likelihood: nn.Module,
    update: Update,
    x: Inputs,
    y: Tensor,
    chunk: int = CHUNK,
    before: direct.Watch | None = None,
    after: Callable[[], object] | None = None,
    sizes: Sequence[int] | None = None,
) -> float:
    """Update `net` with the observations y at x, `chunk` at a time; returns their loss.

    `before(inputs, z, targets)` is shown each chunk with its outputs, for looking at, before it is learned from;
    `after()` is called when it has been. Where the network is a plain `Sequential` of layers, the steps do without
    autograd (see `direct`); results are the same. A single sample that would be left over joins the last chunk.
    What precedes a chunk that is refused, because of a label out of range say, has been learned.

    Of processes that learn together (`distributed.joined`) each gives its own samples and gets their loss. `sizes`,
    how many each has, says that x and y are known to be in order.
    """
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if sizes is None:
        (x, y), sizes = distributed.together(lambda: checked(x, y))
    losses = []
    try:
        for inputs, targets in chunks(x, y, chunk, max(chunk_count(samples, chunk) for samples in sizes)):
            update.zero_grad()
            full = not may_pass_means(likelihood, update, inputs)
            loss = direct.learn_directly(net, likelihood, update, inputs, targets, full, before)
            if loss is None:
                by_autograd = learn_by_autograd if full else learn_means
                loss = by_autograd(net, likelihood, update, inputs, targets, before)
            losses.append(loss)
            if after is not None:
                after()
    finally:
        update.zero_grad()  # not even a message that could not be learned from is left behind
    return float(sum(losses))


def checked(x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
    """Both, if they can be learned from."""
    require_values("x", x.mean if isinstance(x, Gaussian) else x)
    if len(y) != len(x):
        raise ValueError(f"y must have as many entries as x, {len(x)}, got {len(y)}")
    return x, y


def chunk_count(samples: int, size: int) -> int:
    """How many pieces of `size`; a single sample left over joins the last of them, because a batch norm finds no
    spread in it."""
    return max(1, math.ceil((samples - 1) / size))


def chunks(x: Inputs, y: Tensor, size: int, count: int | None = None) -> Iterator[tuple[Inputs, Tensor]]:
    """Both in as many pieces as there are, or in `count`: those behind the last sample are empty."""
    own = chunk_count(len(x), size)
    if own == 1:
        yield x, y
    else:
        for piece in range(own):
            rows = slice(piece * size, (piece + 1) * size if piece + 1 < own else None)
            yield x[rows], y[rows]
    for _ in range(own, count or own):
        yield x[:0], y[:0]


def may_pass_means(likelihood: nn.Module, update: Update, x: Inputs) -> bool:
    return (
        update.passes.mean_pass_is_due()
        and (update.process_group is None or distributed.state.group is not None)
        and isinstance(x, Tensor)
        and not x.requires_grad
        and torch.is_grad_enabled()
        and isinstance(likelihood, Observer)
        and direct.function_of(likelihood.forward) is Observer.forward
    )


def learn_means(
    net: nn.Module, likelihood: Any, update: Update, x: Inputs, y: Tensor, before: direct.Watch | None
) -> Tensor:
    """One step by a mean pass and torch's autograd."""
    with mean_pass():
        mean = net(as_gaussian(x, finite=True)).mean
    with torch.no_grad():
        z = update.passes.outputs(mean.detach())
        message = direct.say(likelihood, update, x, z, y, False, before)
        gradient, _ = direct.receive(update, z, message)
    if not mean.requires_grad:
        update.explain_no_messages()
    mean.backward(gradient)
    with torch.no_grad():
        update.apply_messages(full=False)
    return message.loss


def learn_by_autograd(
    net: nn.Module, likelihood: nn.Module, update: Update, x: Inputs, y: Tensor, before: direct.Watch | None
) -> Tensor:
    """One step by a full pass and autograd."""
    z = net(as_gaussian(x, finite=True))
    with torch.no_grad():
        if isinstance(z, Gaussian):
            update.passes.remember(z)
        if before is not None:
            before(x, z, y)
    loss: Tensor = likelihood(z, y)
    if torch.is_grad_enabled() and not loss.requires_grad:
        update.explain_no_messages()
    loss.backward()
    update.step()
    return loss.detach()
