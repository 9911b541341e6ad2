"""A joint Gaussian over all weights of a small network: the diagonal's approximation left out.

m and P are the mean and the covariance of all weights. A chunk of observations y with noise R has output means f
and a Jacobian J at m, a row for each output of each sample. Linearised there, conditioning is exact:

    A = J P Jᵀ + R,        m⁺ = m + P Jᵀ A⁻¹ (y − f),        P⁺ = P − P Jᵀ A⁻¹ J P

That is how new observations are learned. Where the errors are larger than predicted, λ = rᵀA⁻¹r/n > 1, the noise is
raised, by (λ − 1) times the mean of A's diagonal in the mean, as the coherent rule does (`inference.update`).

**New observations.** A few errors may be larger than predicted by mere chance, λ up to 1 + 8/n; it is divided by
that. And a learned noise R is known no better than the scale of P: what was learned while R was guessed too small
would be believed too much for ever. So both have a scale in common, whose conjugate posterior is exact in a linear
model (normal–inverse-gamma):

    c = 1 + (λ − 1) n/ν,        R ← c R,  P ← c P,        ν observations so far, the prior's included

The gain depends on P/R alone. After a change of the world errors grow, R and P with them, and later errors, smaller
again, leave a P from which more can be learned.

**A horizon from the innovations.** Were all gains larger by a share β, the means would differ by β h,

    h⁺ = h + P Jᵀ A⁻¹ (r − J h)

and the errors r by −β J h. The best β so far is Σ rᵀA⁻¹Jh / Σ (Jh)ᵀA⁻¹Jh, over about the last W steps. It is 0 if
the innovations r are white; then nothing can be gained by forgetting. Where the world drifts they are not: each
tells what the next ones will be. While the first sum is more than 1.5 of its standard deviations, the second's
root, above 0, a share f = 2 β n/W of what was learned fades.

In later epochs observations come again, and repeats replace. The epoch's sites are linearised anew while the means
move; at its end they take the place of the last epoch's, all at once:

    P = (Λ₀ + Σ JᵀJ/R)⁻¹,        m⁺ = m + P Jᵀ A⁻¹ r + (n/N) (P − P Jᵀ A⁻¹ J P) Λ₀ (m₀ − m)   for n of N

A chunk's messages are P′Jᵀr/R, with P′ the covariance that it would leave if it were new; so is its share of the
pull to the prior, and both balance at the posterior mean, however large the chunk. The last epoch looks without
moving: its mean is the average of the iterates, and all sites are those at it. What is left is Laplace's posterior
of the linearised model.

Noise and prior maximise its evidence (MacKay 1992), one step of expectation–maximisation an epoch. With γ, the
number of weights that the data determine,

    R = Σ r²/(N − γ),   γ = tr(P Σ JᵀJ)/R,        s₀ ← √(s₀ · mean((m − m₀)² + P_ii))

What the means have not come to yet looks like noise; and a prior that is fitted to means which explain nothing
keeps them so. A straight line through a sine is such an optimum. So early in a fit the prior stays, and messages
assume a noise of no more than 0.02 of a target's variance.

R is that of each target, s₀ that of each tensor; in the first layer that of each input, so that inputs without use
fade out (automatic relevance determination, MacKay 1994). The prior's mean is 0, but for weights whose prior was
given.

All of it is in float64, whatever the network's dtype: information and prior differ by many orders of magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.nn.affine import Linear
from torchtagi.nn.layer import Layer
from torchtagi.nn.mean_pass import mean_pass
from torchtagi.nn.norm import BatchNorm2d
from torchtagi.parameter import GaussianParameter, gaussian_parameters

CHUNK = 64  # conditioning is joint, so only the linearisation asks for small chunks: results/ablation/joint.jsonl
LARGEST = 1_500  # weights up to which `auto` takes it: 36 MB then
GUESS = 10  # observations that the first guess of a learned noise counts for
CHANCE = 8.0  # of one observation, λ is above 9 in 3 of 1,000 cases
STEPS, SIGNIFICANT, SPEED = 50, 1.5, 2.0  # of drift: W, the standard deviations, and the 2 in f
MOST_FADED = 0.02  # of what was learned, with one observation
FADED = 0.25  # the share of the prior that may fade under a horizon until it is put back
NOISE_FLOOR = 1e-3  # of a learned noise, of standardised targets: float64 bears less than the diagonal does
EARLY_NOISE = 0.02  # at most, early in a fit: results/ablation/joint.jsonl
ITERATIONS, CLOSE = 20, 1e-3  # of the noise's fixed point at the end of a fit


def why_not(net: nn.Module) -> str | None:
    """What keeps a network from a joint covariance; None if nothing does."""
    layers = [part for part in net.modules() if isinstance(part, Linear)]
    if {id(part) for part in gaussian_parameters(layers)} != {id(part) for part in gaussian_parameters([net])}:
        return "has weights in other layers than Linear"
    if any(isinstance(part, BatchNorm2d) for part in net.modules()):
        return "has a batch norm, which makes samples depend on each other"
    if any(isinstance(part, Layer) and part.mean_needs_var() for part in net.modules()):
        return "has an activation whose mean depends on its input's variance"
    return None


def weights_of(net: nn.Module) -> int:
    return sum(part.mean.numel() for part in gaussian_parameters([net]))


class Joint(nn.Module):
    """The joint covariance of the weights of `net`, whose means are in its parameters; so are its diagonal's
    entries, as their variances. Its buffers are its whole state."""

    length = 1.0
    """Of the steps in which observations that come again move the means."""
    net: nn.Module
    covariance: Tensor
    information: Tensor
    squares: Tensor
    counts: Tensor
    prior_mean: Tensor
    prior_var: Tensor
    faded: Tensor
    started: Tensor
    gain_slope: Tensor | None
    whiteness: Tensor | None

    def __init__(
        self, net: nn.Module, outputs: int, watches_drift: bool = False, of_noise: slice | None = None
    ) -> None:
        """`of_noise` says which outputs are a noise's logarithm."""
        super().__init__()
        self.of_noise = of_noise
        object.__setattr__(self, "net", net)  # not a part of this module: it is saved on its own
        self.parts = ordered_parameters(net)
        self.head = len(self.parts) - (2 if self.parts[-1].mean.ndim == 1 else 1)
        """Where the last layer's parameters begin."""
        size = weights_of(net)
        options: dict[str, Any] = {"dtype": torch.float64, "device": self.parts[0].mean.device}
        self.register_buffer("covariance", torch.zeros(size, size, **options))
        self.register_buffer("information", torch.zeros(outputs, size, size, **options))
        self.register_buffer("squares", torch.zeros(outputs, **options))
        self.register_buffer("counts", torch.zeros(outputs, **options))
        self.register_buffer("prior_mean", torch.zeros(size, **options))
        self.register_buffer("prior_var", torch.zeros(size, **options))
        self.register_buffer("faded", torch.zeros((), **options))
        self.register_buffer("started", torch.zeros((), dtype=torch.bool, device=options["device"]))
        self.register_buffer("gain_slope", torch.zeros(size, **options) if watches_drift else None)  # h
        self.register_buffer("whiteness", torch.zeros(2, **options) if watches_drift else None)  # the sums of β

    @torch.no_grad()
    def start(self) -> None:
        """Take the network's parameters for the prior. Where they are not given, its mean becomes 0, its variance
        the second moment: the means only make units differ. A noise begins as one for all."""
        for part in self.parts[self.head :] if self.of_noise is not None else ():
            part.mean[self.of_noise] = 0.0
        self.covariance.copy_(torch.diag(self.flat("var")))
        own = torch.cat([torch.full((part.mean.numel(),), part.given or part.learned) for part in self.parts])
        own = own.to(self.prior_mean.device)
        mean, var = self.flat("mean"), self.flat("var")
        pairs = zip(*self.split(mean, var), strict=True)
        moment = torch.cat([(m.square().mean() + v.mean()).expand_as(m) for m, v in pairs])
        self.prior_mean.copy_(torch.where(own, mean, 0.0))
        self.prior_var.copy_(torch.where(own, var, moment))
        self.started.fill_(True)

    def flat(self, name: str) -> Tensor:
        """Means or variances of all weights, in one vector."""
        return torch.cat([getattr(part, name).detach().flatten() for part in self.parts]).double()

    def split(self, *vectors: Tensor) -> list[Sequence[Tensor]]:
        sizes = [part.mean.numel() for part in self.parts]
        return [vector.split(sizes) for vector in vectors]

    def write(self, name: str, values: Tensor) -> None:
        for part, piece in zip(self.parts, self.split(values)[0], strict=True):
            tensor: Tensor = getattr(part, name)
            tensor.copy_(piece.view_as(tensor))
            part.learned = True

    def predict(self, net: nn.Module, x: Tensor | Gaussian) -> Gaussian:
        """The outputs of `net`, this network or its average: its means, and J P Jᵀ's diagonal."""
        mean, jacobian, input_var = linearised(net, x)
        with torch.no_grad():
            var = ((jacobian.double() @ self.covariance) * jacobian).sum(-1) + input_var
            return Gaussian.trusted(mean, var.clamp_min(0).to(mean.dtype))

    def linearise(self, x: Tensor | Gaussian) -> Linearisation:
        mean, jacobian, input_var = linearised(self.net, x)
        with torch.no_grad():
            rows = jacobian.double().flatten(0, 1)
            gain = self.covariance @ rows.T
            output_cov = rows @ gain
            var = output_cov.diagonal().view_as(mean) + input_var
            z = Gaussian.trusted(mean, var.to(mean.dtype))
            return Linearisation(z, rows, gain, output_cov, input_var)

    @torch.no_grad()
    def condition(
        self,
        at: Linearisation,
        y: Tensor,
        noise_var: Tensor,
        weights: Tensor | float = 1.0,
        precisions: Tensor | None = None,
        repeats: float | None = None,
        moves: bool = True,
        chance: float = 0.0,
    ) -> Tensor:
        """Learn y (N, outputs), NaN where nothing was observed, with a noise for each output; returns λ of each.

        A sample of weight w counts for w observations. Its noise is given as R/p, with p its precision in units of
        1/R, which is w unless given. `repeats` says that these are some of so many observations that have been
        learned before; the means may then stay where they are. λ of n may be 1 + `chance`/n by chance.
        """
        seen = ~torch.isnan(y)
        observed = seen.flatten()
        error = torch.where(seen, y.double() - at.z.mean.double(), 0.0).flatten()
        counts = torch.as_tensor(weights, dtype=torch.float64, device=y.device).expand_as(y).flatten() * observed
        noise = (noise_var.double() + at.input_var).expand_as(y).flatten()
        gain = at.gain * observed
        total = at.output_cov * observed * observed[:, None] + torch.diag(torch.where(observed, noise, 1.0))
        observations = counts.sum().clamp_min(torch.finfo(counts.dtype).tiny)
        factor = torch.linalg.cholesky(total)
        squares = error * torch.cholesky_solve(error[:, None], factor)[:, 0]
        innovation = squares.view_as(y).sum(0) / counts.view_as(y).sum(0)
        surprise = float(squares.sum() / (observations + chance))
        inflation = 0.0
        if surprise > 1:  # all noises by the same factor, so that none counts less than the others for it
            own_var = noise * observed
            inflation = float((surprise - 1) * (total.diagonal() * observed).sum() / own_var.sum())
            factor = torch.linalg.cholesky(total + torch.diag(inflation * own_var))
        mean = self.flat("mean")
        if repeats is None:
            self.watch_drift(at.rows * observed[:, None], gain, error, factor)
            half = torch.linalg.solve_triangular(factor, gain.T, upper=False)
            self.covariance.addmm_(half.T, half, alpha=-1)
            self.write("mean", mean + gain @ torch.cholesky_solve(error[:, None], factor)[:, 0])
            self.write("var", self.covariance.diagonal())
            return innovation
        precision = counts if precisions is None else precisions.double().flatten() * observed
        outputs = y.shape[1]
        for output in range(outputs):
            rows, own = at.rows[output::outputs], precision[output::outputs]
            self.information[output].addmm_(rows.T, rows * own[:, None])
            self.squares[output] += (own * error[output::outputs].square()).sum()
            self.counts[output] += counts[output::outputs].sum()
        if moves:
            share = len(y) / repeats / (1 + inflation)
            pull = self.covariance @ (share * (self.prior_mean - mean) / self.prior_var)
            left = error - observed * (at.rows.double() @ pull)
            step = pull + gain @ torch.cholesky_solve(left[:, None], factor)[:, 0]
            self.write("mean", mean + self.length * step)
        return innovation

    def watch_drift(self, rows: Tensor, gain: Tensor, error: Tensor, factor: Tensor) -> None:
        if self.gain_slope is None or self.whiteness is None:
            return
        slope = rows @ self.gain_slope
        by_error, by_slope = torch.cholesky_solve(torch.stack([error, slope], 1), factor).unbind(1)
        self.whiteness.mul_(1 - 1 / STEPS).add_(torch.stack([slope @ by_error, slope @ by_slope]))
        self.gain_slope += gain @ (by_error - by_slope)

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        """Believe what was learned as much less as the noise has turned out to be larger; what was learned of a
        noise that is predicted apart, which has no noise of its own."""
        if self.of_noise is None:
            self.covariance *= factor
        else:
            scales = torch.full_like(self.prior_mean, math.sqrt(factor))
            for part, own in zip(self.parts[self.head :], self.split(scales)[0][self.head :], strict=True):
                own.view_as(part.mean)[self.of_noise] = 1.0
            self.covariance.mul_(scales).mul_(scales[:, None])
        self.write("var", self.covariance.diagonal())

    def drifted(self) -> float:
        """The share of what was learned that a new observation has fade, as the innovations have it."""
        if self.whiteness is None:
            return 0.0
        with_errors, alone = self.whiteness.tolist()
        significant = with_errors > SIGNIFICANT * math.sqrt(alone)
        return min(SPEED * with_errors / alone / STEPS, MOST_FADED) if significant else 0.0

    @torch.no_grad()
    def replace_sites(
        self, noise_var: Tensor, learns: Tensor, least: Tensor, early: bool, last: bool
    ) -> tuple[Tensor, Tensor]:
        """The end of an epoch of repeats: its sites in the place of the last one's. The noise of each output that
        `learns` one, not less than `least`, and the prior are learned, a step of each by the last sites'
        covariance; `early` in a fit the prior stays; at the last epoch's end it does, too, and the noise comes to
        its fixed point. Returns the noise that messages assume, and what was found."""
        if not bool((self.counts > 0).any()):
            return noise_var, noise_var
        noise, seen = noise_var.double(), self.counts.clamp_min(1)

        def determined() -> Tensor:  # γ
            return (self.covariance * self.information).sum((1, 2)) / noise

        def learned(found: Tensor) -> Tensor:
            return torch.where(learns & (self.counts > 0), torch.maximum(found, least.double()), noise)

        found = noise
        if not last:
            # as slow as expectation–maximisation, because errors of moving means are too large
            found = learned((self.squares + determined() * noise) / seen)
            noise = torch.where(learns, found.clamp(max=EARLY_NOISE), noise) if early else found
        if not (early or last):
            self.learn_prior()
        self.invert(noise)
        for _ in range(ITERATIONS if last and bool(learns.any()) else 0):
            before, noise = noise, learned(self.squares / (self.counts - determined()).clamp_min(1))
            self.invert(noise)
            found = noise
            if bool(((noise / before).log().abs() < CLOSE).all()):
                break
        self.write("var", self.covariance.diagonal())
        for sums in (self.information, self.squares, self.counts):
            sums.zero_()
        return noise.to(noise_var), found.to(noise_var)

    def invert(self, noise: Tensor) -> None:
        precision = (self.information / noise[:, None, None]).sum(0)
        precision.diagonal().add_(1 / self.prior_var)
        self.covariance.copy_(torch.cholesky_inverse(torch.linalg.cholesky(precision)))

    def learn_prior(self) -> None:
        """√(s₀ · mean((m − m₀)² + P_ii)), the geometric mean of old and new."""
        moments = (self.flat("mean") - self.prior_mean).square() + self.covariance.diagonal()
        pieces = []
        for number, (part, moment) in enumerate(zip(self.parts, self.split(moments)[0], strict=True)):
            by_row = moment.view(part.mean.shape[0], -1)
            if number == 0:
                pooled = by_row.mean(0, keepdim=True).expand_as(by_row)
            else:
                pooled = by_row.mean(1, keepdim=True) if number >= self.head else by_row.mean()
            if number == 0 == self.head and self.of_noise is not None:
                pooled = pooled.clone()
                pooled[self.of_noise] = by_row[self.of_noise].mean(1, keepdim=True)
            pieces.append(pooled.expand_as(by_row).flatten())
        learned = (self.prior_var * torch.cat(pieces)).sqrt()
        given = torch.cat([torch.full((part.mean.numel(),), part.given) for part in self.parts])
        self.prior_var.copy_(torch.where(given.to(learned.device), self.prior_var, learned))

    @torch.no_grad()
    def fade(self, share: float) -> None:
        """Let a share of what was learned fade, Λ⁺ = (1 − f)Λ + f Λ₀; the prior's part is put back now and then."""
        share = min(share, 0.5)
        self.covariance /= 1 - share
        self.faded.copy_(1 - (1 - self.faded) * (1 - share))
        if self.faded >= FADED:
            size = len(self.covariance)
            eye = torch.eye(size, dtype=torch.float64, device=self.covariance.device)
            shrunk = torch.linalg.solve(eye + self.faded * self.covariance / self.prior_var, self.covariance)
            self.covariance.copy_((shrunk + shrunk.T) / 2)
            self.faded.zero_()
        self.write("var", self.covariance.diagonal())


