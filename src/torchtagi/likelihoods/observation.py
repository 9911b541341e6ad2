"""A noisy observation of units: what all likelihoods come down to.

    y = z + e,  e ~ N(0, R),  z ~ N(m, v)      log-evidence  log N(y; m, v + R)

Its first and second derivatives in m are the message handed backward:

    dm = (y − m)/(v + R)          dv = −1/(v + R)

An entry that is not observed sends no message and adds nothing to the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchtagi.checks import require_positive
from torchtagi.gaussian import Gaussian

NOISE_MEMORY = 1600.0  # observations; 100 batches of 16 on one output
LOG_TWO_PI = math.log(2 * math.pi)


class Message(NamedTuple):
    """What a batch says: its negative log-evidence, and (dm, dv) for each output."""

    evidence: Tensor
    dmean: Tensor
    dvar: Tensor


class Send(torch.autograd.Function):
    """A batch's negative log-evidence, whose `backward()` sends the message; `say` is called without gradients."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, var: Tensor | None, say: Callable[[], Message]) -> Tensor:
        evidence, dmean, dvar = say()
        ctx.save_for_backward(dmean, dvar)
        return evidence

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        dmean, dvar = ctx.saved_tensors
        return dmean * weight, dvar * weight if ctx.needs_input_grad[1] else None, None


def require_fitting_noise(noise_var: Tensor, z: Gaussian) -> Tensor:
    """A noise of one number, one for each output or one for each observation; any other shape would stretch z."""
    if noise_var.ndim and not (
        noise_var.shape == z.shape
        or (noise_var.ndim < z.ndim and noise_var.shape == z.shape[-noise_var.ndim :])
        or (noise_var.ndim == z.ndim and all(n in (1, m) for n, m in zip(noise_var.shape, z.shape, strict=True)))
    ):
        raise ValueError(
            f"noise_std must be one number, one for each output or one for each observation of the outputs' shape "
            f"{tuple(z.shape)}, got shape {tuple(noise_var.shape)}"
        )
    return noise_var


def observe(z: Gaussian, target: Tensor, noise_var: Tensor, observed: Tensor | None) -> Message:
    """What targets seen through noise say; where `observed` is False nothing was seen."""
    require_fitting_noise(noise_var, z)
    total = z.variance + noise_var
    precision = total.reciprocal()
    innovation = target - z.mean
    if observed is not None:
        # a selection, not a product: an unobserved target may be NaN
        innovation = torch.where(observed, innovation, 0.0)
    dmean = innovation * precision
    losses = (innovation * dmean).add_(total.mul_(2 * math.pi).log_())
    if observed is not None:
        precision, losses = precision * observed, losses * observed
    return Message(losses.sum().mul_(0.5), dmean, precision.neg_())


class Observer(nn.Module):
    """What sends a network its messages: a subclass says them, this class gives them to autograd."""

    def message(self, z: Gaussian, y: Tensor) -> Message:
        """What y says about the outputs z; called once a batch, without gradients."""
        raise AssertionError("each likelihood says what its data tell")

    def forward(self, z: Gaussian, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        require_output("z", z)
        evidence: Tensor = Send.apply(z.mean, z.var, lambda: self.message(z, y, *args, **kwargs))
        return evidence


class Likelihood(Observer):
    """How data follow from a network's outputs: three verbs and a noise.

    `likelihood(z, y)`             the batch's negative log-evidence; call `.backward()` on it
    `likelihood.predict(z)`        what will be observed, with its uncertainty
    `likelihood.log_prob(z, y)`    log-probability of held-out data, one number a sample

    `learn_noise=True` learns the noise from the innovations in training; `noise_std` is then its floor. Of several
    processes each learns it from its own share of the data.
    """

    noise_var: Tensor
    residual_var: Tensor | None

    def __init__(self, noise_std: float | Sequence[float] | Tensor, learn_noise: bool = False) -> None:
        super().__init__()
        std = torch.as_tensor(noise_std, dtype=torch.get_default_dtype())
        require_positive("noise_std", std)
        self.learn_noise = learn_noise
        self.register_buffer("noise_var", std.square())
        # the prior guess 1 is the variance of a ±1 code and of a standardised target
        self.register_buffer("residual_var", torch.ones(()) if learn_noise else None)

    @property
    def noise_std(self) -> Tensor:
        """The observation noise σ_V, one number or one for each output; assign to it for a decay (eq. 7)."""
        return self.noise_var.sqrt()

    @noise_std.setter
    def noise_std(self, value: float | Tensor) -> None:
        require_positive("noise_std", value)
        var = torch.as_tensor(value, dtype=self.noise_var.dtype, device=self.noise_var.device).square()
        self.noise_var.copy_(var.expand_as(self.noise_var))

    @property
    def learned_noise_var(self) -> Tensor:
        """The noise that messages assume: what was learned, or was given."""
        return self.noise_var if self.residual_var is None else self.noise_var.clamp_min(self.residual_var.item())

    @property
    def predictive_noise_var(self) -> Tensor:
        """The noise that predictions assume."""
        return self.learned_noise_var

    def training_noise_var(self, z: Gaussian, target: Tensor, observed: Tensor | None) -> Tensor:
        """The noise of this batch's messages.

        A learned noise is what the innovations hold beyond the predicted variance, mean r² − mean v, tracked over
        about 1,600 observations. A batch that misses by more than that counts as noisier still.
        """
        if self.residual_var is None or not self.training:
            return self.learned_noise_var
        with torch.no_grad():
            excess = (target - z.mean).square() - z.variance
            if observed is not None:
                excess = excess[observed]
            if not excess.numel():
                return self.learned_noise_var
            batch_var = excess.mean().to(self.residual_var.dtype)
            if bool(torch.isfinite(batch_var)):  # a square may overflow where the innovation does not
                self.residual_var.lerp_(batch_var, min(1.0, excess.numel() / NOISE_MEMORY)).clamp_(min=0)
                return torch.maximum(self.learned_noise_var, batch_var)
            return self.learned_noise_var

    def config(self) -> dict[str, Any]:
        """The constructor's arguments, for checkpoints."""
        return {"noise_std": self.noise_std.tolist(), "learn_noise": self.learn_noise}

    def extra_repr(self) -> str:
        return f"noise_std={self.noise_std.tolist()}"


def require_output(name: str, z: object, width: int | None = None) -> Gaussian:
    if not isinstance(z, Gaussian):
        raise TypeError(f"{name} must be a network's output, a Gaussian, got {type(z).__name__}")
    if z.mean.numel() == 0:
        raise ValueError(f"{name} is empty: shape {tuple(z.shape)}")
    if width is not None and (z.ndim != 2 or z.shape[1] != width):
        raise ValueError(f"{name} must have shape (N, {width}), got {tuple(z.shape)}")
    return z
