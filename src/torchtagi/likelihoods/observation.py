"""A noisy observation of units: what all likelihoods come down to.

    y = z + e,  e ~ N(0, R),  z ~ N(m, v)      loss  −log N(y; m, v + R), the negative log-evidence

Its first and second derivatives in m are the message handed backward:

    gradient  (m − y)/(v + R)          curvature  1/(v + R)

An entry that is not observed sends no message and adds nothing to the loss. A sample of weight w counts for w
observations: N(y; z, R)^w is N(y; z, R/w) but for a factor without z, so its noise is R/w.

Evidence is an expectation over z, so it obeys the heat equation in (m, v), and the derivative of the loss in v
follows from the other two: ½ (curvature − gradient²). Ordinary tensors in front of Gaussian layers get it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchtagi import distributed
from torchtagi.checks import require_floating, require_positive
from torchtagi.gaussian import Gaussian

NOISE_WINDOW = 1600.0  # observations; 100 batches of 16 on one output
FIRST_WINDOW = 50.0  # observations that the prior guess of a learned noise counts for
NOISE = ("noise_var", "residual_var", "error_var", "own_var", "errors_seen")
LOG_TWO_PI = math.log(2 * math.pi)


class Message(NamedTuple):
    """What a batch says: its loss, and the loss's gradient and curvature for each output."""

    loss: Tensor
    gradient: Tensor
    curvature: Tensor
    own_derivatives: tuple[Tensor, Tensor] | None = None
    """The loss's derivatives in the outputs' means and variances, where they do not follow from these two."""

    def derivatives(self) -> tuple[Tensor, Tensor]:
        """The loss's derivatives in the outputs' means and variances."""
        if self.own_derivatives is not None:
            return self.own_derivatives
        return self.gradient, 0.5 * (self.curvature - self.gradient.square())


