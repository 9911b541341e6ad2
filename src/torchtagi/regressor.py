"""A model of real numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi import distributed, metrics
from torchtagi.checks import as_numbers, naming_largest, plain_number, require_finite, require_noise
from torchtagi.fitting import Batches, Row
from torchtagi.gaussian import Gaussian, as_gaussian, cat
from torchtagi.heads import last_layer, outputs_of, with_outputs
from torchtagi.inference import joint
from torchtagi.inference.conditioning import chunks
from torchtagi.likelihoods import Regression
from torchtagi.likelihoods.observation import NOISE_WINDOW, require_targets
from torchtagi.likelihoods.relative_noise import RelativeNoise
from torchtagi.model import NOISE_FLOOR, PREDICTION_BATCH, PRIOR_INPUTS, Model, gaussian, without_autocast
from torchtagi.prediction import RegressionPrediction
from torchtagi.standardising import Standardiser

SCALE_ROWS = 10_000  # of the training data say what the scales of inputs and targets are
SHORTEST = 0.02  # step of a joint Gaussian in the last epochs
EARLY = 0.4  # of a fit: until then a joint Gaussian's noise and prior are held (results/ablation/joint.jsonl)
NOISE_FROM = 0.5  # of a fit: from then on it is predicted for each input


class Regressor(Model):
    """Real numbers from anything a network takes.

    `net` is an ordinary torch network, which is converted (`convert`), or a Gaussian one, with one output a target.
    `noise` is `learned`, one for each target; or `predicted` for each input by the network itself; or a number, its
    standard deviation in the targets' units. Inputs and targets are standardised inside, by the training data of
    `fit` or by the first rows of a stream. A NaN target is missing; an input may be uncertain, a `Gaussian`.
    `horizon` is the number of observations after which what was learned has faded, as in `Classifier`; or `auto`:
    with a joint covariance the errors of new observations tell whether the world drifts, and how fast to forget.

    `covariance` is `full`, that of all weights jointly (`inference.joint`); or `diagonal`, a variance for each; or
    `auto`, full for networks of up to 1,500 weights, all of them in Linear layers.

    A network that predicts its noise gets a second output for each target. One that was written with both says how
    many `targets` there are.
    """

    likelihood: Regression

    def __init__(
        self,
        net: nn.Module,
        *,
        noise: str | float = "learned",
        covariance: str = "auto",
        horizon: float | str | None = None,
        targets: int | None = None,
    ) -> None:
        noise, horizon, targets = plain_number(noise), plain_number(horizon), plain_number(targets)
        if isinstance(noise, str) and noise not in ("learned", "predicted"):
            raise ValueError(f'noise must be "learned", "predicted" or a number, got {noise!r}')
        if not isinstance(noise, str):
            require_noise(noise)
        if covariance not in ("auto", "full", "diagonal"):
            raise ValueError(f'covariance must be "auto", "full" or "diagonal", got {covariance!r}')
        self.noise, self.covariance, self.finds_horizon = noise, covariance, horizon == "auto"
        given: Any = None if self.finds_horizon else horizon
        self.early = False
        """Whether a joint Gaussian still follows the data closely, whatever it takes for noise."""
        self.settled = False
        """Whether this is the last epoch of a fit, in which a joint Gaussian looks without moving."""
        self.new_to_noise = False
        """Whether this is the first epoch in which the noise that is predicted is observed."""
        self.scale_of_x, self.scale_of_y = Standardiser(), Standardiser()
        self.flat = True
        """Whether targets came without a dimension of their own."""
        net = gaussian(net)
        outputs = outputs_of(last_layer(net)[1])
        self.pairs = noise == "predicted"
        """Whether each target has a second output, for its noise."""
        self.targets = targets or outputs
        if outputs not in ({self.targets, 2 * self.targets} if self.pairs else {self.targets}):
            raise ValueError(
                f"targets is {targets}, but the network has {outputs} outputs: one for each target is needed, or "
                "two where the noise is predicted"
            )
        net = with_outputs(net, self.targets, 2 * self.targets) if self.pairs and outputs == self.targets else net
        self.full = self.takes_full(net)
        kind = RelativeNoise if self.pairs else Regression
        likelihood = kind([NOISE_FLOOR] * self.targets, learn_noise=isinstance(noise, str))
        super().__init__(net, likelihood, given)

    def takes_full(self, net: nn.Module) -> bool:
        """Whether the weights of `net` get a joint covariance."""
        hindrance = joint.why_not(net)
        if self.covariance == "full" and hindrance is not None:
            raise ValueError(f'covariance="full" does not fit this network: it {hindrance}; use "diagonal"')
        small = joint.weights_of(net) <= joint.LARGEST
        full = self.covariance == "full" or (self.covariance == "auto" and small and hindrance is None)
        if self.finds_horizon and not full:
            why = hindrance or f"has more than {joint.LARGEST:,} weights, or was asked for a diagonal one"
            remedy = 'covariance="full" or ' if hindrance is None else ""
            raise ValueError(
                f'horizon="auto" needs a joint covariance; this network {why}: give {remedy}a number of samples'
            )
        return full

    def start_inference(self) -> None:
        super().start_inference()
        self.posterior.repeats = math.inf
        outputs = 2 * self.targets if self.pairs else self.targets
        of_noise = slice(1, None, 2) if self.pairs else None
        self.joint = joint.Joint(self.net, outputs, self.finds_horizon, of_noise) if self.full else None
        if self.average is not None and self.finds_horizon:
            self.average.steps = 1  # how long an average may be, nobody knows
        if self.full and isinstance(self.noise, str):
            self.likelihood.noise_var.fill_(joint.NOISE_FLOOR**2)

    def replaces_repeats(self) -> bool:
        """Once a noise is seen in the errors. Before that the predicted variance alone is larger than they are:
        what the data say has not been learned yet, and goes on being learned from."""
        residual_var = self.likelihood.residual_var
        return not self.new and (residual_var is None or bool((residual_var > self.likelihood.noise_var).any()))

    def get_ready(self, batches: Batches, epochs: int) -> None:
        """Find the scales of inputs and targets first."""
        if not self.calibrated and not batches.rank:
            self.observe(*self.checked(*batches.first(SCALE_ROWS)))
            self.scale_of_x.settled = self.scale_of_y.settled = True
        super().get_ready(batches, epochs)

    def observe(self, x: Any, y: Any, weights: Any = None) -> None:
        if self.scale_of_y.settled:
            return
        self.flat = y.ndim == 1
        self.scale_of_x.observe(x.mean if isinstance(x, Gaussian) else x, weights)
        self.scale_of_y.observe(y[:, None] if self.flat else y, weights)
        if not isinstance(self.noise, str):
            self.likelihood.noise_std = self.noise / self.scale_of_y.std.to(self.like)

    def calibrate(self, x: Any) -> None:
        """The first rows of a stream are few, and a single one is zero when it is standardised: drawn rows stand in
        for those to come, and a noise that is predicted begins as one for all. A joint Gaussian sees to both: it
        finds the scale of its prior, and a wide one serves it best."""
        if self.full:
            super().calibrate(x)
            return
        x, missing = as_gaussian(x), PRIOR_INPUTS - len(x)
        if missing > 0:
            drawn = torch.randn(missing, *x.shape[1:], generator=torch.Generator().manual_seed(0))
            x = cat([x, as_gaussian(drawn.to(x.mean))])
        super().calibrate(x)
        head = last_layer(self.net)[1]
        for part in (head.weight, head.bias) if self.pairs else ():
            if part is not None:
                with torch.no_grad():
                    part.mean[1::2] = 0.0
        self.predicting.load_state_dict(self.net.state_dict())

    # ---- with a joint covariance -----------------------------------------------------------------------------

    def start_learning(self, new: bool) -> None:
        super().start_learning(new)
        self.settled = False
        if isinstance(self.likelihood, RelativeNoise):
            self.likelihood.observes, self.new_to_noise = True, False

    def start_epoch(self, epoch: int, left: int) -> bool:
        augmented = super().start_epoch(epoch, left)
        self.settled = self.joint is not None and epoch > 0 and left == 1
        if self.joint is not None:
            past = epoch / (epoch + left)
            self.early = past < EARLY
            self.joint.length = max((1 + math.cos(math.pi * past)) / 2, SHORTEST)
        if isinstance(self.likelihood, RelativeNoise):
            epochs = epoch + left
            first = min(max(1, math.ceil(NOISE_FROM * epochs)), max(epochs - 2, 0))
            self.likelihood.observes, self.new_to_noise = epoch >= first, epoch == first > 0
        if self.settled:
            self.net.load_state_dict(self.predicting.state_dict())
        return augmented

    def end_epoch(self) -> None:
        super().end_epoch()
        if self.joint is None or self.new:
            return
        likelihood = self.likelihood
        noise, least = (likelihood.of_outputs(var) for var in (likelihood.learned_noise_var, likelihood.noise_var))
        learns = torch.full_like(noise, likelihood.residual_var is not None, dtype=torch.bool)
        if isinstance(likelihood, RelativeNoise):
            learns[:] = not likelihood.observes or self.settled  # or R and the level of s would chase each other
            learns[1::2] = False
        noise, found = self.joint.replace_sites(noise, learns, least, self.early, self.settled)
        if likelihood.residual_var is not None and likelihood.error_var is not None:
            likelihood.residual_var.copy_(noise[::2] if self.pairs else noise)
            likelihood.error_var.copy_(found[::2] if self.pairs else found)
        if self.settled:
            self.predicting.load_state_dict(self.net.state_dict())

    def learn(self, x: Any, y: Any, weights: Any = None, *, checked: bool = False) -> tuple[float, Row]:
        if self.joint is None:
            return super().learn(x, y, weights, checked=checked)
        if distributed.state.group is not None:
            return self.learn_all_rows(distributed.state.group, x, y, weights)
        given, observed, x, y, weights = self.batch(x, y, weights, checked)
        if not self.calibrated:
            self.calibrate(x)
        if not self.joint.started:
            self.joint.start()
        errors, start = 0.0, 0
        innovations: list[Tensor] = []
        with naming_largest(x=(given, x), y=(observed, y)):
            for inputs, targets in chunks(x, y, joint.CHUNK):
                own = None if weights is None else weights[start : start + len(targets)]
                start += len(targets)
                missed, innovation = self.learn_chunk(self.joint, inputs, targets, own)
                errors += missed
                innovations.append(innovation.nanmean())
                if self.average is not None and not self.settled:
                    self.average.follow()
        self.observations += len(x) if self.new else 0
        return errors, {"alpha": 1.0, "innovation": float(torch.stack(innovations).nanmean())}

    def learn_chunk(
        self, posterior: joint.Joint, x: Any, y: Tensor, weights: Tensor | None
    ) -> tuple[float, Tensor]:
        """Learn a chunk jointly; returns the sum of its errors before, and the innovation of each target."""
        likelihood = self.likelihood
        counts = torch.ones_like(y[:, :1]) if weights is None else weights[:, None]
        require_targets(y)
        at = posterior.linearise(x)
        errors = self.error(at.z, y)
        noise, repeats = likelihood.learned_noise_var, None if self.new else float(self.observations)
        told, noise_var, precisions = likelihood.sites(at.z, y, noise, counts, known=not self.new)
        first = likelihood if self.new_to_noise and isinstance(likelihood, RelativeNoise) else None
        if first is not None:
            told = first.as_it_is(told, at.z)
        chance = joint.CHANCE if self.new else 0.0
        moves = not self.settled
        innovation = posterior.condition(at, told, noise_var, counts, precisions, repeats, moves, chance)
        innovation = innovation[::2] if self.pairs else innovation
        if first is not None:
            at = posterior.linearise(x)
            told, noise_var, _ = first.sites(at.z, y, noise, counts, known=True)
            posterior.condition(at, first.of_noise(told), noise_var, counts)
        if self.new:
            posterior.scale(self.scale_noise(innovation, (counts * ~torch.isnan(y)).sum(0)))
        fades = posterior.drifted() if self.horizon is None else 1 / self.horizon
        if self.new and fades > 0:
            posterior.fade(len(y) * fades)
        return errors, innovation

    def scale_noise(self, innovation: Tensor, counts: Tensor) -> float:
        """Learn the noise from the innovations of so many new observations of each target; returns by how much it
        grew."""
        likelihood = self.likelihood
        if likelihood.residual_var is None:
            return 1.0
        assert likelihood.errors_seen is not None
        assert likelihood.error_var is not None
        likelihood.errors_seen += counts
        before = likelihood.learned_noise_var
        known = (joint.GUESS + likelihood.errors_seen).clamp(max=NOISE_WINDOW)
        change = (innovation.to(before).clamp_min(0) - 1) * (counts / known).clamp(max=1)
        grown = torch.maximum(likelihood.noise_var, before * (1 + torch.where(counts > 0, change, 0.0)))
        likelihood.residual_var.copy_(grown)
        likelihood.error_var.copy_(grown)
        return float((grown / before).mean())

    def shard(self, group: distributed.Group) -> None:
        if self.joint is not None:
            raise ValueError('a joint covariance is not sharded: use covariance="diagonal"')
        super().shard(group)

    def learn_all_rows(self, group: distributed.Group, x: Any, y: Any, weights: Any) -> tuple[float, Row]:
        """A joint covariance has no sums to send: each process learns the rows of all."""
        (x, y, *_, weights), sizes = distributed.together(lambda: self.batch(x, y, weights, False))

        def rows(values: Any) -> Tensor:
            return group.rows(torch.as_tensor(values).to(group.device), sizes)

        x = Gaussian.trusted(rows(x.mean), rows(x.variance)) if isinstance(x, Gaussian) else rows(x)
        y, weights = rows(y), None if weights is None else rows(weights)
        with distributed.joined(None):
            errors, report = self.learn(x, y, weights)
        return errors if group.first else 0.0, report  # which are added up

    def outputs(self, x: Any) -> Iterator[Gaussian]:
        if self.joint is None or not self.joint.started:
            yield from super().outputs(x)
            return
        x = self.checked_inputs(x)
        for start in range(0, len(x), PREDICTION_BATCH):
            yield self.joint.predict(self.predicting, self.prepared(x[start : start + PREDICTION_BATCH]))

    def learning_parts(self) -> dict[str, nn.Module]:
        parts = super().learning_parts()
        return parts if self.joint is None else {**parts, "joint": self.joint}

    # ---- targets and predictions -----------------------------------------------------------------------------

    def prepared(self, x: Any) -> Any:
        return super().prepared(self.scale_of_x(x, self.like.dtype))

    def scales(self) -> tuple[Standardiser, ...]:
        return self.scale_of_x, self.scale_of_y

    def checked_inputs(self, x: Any) -> Tensor | Gaussian:
        numbers = super().checked_inputs(x)
        features = len(self.scale_of_x.rows)
        if numbers.shape[1] != features and bool(self.scale_of_x.rows.any()):
            raise ValueError(
                f"x must have {features} columns (images: channels), as what was learned, got shape "
                f"{tuple(numbers.shape)}"
            )
        return numbers

    def checked_targets(self, y: Any) -> Tensor:
        numbers = as_numbers("y", y)
        if numbers.is_complex():
            raise TypeError(f"y must hold real numbers, got {numbers.dtype}")
        if numbers.ndim not in (1, 2) or (1 if numbers.ndim == 1 else numbers.shape[1]) != self.targets:
            raise ValueError(
                f"y must have shape (N, {self.targets}), as the network has outputs, got {tuple(numbers.shape)}"
            )
        require_finite("y", numbers, self.like.dtype, missing=True, source=y)
        return numbers

    def encoded(self, y: Any) -> Tensor:
        standardised: Tensor = self.scale_of_y(y[:, None] if y.ndim == 1 else y, self.like.dtype)
        return standardised.to(self.like)

    def error(self, z: Gaussian, y: Tensor) -> float:
        mean = z.mean[:, ::2] if self.pairs else z.mean
        missed = (mean - y) * self.scale_of_y.factor(y)
        return float(missed.square().nanmean(1).nansum())

    def training_error(self, total: float, samples: int) -> float:
        """The root of the mean squared error, in the targets' units."""
        return math.sqrt(total / max(samples, 1))

    def measures(self) -> Row:
        if self.pairs:  # no number says a noise that differs
            return {}
        noise = self.likelihood.predictive_noise_var.sqrt()[None]
        return {"noise_std": (noise * self.scale_of_y.factor(noise))[0].tolist()}

    @without_autocast
    def predict(self, x: Any) -> RegressionPrediction:
        """In the targets' units."""
        rows = []
        for z in self.outputs(x):
            z, noise = self.likelihood.split(z)
            mean = self.scale_of_y.undo(z.mean)
            square = self.scale_of_y.factor(mean).square()
            rows.append((mean, z.variance * square, noise * square))
        columns = [torch.cat(column) for column in zip(*rows, strict=True)]
        return RegressionPrediction(*(part[:, 0] if self.flat and self.targets == 1 else part for part in columns))

    def scores(self, prediction: RegressionPrediction, y: Any) -> Row:
        """In the targets' units; a missing target counts nothing."""
        y = self.checked_targets(y).to(prediction.mean.device)  # of their own dtype, or lost digits would not show
        if len(y) != len(prediction):
            raise ValueError(f"y must have as many entries as x, {len(prediction)}, got {len(y)}")
        if bool(torch.isnan(y).all()):
            raise ValueError("y holds no observation, NaN alone: there is nothing to score")
        y = y.reshape(prediction.mean.shape)
        return metrics.regression_scores(prediction.mean, prediction.epistemic + prediction.aleatoric, y)

    def description(self) -> Row:
        scales = {"x": self.scale_of_x.as_json(), "y": self.scale_of_y.as_json()}
        horizon = "auto" if self.finds_horizon else self.horizon
        own = {"noise": self.noise, "covariance": self.covariance, "horizon": horizon}
        return {"kind": "Regressor", **own, "targets": self.targets, "flat": self.flat, **scales}

    def read_description(self, described: Row) -> None:
        self.flat = bool(described["flat"])
        self.scale_of_x.read_json(described["x"])
        self.scale_of_y.read_json(described["y"])
