"""Which steps carry variances: full passes, and mean passes in between (`nn.mean_pass`).

A full pass carries variances forward and curvatures back. It says what the outputs' variance is and how much the
weights' variances shrink. A mean pass moves the means alone. It takes v, the variance of each output, to be what it
was on average in the last full passes, and every sum of the line search follows from that and from its gradients.

The next full pass counts for all samples since the last one: if they are k times its own, the weights' precision
grows by k times its message, 1/s⁺ = 1/s + k (1/s′ − 1/s) where s′ is what one message leaves. What a horizon or
repeats take back (`inference.update`) is added up and taken then, too.

Where the products of a step take no time worth mentioning, in networks of less than `SMALL` weights, all steps are
full passes. Variances change fast at first. So all steps are full passes then, too, and the gaps grow with the
number of steps, up to `LONGEST`; and again so when the data change.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.distributed import mean_sample
from torchtagi.gaussian import Gaussian
from torchtagi.nn.layer import Layer
from torchtagi.parameter import gaussian_parameters, ordinary_parameters

SMALL = 10_000  # weights
LONGEST = 8  # steps from a full pass to the next
GROWTH = 128  # steps after which a gap is one step longer; how little is lost: results/ablation/passes.jsonl
OFTEN = 16  # full passes while as many samples come as a horizon remembers, or as come again
NEW_VALUE = 0.5  # the weight of a full pass in the outputs' remembered variance


class Passes:
    """The schedule of an update, and what full passes leave to mean passes."""

    def __init__(self, possible: bool) -> None:
        self.possible = possible
        self.restart()

    def restart(self) -> None:
        """What comes is new: full passes first."""
        self.steps = self.next_full = 0
        self.samples = self.pull = 0.0
        self.output_var: Tensor | None = None

    def mean_pass_is_due(self) -> bool:
        return self.possible and self.output_var is not None and self.steps < self.next_full

    def remember(self, z: Gaussian) -> None:
        """What a full pass says of the outputs' variance, one number for each output of a sample."""
        if not self.possible:
            return
        var = mean_sample(z.variance)
        known = self.output_var
        fits = known is not None and known.shape == var.shape
        self.output_var = torch.lerp(known.to(var), var, NEW_VALUE) if known is not None and fits else var

    def outputs(self, mean: Tensor) -> Gaussian:
        """The outputs of a mean pass with the variance that they are taken to have."""
        assert self.output_var is not None
        return Gaussian.trusted(mean, self.output_var.to(mean).expand_as(mean))

    def end_mean_pass(self, samples: float, pull: float) -> None:
        self.steps += 1
        self.samples += samples
        self.pull += pull

    def end_full_pass(self, samples: float, remembered: float) -> None:
        """On so many samples, of as many as are remembered."""
        gap = min(1 + self.steps // GROWTH, LONGEST, remembered / OFTEN / max(samples, 1.0))
        self.next_full = self.steps + max(1, int(gap))
        self.steps += 1
        self.samples = self.pull = 0.0

    # ---- part of a file, so that a fit goes on to the bit ---------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        var = None if self.output_var is None else self.output_var.tolist()
        numbers = {name: getattr(self, name) for name in ("steps", "next_full", "samples", "pull")}
        return {**numbers, "output_var": var}

    def read_json(self, content: dict[str, Any], like: Tensor) -> None:
        self.steps, self.next_full = int(content["steps"]), int(content["next_full"])
        self.samples, self.pull = float(content["samples"]), float(content["pull"])
        var = content["output_var"]
        self.output_var = None if var is None else torch.tensor(var, dtype=like.dtype, device=like.device)


def allows_mean_passes(net: nn.Module) -> bool:
    """Not if means depend on variances, as behind activations with exact moments, nor if ordinary layers learn with
    the Gaussian ones, which are owed the path through the variances."""
    return not (
        sum(part.mean.numel() for part in gaussian_parameters([net])) < SMALL
        or any(isinstance(part, Layer) and part.mean_needs_var() for part in net.modules())
        or any(parameter.requires_grad for parameter in ordinary_parameters(net))
    )