class Send(torch.autograd.Function):
    """A batch's loss, whose `backward()` sends the message; `say` is called without gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        var: Tensor | None,
        plain_mean: Tensor | None,
        plain_var: Tensor | None,
        say: Callable[[], Message],
    ) -> Tensor:
        message = say()
        plain = () if plain_mean is None else message.derivatives()
        ctx.save_for_backward(message.gradient, message.curvature, *plain)
        return message.loss

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        if weight.item() != 1:
            raise RuntimeError(
                f"the loss of a likelihood was multiplied by {weight.item():g} before backward(). Bayes' rule "
                "has no weights: call backward() on the loss itself, or on a sum of losses; no GradScaler is "
                "needed, and how much an observation counts is its noise_std"
            )
        gradient, curvature, *plain = ctx.saved_tensors
        to_plain = [part if asked else None for part, asked in zip(plain, ctx.needs_input_grad[2:4], strict=False)]
        to_plain += [None] * (2 - len(to_plain))
        return gradient, curvature if ctx.needs_input_grad[1] else None, *to_plain, None


def observe(z: Gaussian, target: Tensor, noise_var: Tensor, observed: Tensor | None) -> Message:
    """What targets seen through noise say; where `observed` is False nothing was seen."""
    if noise_var.ndim and noise_var.shape != z.shape[-noise_var.ndim :]:  # any other shape would stretch z
        raise ValueError(
            f"noise_std must be one number or one for each output of shape {tuple(z.shape[1:])}, got shape "
            f"{tuple(noise_var.shape)}"
        )
    total = z.variance + noise_var
    precision = total.reciprocal()
    error = z.mean - target
    if observed is not None:
        # a selection, not a product: an unobserved target may be NaN
        error = torch.where(observed, error, 0.0)
    gradient = error * precision
    losses = (error * gradient).add_(total.mul_(2 * math.pi).log_())
    if observed is not None:
        precision, losses = precision * observed, losses * observed
    return Message(losses.sum().mul_(0.5), gradient, precision)


class Observer(nn.Module):
    """What sends a network its messages: a subclass says them, this class gives them to autograd."""

    repeats = False
    """Whether what is observed now has been learned before."""
    weights: Tensor | None = None
    """For how many observations each sample of a batch counts, positive numbers; None: for one."""

    def weights_like(self, values: Tensor) -> Tensor | float:
        """The weights, to be multiplied with what has samples in its first dimension."""
        if self.weights is None:
            return 1.0
        return self.weights.to(values).view(-1, *(1,) * (values.ndim - 1))

    def message(self, z: Gaussian, y: Tensor) -> Message:
        """What y says about the outputs z; called once a batch, without gradients."""
        raise AssertionError("each likelihood says what its data tell")

    def forward(self, z: Gaussian, y: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        require_output("z", z)
        plain = (None, None) if z.plain is None else (z.plain.mean, z.plain.var)
        loss: Tensor = Send.apply(z.mean, z.var, *plain, lambda: self.message(z, y, *args, **kwargs))
        return loss


class Likelihood(Observer):
    """How data follow from a network's outputs: three verbs and a noise.

    `likelihood(z, y)`             the batch's loss, its negative log-evidence; call `.backward()` on it
    `likelihood.predict(z)`        what will be observed, with its uncertainty
    `likelihood.log_prob(z, y)`    log-probability of held-out data, one number a sample

    `learn_noise=True` learns the noise from the errors in training; `noise_std` is then its floor. Processes that
    learn together (`distributed.joined`) learn one noise; others each their own.
    """

    noise_var: Tensor
    residual_var: Tensor | None
    """What the errors hold beyond the predicted variance; below zero where the predicted variance is too large."""
    error_var: Tensor | None
    """What the error of an observation to come holds beyond the predicted variance."""
    own_var: Tensor | None
    """That predicted variance."""
    errors_seen: Tensor | None

    def __init__(self, noise_std: float | Sequence[float] | Tensor = 1.0, learn_noise: bool = False) -> None:
        super().__init__()
        std = torch.as_tensor(noise_std, dtype=torch.get_default_dtype())
        require_positive("noise_std", std)
        self.learn_noise = learn_noise
        self.register_buffer("noise_var", std.square())
        # the prior guess 1 is the variance of a ±1 code and of a standardised target
        self.register_buffer("residual_var", torch.ones_like(std) if learn_noise else None)
        self.register_buffer("error_var", torch.ones_like(std) if learn_noise else None)
        self.register_buffer("own_var", torch.ones_like(std) if learn_noise else None)
        self.register_buffer("errors_seen", torch.zeros_like(std) if learn_noise else None)

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
        return self.noise_var if self.residual_var is None else torch.maximum(self.noise_var, self.residual_var)

    @property
    def predictive_noise_var(self) -> Tensor:
        """The noise that predictions assume."""
        return self.noise_var if self.error_var is None else torch.maximum(self.noise_var, self.error_var)

    @property
    def predictive_scale(self) -> Tensor | float:
        """c, by which predictions multiply the outputs' variance: 1 unless that alone is larger than the errors."""
        if self.error_var is None or self.own_var is None:
            return 1.0
        return (1 + self.error_var / self.own_var.clamp_min(torch.finfo(self.own_var.dtype).tiny)).clamp(0, 1)

    @torch.no_grad()
    def training_noise_var(self, z: Gaussian, target: Tensor, observed: Tensor | None) -> Tensor:
        """The noise of this batch's messages.

        A learned noise is what the errors hold beyond the predicted variance, mean r² − mean v, over the later half
        of all observations and over about 1,600 at most; of each output apart where `noise_std` is one number for
        each. A batch whose errors are larger than that counts as noisier still. A sample of weight w is w of them.

        Errors of repeats are smaller than those of new observations will be: with a posterior variance v at the
        observation, E[r²] = R − v instead of R + v. So predictions assume a noise of mean r² then, the least that
        can be said without knowing how much of v is real.
        """
        buffers = self._buffers  # past the slow look-up, as in GaussianParameter.pair
        floor, residual, error, own, errors_seen = (buffers[name] for name in NOISE)
        if residual is None or not self.training:
            return self.divided_by_weights(self.learned_noise_var, z)
        assert floor is not None
        assert error is not None
        assert own is not None
        assert errors_seen is not None
        var, square = z.variance, (target - z.mean).square()
        axes = tuple(range(square.ndim - floor.ndim))
        if observed is None and self.weights is None:
            sums = [square.sum(axes), var.sum(axes)]
            count = torch.full_like(sums[0], math.prod(square.shape[: len(axes)]))
        else:
            seen = torch.ones_like(square) if observed is None else observed.to(square.dtype)
            if self.weights is not None:
                seen = seen * self.weights_like(seen)
            sums = [torch.where(seen > 0, values * seen, 0.0).sum(axes) for values in (square, var)]
            count = seen.sum(axes)
        count, *sums = distributed.everyones(count, *sums)
        error_var, own_var = ((total / count).to(floor.dtype) for total in sums)
        # A square may overflow where the error does not, and there may be no observation: neither says anything.
        batch_var = error_var - own_var
        finite = batch_var.isfinite()
        batch_var = torch.where(finite, batch_var, residual)
        error_var = torch.where(finite, error_var if self.repeats else batch_var, error)
        own_var = torch.where(finite, own_var, own)
        errors_seen += count
        # count over a window that is half of what was seen, both doubled
        share = (count + count) / errors_seen.clamp(2 * FIRST_WINDOW, 2 * NOISE_WINDOW)
        share = share.clamp_(max=1).to(floor.dtype)
        residual.lerp_(batch_var, share)
        error.lerp_(error_var, share)
        own.lerp_(own_var, share)
        return self.divided_by_weights(torch.maximum(torch.maximum(floor, residual), batch_var), z)

    def divided_by_weights(self, noise_var: Tensor, z: Gaussian) -> Tensor:
        return noise_var if self.weights is None else (noise_var / self.weights_like(z.mean)).expand_as(z.mean)

    def targets(self, z: Gaussian, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """What y says of each output, and which of them it is about (None: of all)."""
        raise AssertionError("each likelihood says what its data are observations of")

    def message(self, z: Gaussian, y: Tensor) -> Message:
        target, observed = self.targets(z, y)
        return observe(z, target, self.training_noise_var(z, target, observed), observed)

    def config(self) -> dict[str, Any]:
        """The constructor's arguments, for checkpoints."""
        return {"noise_std": self.noise_std.tolist(), "learn_noise": self.learn_noise}

    def extra_repr(self) -> str:
        return f"noise_std={self.noise_std.tolist()}"


def require_targets(y: object) -> Tensor | None:
    """Which targets are missing, that is NaN; None if none is."""
    require_floating("y", y)
    assert isinstance(y, Tensor)
    if math.isfinite(y.sum().item()):
        return None
    if bool(torch.isinf(y).any()):
        raise ValueError("y must be finite, or NaN where an observation is missing; got inf")
    return torch.isnan(y)


def require_output(name: str, z: object, width: int | None = None) -> Gaussian:
    if not isinstance(z, Gaussian):
        raise TypeError(f"{name} must be a network's output, a Gaussian, got {type(z).__name__}")
    if z.mean.numel() == 0 and distributed.state.group is None:
        raise ValueError(f"{name} is empty: shape {tuple(z.shape)}")
    if width is not None and (z.ndim != 2 or z.shape[1] != width):
        raise ValueError(f"{name} must have shape (N, {width}), got {tuple(z.shape)}")
    return z
