"""Regression whose noise the network predicts too: approximate Gaussian variance inference (AGVI).

The outputs come in pairs: z ~ N(m, v), and b ~ N(n, w) for the noise variance (positive, by `nn.EvenExp`).

    y = z + e,   e ~ N(0, b)                    var[y] = v + n

The message to z is that of an observation with noise n. For b, y is first inferred back to e, then to e²:

    E[e|y] = n r/(v + n),  var[e|y] = n − n²/(v + n)         r = y − m
    E[e²|y] = E[e|y]² + var[e|y],  var[e²|y] = 2 var[e|y]² + 4 var[e|y] E[e|y]²

and from e², whose prior is N(n, 3w + 2n²), to b with gain K = w/(3w + 2n²):

    Δn = K (E[e²|y] − n),  Δw = K² (var[e²|y] − 3w − 2n²);   the message is −Δn/w, −Δw/w²

A sample of weight k has the noise n/k in the messages to z and e, as in `observation`. Its e² is the mean of k
equal ones, whose prior is N(n, w + 2 (w + n²)/k). A NaN target is missing.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods.observation import LOG_TWO_PI, Message, Observer, require_output, require_targets


class HeteroscedasticRegression(Observer):
    """The network's outputs are pairs (mean, noise variance); see `nn.EvenExp`."""

    def message(self, z: Gaussian, y: Tensor) -> Message:
        signal, noise = self.check(z, y)
        n, w, k = noise.mean, noise.variance, self.weights_like(y)
        own = n / k
        precision = (signal.variance + own).reciprocal()
        observed = ~torch.isnan(y)
        r = torch.where(observed, y - signal.mean, 0.0)
        error = own * r * precision
        error_var = own - own.square() * precision
        prior_var = (1 + 2 / k) * w + 2 / k * n.square()
        # Δn/w = K/w (…) with K/w = 1/prior_var: no division by a w that may be tiny
        dn = (error.square() + error_var - n) / prior_var
        dw = (2 * error_var.square() + 4 * error_var * error.square() - prior_var) / prior_var.square()
        losses = 0.5 * (r.square() * precision - precision.log() + LOG_TWO_PI)

        def interleaved(of_signal: Tensor, of_noise: Tensor) -> Tensor:
            pair = torch.stack([of_signal, of_noise], -1)
            return torch.where(observed[..., None], pair, 0.0).flatten(-2)

        gradient, curvature = interleaved(-r * precision, -dn), interleaved(precision, -dw)
        in_var = 0.5 * (precision - (r * precision).square())  # of the loss, in v as in n/k
        derivatives = interleaved(-r * precision, in_var / k), interleaved(in_var, torch.zeros_like(in_var))
        return Message(torch.where(observed, losses, 0.0).sum(), gradient, curvature, derivatives)

    def split(self, z: Gaussian) -> tuple[Gaussian, Tensor]:
        """The targets without their noise, and its variance."""
        signal, noise = pairs(z)
        return signal, noise.mean

    def predict(self, z: Gaussian) -> Gaussian:
        """N(m, v + n) for each pair."""
        signal, noise_var = self.split(require_output("z", z))
        return Gaussian.trusted(signal.mean, signal.variance + noise_var)

    def log_prob(self, z: Gaussian, y: Tensor) -> Tensor:
        """Summed over the targets; a missing one counts nothing."""
        self.check(z, y)
        return torch.where(torch.isnan(y), 0.0, self.predict(z).log_prob(y)).flatten(1).sum(1)

    def config(self) -> dict[str, Any]:
        return {}

    def check(self, z: Gaussian, y: Tensor) -> tuple[Gaussian, Gaussian]:
        require_targets(y)
        signal, noise = pairs(require_output("z", z))
        if y.shape != signal.shape:
            raise ValueError(f"y must have shape {tuple(signal.shape)}, half the outputs, got {tuple(y.shape)}")
        smallest = noise.mean.min().item() if noise.mean.numel() else 1.0
        if not (smallest > 0 and math.isfinite(smallest)):
            raise ValueError(
                f"the noise variance, every second output, must be positive, got {smallest}: end the network "
                "with nn.EvenExp()"
            )
        return signal, noise


def pairs(z: Gaussian) -> tuple[Gaussian, Gaussian]:
    if z.shape[-1] % 2:
        raise ValueError(f"z must have an even last dimension, got shape {tuple(z.shape)}")
    return z[..., 0::2], z[..., 1::2]
