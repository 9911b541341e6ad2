"""The output hook: batch statistics for the update, read from the messages where they enter a network.

The update's line search needs, besides the messages on the parameters, two sums over the observations. Both are in
the messages at the network's output, whatever likelihood sent them: with error r, predictive variance v and noise R
they are gradient −r/(v+R) and curvature 1/(v+R), so

    Σ r²/(v+R) = Σ gradient²/curvature          Σ R gradient² = Σ gradient²/curvature − Σ v gradient²

A forward hook puts an identity behind the output, whose backward half records them. The update knows nothing of
likelihoods.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchtagi.compat import pytree
from torchtagi.gaussian import Gaussian
from torchtagi.nn import mean_pass


class BatchStatistics(NamedTuple):
    """Sums over the observations since the last step; additive over micro-batches and processes."""

    samples: float  # batch entries
    observations: float  # messages that are not zero
    explained: float  # Σ r²/(v+R)
    own_var: float  # Σ v gradient²

    @property
    def innovation(self) -> float:
        """The mean of r²/(v+R): near 1 where the predicted variance is right."""
        return self.explained / max(self.observations, 1.0)

    @property
    def noise_share(self) -> float:
        """κ = Σ R u² / Σ (v+R) u²: how much of the errors the model takes for noise."""
        return max(1 - self.own_var / self.explained, 0.0) if self.explained > 0 else 0.0


class Call:
    """One forward pass of the network. Several heads may learn of the same batch entries, which count once."""

    __slots__ = ("samples",)

    def __init__(self, samples: int) -> None:
        self.samples = samples


class Record:
    """The messages at the output since the last step."""

    def __init__(self) -> None:
        self.entries: list[tuple[Call, Tensor, Tensor, Tensor]] = []

    def add(
        self, call: Call, var: Tensor, gradient: Tensor, curvature: Tensor, gain_bound: float
    ) -> tuple[Tensor, Tensor]:
        """Note a message to outputs of this variance; returns it with its gain bounded by κ, zero for no bound."""
        if gain_bound:
            # R ≥ κ v is curvature ≤ 1/((1 + κ) v); a stronger message is scaled down to that
            excess = (var * curvature).mul_(1 + gain_bound).clamp_(min=1)
            gradient, curvature = gradient / excess, curvature / excess
        square = gradient * gradient
        own = square * var
        # An entry not observed has gradient = curvature = 0. A message that widens (curvature < 0, as AGVI's may)
        # is no observation with noise; it moves the mean by v·gradient, as one without noise would.
        explained = torch.where(curvature > 0, square / curvature, own)
        self.entries.append((call, curvature.bool().sum(dtype=own.dtype), explained.sum(), own.sum()))
        return gradient, curvature

    @property
    def samples(self) -> float:
        return float(sum({id(call): call.samples for call, *_ in self.entries}.values()))

    def sums(self) -> list[Tensor]:
        """What `statistics` wants to know, as tensors: three for each message."""
        return [part for _, *parts in self.entries for part in parts]

    def statistics(self, numbers: Sequence[float]) -> BatchStatistics:
        return BatchStatistics(self.samples, *(sum(numbers[part::3]) for part in range(3)))

    def totals(self, like: Tensor) -> Tensor:
        """The batch statistics of this process, in one tensor of at least single precision."""
        wide = torch.promote_types(like.dtype, torch.float32)
        totals = torch.zeros(len(BatchStatistics._fields), dtype=wide, device=like.device)
        totals[0] = self.samples
        for _, *parts in self.entries:
            totals[1:] += torch.stack(parts)
        return totals


class RecordMessages(torch.autograd.Function):
    """Passes a network's output on; on the way back the message is recorded."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor, hook: OutputHook, call: Call) -> Any:
        ctx.save_for_backward(var)
        ctx.hook, ctx.call = hook, call
        return mean, var

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, curvature: Tensor) -> tuple[Tensor | None, ...]:
        (var,) = ctx.saved_tensors
        update = ctx.hook.update()
        if update is None:
            return gradient, curvature, None, None
        return *update.receive(ctx.call, var, gradient, curvature), None, None


class OutputHook:
    """The forward hook that puts `RecordMessages` behind a network's outputs.

    It holds its update by a weak reference. A copied or unpickled network does not report to the original's update.
    """

    def __init__(self, update: Any) -> None:
        self.update: Callable[[], Any] = weakref.ref(update)

    def __reduce__(self) -> tuple[Any, ...]:
        return (InertHook, ())

    def __deepcopy__(self, memo: dict[int, Any]) -> InertHook:
        return InertHook()

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        update = self.update()
        if update is None or mean_pass.state.active or not torch.is_grad_enabled():
            return None
        if not update.expects_messages():
            return None
        if isinstance(output, Gaussian):
            return self.behind(output, Call(len(output)))
        leaves, spec = pytree.tree_flatten(output, is_leaf=lambda leaf: isinstance(leaf, Gaussian))
        call = Call(max((len(leaf) for leaf in leaves if isinstance(leaf, Gaussian)), default=0))
        recorded = [self.behind(leaf, call) if isinstance(leaf, Gaussian) else leaf for leaf in leaves]
        return pytree.tree_unflatten(recorded, spec)

    def behind(self, z: Gaussian, call: Call) -> Gaussian:
        if not z.mean.requires_grad:
            return z
        var = z.variance if z.var is None else z.var
        mean, var = RecordMessages.apply(z.mean, var, self, call)
        return Gaussian.trusted(mean, var, z.plain)


class InertHook:
    """What is left of an `OutputHook` in a copy of its network."""

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        return None


def is_only_hook(net: nn.Module, update: Any) -> bool:
    """Whether this update's hook is all that is hooked to the network."""
    if net._forward_pre_hooks or net._backward_hooks or net._backward_pre_hooks:
        return False
    hooks = [hook.update() if isinstance(hook, OutputHook) else hook for hook in net._forward_hooks.values()]
    return [hook for hook in hooks if not (hook is None or isinstance(hook, InertHook))] == [update]
