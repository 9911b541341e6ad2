"""The mean of a network's last posteriors: what to predict with, while the network itself learns on.

Conditioning on one batch after the other is a filter. Each weight's variance is learned as if the others stood
still, so the variances stay wider than what is really known; a wide prior makes long steps, and the means wander
about what they should be. Where steps do not shrink as they should, the mean of the iterates is closer than the
last of them (Polyak & Juditsky 1992). With n posteriors so far

    m̄ ← m̄ + w (m − m̄),        w = max(1/steps, k/(n + k − 1)),  k = 30

is a mean over about the last `steps` of them, and over no more than the last 1/k of all: at first a network learns
faster than a long average could follow. Variances and running statistics are averaged alike; counters are copied.
The network that learns knows nothing of it.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from torchtagi.compat import foreach_lerp_
from torchtagi.inference.statistics import local

STEPS = 500
LATEST = 30  # k: results/ablation/average.jsonl


class Average:
    """Follows `net`; `.net` is a copy of it in evaluation mode that holds the average.

    average = Average(net)
    for x, y in loader:
        condition(net, likelihood, update, x, y)
        average.follow()
    likelihood.predict(average.net(x))

    It goes along where `net` is moved to another device or dtype, or gets other tensors from a `load_state_dict`.
    """

    def __init__(self, net: nn.Module, steps: int = STEPS) -> None:
        if steps < 1:
            raise ValueError(f"steps must be at least 1, got {steps}")
        self.steps, self.count = steps, 0
        self.net: nn.Module = copy.deepcopy(net).requires_grad_(False).eval()
        pairs = zip(self.net.modules(), net.modules(), strict=True)
        self.pairs = [pair for pair in pairs if pair[1]._parameters or pair[1]._buffers]

    @torch.no_grad()
    def follow(self) -> None:
        """Take in what the network is now."""
        self.count += 1
        own: list[Tensor] = []
        followed: list[Tensor] = []
        for mine, theirs in self.pairs:
            for kept, new in ((mine._parameters, theirs._parameters), (mine._buffers, theirs._buffers)):
                for name, tensor in new.items():
                    here = kept[name]
                    if tensor is None or here is None:
                        continue
                    if here.dtype != tensor.dtype or here.device != tensor.device:
                        here.data = here.data.to(tensor)
                    if tensor.is_floating_point():
                        own.append(local(here))
                        followed.append(local(tensor))
                    else:
                        here.copy_(tensor)
        foreach_lerp_(own, followed, max(1 / self.steps, LATEST / (self.count + LATEST - 1)))
