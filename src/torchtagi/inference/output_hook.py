"""What a network hears: the messages that enter it through its output, noted for the update.

The update's line search needs, besides the messages on the parameters, two sums over the observations. Both are in
the messages at the network's output, whatever likelihood sent them: dm = r/(v+R) and dv = −1/(v+R) give

    Σ r·dm = Σ dm²/(−dv)          Σ R dm² = Σ dm²/(−dv) − Σ v dm²

So an update listens there, by a forward hook, and knows nothing of likelihoods.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from torchtagi.gaussian import Gaussian


class Heard(NamedTuple):
    """Sums over the observations since the last step; additive over micro-batches and processes."""

    samples: float  # batch entries
    observations: float  # messages that are not zero
    explained: float  # Σ r·dm, which is also Σ r²/(v+R)
    own_var: float  # Σ v dm²

    @property
    def innovation(self) -> float:
        """The mean of r²/(v+R): near 1 where the predicted variance is right."""
        return self.explained / max(self.observations, 1.0)


class Call:
    """One forward pass of the network. Several heads may hear of the same batch entries, which count once."""

    __slots__ = ("samples",)

    def __init__(self, samples: int) -> None:
        self.samples = samples


class Ledger:
    """What was heard since the last step; `bound` is κ of the update rule, zero for none."""

    def __init__(self, bound: float, opens: Callable[[], bool] = lambda: True) -> None:
        self.bound = bound
        self.opens = opens
        """Asked before each forward pass: whether anything of it will be learned from."""
        self.entries: list[tuple[Call, Tensor, Tensor, Tensor]] = []

    def hear(self, call: Call, var: Tensor, dmean: Tensor, dvar: Tensor) -> tuple[Tensor, Tensor]:
        """Note a message to outputs of this variance; returns it with its gain bounded."""
        if self.bound:
            # R ≥ κ v is −dv ≤ 1/((1 + κ) v); a louder message is scaled down to that
            excess = (var * dvar).mul_(-1 - self.bound).clamp_(min=1)
            dmean, dvar = dmean / excess, dvar / excess
        square = dmean * dmean
        own = square * var
        # An entry not observed has dm = dv = 0. A message that widens (dv > 0, as AGVI's may) is no observation
        # with noise; it moves the mean by v dm, as one without noise would.
        explained = torch.where(dvar < 0, square / dvar, -own)
        self.entries.append((call, torch.count_nonzero(dvar), explained.sum(), own.sum()))
        return dmean, dvar

    def sums(self) -> Heard:
        observations = explained = own_var = 0.0
        for _, count, explained_here, own_var_here in self.entries:
            observations += count.item()
            explained -= explained_here.item()
            own_var += own_var_here.item()
        calls = {id(call): call.samples for call, *_ in self.entries}
        return Heard(float(sum(calls.values())), observations, explained, own_var)


class Listen(torch.autograd.Function):
    """Passes a network's output on; on the way back its ledger hears the message."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, ledger: Ledger, call: Call) -> Any:
        ctx.save_for_backward(var)
        ctx.ledger, ctx.call = ledger, call
        return mean, var

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, dvar: Tensor) -> tuple[Tensor | None, ...]:
        (var,) = ctx.saved_tensors
        return *ctx.ledger.hear(ctx.call, var, dmean, dvar), None, None


class Tap:
    """The forward hook that puts `Listen` behind a network's outputs.

    It holds its ledger by a weak reference: a discarded update stops listening. A copied or unpickled network does
    not report to the original's update.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger: Callable[[], Ledger | None] = weakref.ref(ledger)

    def __reduce__(self) -> tuple[Any, ...]:
        return (InertTap, ())

    def __deepcopy__(self, memo: dict[int, Any]) -> InertTap:
        return InertTap()

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        ledger = self.ledger()
        if ledger is None or not torch.is_grad_enabled() or not ledger.opens():
            return None
        if isinstance(output, Gaussian):
            return listen(output, ledger, Call(len(output)))
        leaves, spec = pytree.tree_flatten(output, is_leaf=lambda leaf: isinstance(leaf, Gaussian))
        call = Call(max((len(leaf) for leaf in leaves if isinstance(leaf, Gaussian)), default=0))
        heard = [listen(leaf, ledger, call) if isinstance(leaf, Gaussian) else leaf for leaf in leaves]
        return pytree.tree_unflatten(heard, spec)


class InertTap:
    """What is left of a `Tap` in a copy of its network."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        return None


def hears_alone(net: nn.Module, ledger: Ledger) -> bool:
    """Whether this ledger's tap is all that is hooked to the network."""
    if net._forward_pre_hooks or net._backward_hooks or net._backward_pre_hooks:
        return False
    hooks = [hook.ledger() if isinstance(hook, Tap) else hook for hook in net._forward_hooks.values()]
    return [hook for hook in hooks if not (hook is None or isinstance(hook, InertTap))] == [ledger]


def listen(z: Gaussian, ledger: Ledger, call: Call) -> Gaussian:
    if not z.mean.requires_grad:
        return z
    return Gaussian.trusted(*Listen.apply(z.mean, z.variance if z.var is None else z.var, ledger, call))