@dataclass(frozen=True, eq=False)
class Linearisation:
    """A network at some inputs: its outputs z, the rows of J, P Jᵀ, J P Jᵀ, and what uncertain inputs add."""

    z: Gaussian
    rows: Tensor
    gain: Tensor
    output_cov: Tensor
    input_var: Tensor


def ordered_parameters(net: nn.Module) -> list[GaussianParameter]:
    """Weight and bias of each layer, in the order in which `linearised` has their columns."""
    layers = [part for part in net.modules() if isinstance(part, Linear)]
    return [part for layer in layers for part in (layer.weight, layer.bias) if part is not None]


def linearised(net: nn.Module, x: Tensor | Gaussian) -> tuple[Tensor, Tensor, Tensor]:
    """The outputs' means (N, targets), their derivatives in all weights (N, targets, weights), and the variance
    that uncertain inputs add to them. A mean pass says them: the derivative in a layer's weights is the product of
    the derivative in its outputs and of its inputs."""
    layers = [part for part in net.modules() if isinstance(part, Linear)]
    calls: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def note(layer: nn.Module, args: tuple[Any, ...], output: Gaussian) -> None:
        if layer in calls or output.mean.ndim != 2:
            raise ValueError(
                'covariance="full" needs a network that calls each Linear once, on rows of features; use "diagonal"'
            )
        calls[layer] = as_gaussian(args[0]).mean.detach(), output.mean

    inputs = as_gaussian(x)
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        with torch.enable_grad(), mean_pass():
            start = inputs.mean.detach().requires_grad_()
            mean = net(Gaussian.trusted(start, None)).mean
    finally:
        for hook in hooks:
            hook.remove()
    outputs = [calls[layer][1] for layer in layers]
    rows, input_vars = [], []
    for target in range(mean.shape[1]):
        keep = target + 1 < mean.shape[1]
        to_input, *to_outputs = torch.autograd.grad(mean[:, target].sum(), [start, *outputs], retain_graph=keep)
        columns = []
        for layer, slope in zip(layers, to_outputs, strict=True):
            columns.append((slope[:, :, None] * calls[layer][0][:, None, :]).flatten(1))
            if layer.bias is not None:
                columns.append(slope)
        rows.append(torch.cat(columns, 1))
        input_vars.append((to_input.square() * inputs.variance).flatten(1).sum(1))
    return mean.detach(), torch.stack(rows, 1), torch.stack(input_vars, 1)
