"""Classifier and Regressor: a network, its likelihood and its update as one thing that fits, updates and predicts.

    model = Classifier(net, classes=10)
    model.fit((x, y), epochs=10)
    model.predict(x_new).probs
    model.update(x_one, y_one)
    model.save("model.safetensors"); load("model.safetensors")

All that makes inference good is decided here, once, for `fit`, `update` and everything built on them:

-   The prior is calibrated to the first inputs (`inference.prior`).
-   A batch is learned in chunks of 16, each chunk's posterior the next one's prior (`inference.conditioning`).
-   The noise is learned. Labels are predicted through a noise of their own (`likelihoods.link`).
-   Predictions are those of the mean of the last posteriors (`inference.average`). It is surer than the network
that
    learns, so it has a likelihood of its own, which sees what it says of every tenth chunk before that is learned.
-   What sharing adds (`inference.update`) is counted while inputs are new: in `update`, and in the first epoch of
    `fit`. From the second epoch on inputs are augmented, if `fit` was told how, because an unchanged repeat is no
    evidence.
"""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from torchtagi import checkpoint as files
from torchtagi import metrics
from torchtagi.checkpoint import CheckpointError
from torchtagi.checks import require_positive
from torchtagi.convert import convert
from torchtagi.fitting import Batches, EpochEnd, Fit, Row, everything
from torchtagi.gaussian import Gaussian
from torchtagi.heads import last_layer, outputs_of, with_outputs
from torchtagi.inference.average import Average
from torchtagi.inference.conditioning import CHUNK, condition
from torchtagi.inference.prior import calibrate_prior
from torchtagi.inference.update import Update
from torchtagi.likelihoods import HeteroscedasticRegression, HierarchicalClassification, Regression
from torchtagi.likelihoods.link import LabelLikelihood
from torchtagi.likelihoods.observation import Observer
from torchtagi.nn import EvenExp, Sequential
from torchtagi.nn.affine import ConvolutionLayer
from torchtagi.parameter import gaussian_parameters, ordinary_parameters
from torchtagi.prediction import ClassPrediction, RegressionPrediction
from torchtagi.standardising import Standardiser

PRIOR_INPUTS = 16
SCALE_ROWS = 10_000  # of the training data say what the scales of inputs and targets are
SCORE_EVERY = 10  # chunks: how often the average is asked beforehand; each time costs half a step
SETTLING = 4  # epochs at the end of a fit in which steps become shorter
KEPT_BACK, LEAST_KEPT = 0.02, 100  # share of a fit's images, and how few say too little of a link
NOISE_FLOOR = 0.01  # of a learned noise, in units of ±1 codes and of standardised targets
PREDICTION_BATCH = 200  # as fast as 1000, whose large tensors are given back to the system and fetched again
SAVE_SECONDS = 300.0  # no more than this is lost if a fit with a checkpoint is killed


class Model(ABC):
    """What Classifier and Regressor share."""

    def __init__(self, net: nn.Module, likelihood: Observer, horizon: float | None = None) -> None:
        for parameter in ordinary_parameters(net):
            parameter.requires_grad_(False)  # ordinary layers are features here; they do not learn
        self.net, self.likelihood, self.horizon = net, likelihood, horizon
        self.epochs, self.observations, self.new = 0, 0, True
        self.calibrated = any(part.learned for part in gaussian_parameters([net]))
        self.convolutional = any(isinstance(part, ConvolutionLayer) for part in net.modules())
        if self.convolutional:  # the layout in which they are fastest; bits depend on it
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        likelihood.to(self.like.device)
        self.start_inference()

    def start_inference(self) -> None:
        """The update, and what predicts."""
        self.posterior = Update(self.net, horizon=self.horizon)
        self.average: Average | None = Average(self.net)
        self.predicting, self.link = self.average.net, copy.deepcopy(self.likelihood)
        if isinstance(self.likelihood, LabelLikelihood):
            self.likelihood.follows_messages = False

    @property
    def like(self) -> Tensor:
        """A parameter, to tell dtype and device."""
        return next(self.net.parameters())

    def to(self, device: torch.device | str) -> Self:
        for module in (self.net, self.likelihood, self.predicting, self.link):
            module.to(device)
        return self

    # ---- what a kind of model says --------------------------------------------------------------------------

    @abstractmethod
    def encoded(self, y: Any) -> Tensor:
        """Targets as the likelihood takes them."""

    @abstractmethod
    def error(self, z: Gaussian, y: Tensor) -> float:
        """The sum of a batch's errors."""

    @abstractmethod
    def training_error(self, total: float, samples: int) -> float:
        """A mean error from a sum of errors."""

    @abstractmethod
    def measures(self) -> Row:
        """What a row of the history says of the model."""

    @abstractmethod
    def predict(self, x: Any) -> Any:
        """What will be observed at x, with its uncertainty."""

    @abstractmethod
    def scores(self, prediction: Any, y: Any) -> Row:
        """How good a prediction was."""

    @abstractmethod
    def description(self) -> Row:
        """As JSON: what a file has to say besides tensors."""

    def prepared(self, x: Any) -> Any:
        """Inputs where the network is, of its dtype and, for images, in its layout."""
        x = x if isinstance(x, Gaussian | Tensor) else torch.as_tensor(x)
        if not x.dtype.is_floating_point:
            raise TypeError(
                f"x must have a floating dtype, got {x.dtype}; convert it with .float(), images also to 0…1"
            )
        x = x.to(device=self.like.device, dtype=self.like.dtype)
        return x.to(memory_format=torch.channels_last) if self.convolutional and x.ndim == 4 else x

    # ---- learning -------------------------------------------------------------------------------------------

    def get_ready(self, batches: Batches, epochs: int) -> None:
        """Before the first epoch of a fit: fit the prior to the first inputs."""
        if not self.calibrated:
            self.calibrate(self.prepared(batches.first(PRIOR_INPUTS)[0]))

    def calibrate(self, x: Any) -> None:
        calibrate_prior(self.net, x[:PRIOR_INPUTS])
        self.calibrated = True
        if self.horizon is not None:
            self.posterior.keep_prior()
        self.predicting.load_state_dict(self.net.state_dict())

    def start_epoch(self, epoch: int, left: int) -> bool:
        self.start_learning(new=epoch == 0)
        self.posterior.settling = left <= min(SETTLING, (epoch + left) // 2)
        return epoch > 0

    def start_learning(self, new: bool) -> None:
        """`new` says that the observations to come have not been seen before."""
        self.net.train()
        self.likelihood.train()
        self.posterior.count_sharing = self.new = new
        self.posterior.settling = False
        self.likelihood.repeats = not new

    def end_epoch(self) -> None:
        self.epochs += 1

    def learn(self, x: Any, y: Any) -> tuple[float, Row]:
        """Learn one batch; the sum of its errors before, and a report."""
        x, y = self.prepared(x), self.encoded(y)
        if not self.calibrated:
            self.calibrate(x)
        errors, steps, report = 0.0, 0, {"alpha": 0.0, "innovation": 0.0}

        def before(inputs: Any, z: Gaussian, targets: Tensor) -> None:
            nonlocal errors
            errors += self.error(z, targets)
            self.score_link(inputs, targets)
            if self.posterior.repeats is not None:
                self.posterior.repeats = self.observations if self.replaces_repeats() else math.inf

        def after() -> None:
            nonlocal steps
            steps += 1
            for name in report:
                report[name] += self.posterior.report[name]
            if self.average is not None:
                self.average.follow()

        condition(self.net, self.likelihood, self.posterior, x, y, self.chunk_size(len(x)), before, after)
        self.observations += len(x) if self.new else 0
        return errors, {name: total / steps for name, total in report.items()}

    def replaces_repeats(self) -> bool:
        """Whether what is learned now takes the place of what the same observations said before."""
        return False

    def chunk_size(self, samples: int) -> int:
        return CHUNK

    def score_link(self, x: Any, y: Tensor) -> None:  # noqa: B027 - only labels are predicted through a link
        """Now and then, show the likelihood that predicts what the average says of inputs not learned yet."""

    def update(self, x: Any, y: Any) -> Row:
        """Learn new observations, one or many; nothing of them is a repeat. Returns a report of the step:
        `innovation`, the mean of r²/(v+R), near 1 where the predicted variance is right."""
        self.start_learning(new=True)
        return self.learn(x, y)[1]

    def fit(
        self,
        data: Any,
        *,
        epochs: int = 1,
        batch_size: int = 16,
        augment: Callable[[Any], Any] | None = None,
        validation: Any = None,
        progress: bool = True,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        seed: int | None = None,
    ) -> list[Row]:
        """Learn from `(x, y)`, a `Dataset` or a `DataLoader` of such pairs, `epochs` times; returns a row an epoch.

        A batch of any size learns as well as a small one. `augment`, a function of a batch of inputs, varies them
        from the second epoch on. `validation`, data like the others, is measured after each epoch. `progress` shows
        a bar on a terminal. `checkpoint` names a file that is written after each epoch and every five minutes; with
        `resume` a fit that was stopped goes on from it, to the bit. `seed` decides the order of the data; unless
        given it is drawn from torch's generator.
        """
        from tqdm.auto import tqdm

        if resume and checkpoint is None:
            raise ValueError("resume=True needs checkpoint=PATH, the file to go on from")
        held_out = None if validation is None else everything(validation)
        validate = None if held_out is None else lambda epoch: self.evaluate(*held_out)
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        fit = Fit(self, Batches(data, batch_size, seed), epochs, augment, validate)
        history: list[Row] = []
        if checkpoint is not None and resume and Path(checkpoint).is_file():
            history = self.resume(fit, checkpoint)
        saved = time.monotonic()
        hidden = None if progress else True  # None: where the output is no terminal
        with tqdm(total=fit.samples_left, initial=fit.sums.samples, unit=" samples", disable=hidden) as bar:
            try:
                for event in fit.events():
                    if isinstance(event, EpochEnd):
                        history.append(event.row)
                    else:
                        bar.set_postfix_str(f"epoch {event.epoch}, error {event.error:.3g}", refresh=False)
                        bar.update(event.new_samples)
                    due = isinstance(event, EpochEnd) or time.monotonic() - saved > SAVE_SECONDS
                    if checkpoint is not None and due:
                        self.save(checkpoint, fit=fit.position(), history=history)
                        saved = time.monotonic()
            except KeyboardInterrupt:
                if checkpoint is not None:
                    self.save(checkpoint, fit=fit.position(), history=history)
                raise
        self.net.eval()
        self.likelihood.eval()
        return history

    def resume(self, fit: Fit, path: str | Path) -> list[Row]:
        """Become what the file holds, and let `fit` go on from there; returns the rows so far."""
        extra = self.restore(path)
        try:
            fit.go_to(extra["fit"])
            fit.last = int(extra["fit"]["last"])
            return list(extra["history"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path}: holds a model, but no fit to go on with") from error

    # ---- predicting -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, x: Any) -> Iterator[Gaussian]:
        """What the network that predicts says of x, in parts; its mode is afterwards what it was."""
        training = self.predicting.training
        self.predicting.eval()
        try:
            for start in range(0, len(x), PREDICTION_BATCH):
                yield self.predicting(self.prepared(x[start : start + PREDICTION_BATCH]))
        finally:
            self.predicting.train(training)

    def evaluate(self, x: Any, y: Any = None) -> Row:
        """Scores on held-out data, given as x and y or as one thing that `fit` would take."""
        x, y = everything(x) if y is None else (x, y)
        return self.scores(self.predict(x), y)

    # ---- files ----------------------------------------------------------------------------------------------

    def save(self, path: str | Path, **extra: Any) -> None:
        """Write everything that this model is into one file, atomically; `load` gives it back."""
        content = {"model": self.description(), "epochs": self.epochs, "calibrated": self.calibrated, **extra}
        content["observations"] = self.observations
        content["averaged"] = 0 if self.average is None else self.average.count
        content["learned"] = any(part.learned for part in gaussian_parameters([self.net]))
        files.save(path, self.predicting, self.link, content, **self.learning_parts())

    def learning_parts(self) -> dict[str, nn.Module]:
        """What learns, where it is not what predicts, and the prior that it returns to, if it does."""
        prior: dict[str, nn.Module] = {"prior": Prior(self.posterior)} if self.posterior.state else {}
        if self.average is None:
            return prior
        return {"learning_net": self.net, "learning_likelihood": self.likelihood, **prior}

    def restore(self, path: str | Path) -> Row:
        """Become what a file holds that a model like this one has saved; returns what else was saved with it."""
        saved = files.read(path)[0]["architecture"]
        if "prior" in saved:
            self.posterior.keep_prior()  # to be overwritten
        parts = self.learning_parts()
        extra = files.restore(path, self.predicting, self.link, **{k: v for k, v in parts.items() if k in saved})
        if not parts.keys() <= saved.keys():  # saved by one whose last posterior predicts
            self.net.load_state_dict(self.predicting.state_dict())
            self.likelihood.load_state_dict(self.link.state_dict())
        try:
            self.epochs, self.calibrated = int(extra["epochs"]), bool(extra["calibrated"])
            self.observations = int(extra["observations"])
            if self.average is not None:
                self.average.count = int(extra["averaged"])
            for part in gaussian_parameters([self.net]):
                part.learned = bool(extra["learned"])
            self.read_description(extra["model"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: holds a network, but not a model like this one") from error
        return extra

    def read_description(self, described: Row) -> None:  # noqa: B027 - most is said by the constructor
        """Take what the constructor does not."""


class Classifier(Model):
    """Classes from anything a network takes.

    `net` is an ordinary torch network, which is converted (`convert`), or a Gaussian one. Its last layer has as
    many outputs as there are classes, as in torch; the model replaces it by one for the nodes of the classes' tree
    (`likelihoods.classification`). `classes` is their number, for labels 0, 1, …, or the list of labels: whole
    numbers or strings. `noise` is learned, or the standard deviation of the labels' ±1 codes. `horizon` is the
    number of observations after which what was learned has faded: for a world that drifts, never unless given.
    """

    likelihood: HierarchicalClassification
    link: HierarchicalClassification
    held_out: Batches | None = None
    """The data of a fit that keeps some of them back."""

    def __init__(
        self,
        net: nn.Module,
        classes: int | Sequence[Any],
        *,
        noise: str | float = "learned",
        horizon: float | None = None,
    ) -> None:
        self.classes = None if isinstance(classes, int) else [getattr(c, "item", lambda c=c: c)() for c in classes]
        self.places = {name: place for place, name in enumerate(self.classes or ())}
        if self.classes is not None and len(self.places) < len(self.classes):
            raise ValueError(f"classes must differ from each other, got {self.classes}")
        if not all(isinstance(name, int | str) for name in self.places):
            raise TypeError(f"classes must be whole numbers or strings, got {self.classes}")
        if isinstance(noise, str) and noise != "learned":
            raise ValueError(f'noise must be "learned" or a number, got {noise!r}')
        self.noise = noise
        count = classes if isinstance(classes, int) else len(classes)
        learned = noise == "learned"
        likelihood = HierarchicalClassification(count, NOISE_FLOOR if learned else float(noise), learned)
        super().__init__(with_outputs(gaussian(net), count, likelihood.outputs), likelihood, horizon)

    def encoded(self, y: Any) -> Tensor:
        if self.classes is None:
            return torch.as_tensor(y, device=self.like.device)
        names = y.tolist() if hasattr(y, "tolist") else list(y)
        unknown = [name for name in names if name not in self.places]
        if unknown:
            raise ValueError(f"label {unknown[0]!r} is not among the classes {self.classes}")
        return torch.tensor([self.places[name] for name in names], device=self.like.device)

    def error(self, z: Gaussian, y: Tensor) -> float:
        return float((self.likelihood.log_probs(z).argmax(1) != y).sum())

    def training_error(self, total: float, samples: int) -> float:
        """In %."""
        return 100 * total / max(samples, 1)

    def measures(self) -> Row:
        """The noise that messages assume, and that of predictions."""
        return {
            "noise_std": math.sqrt(self.likelihood.learned_noise_var.item()),
            "link_noise_std": math.sqrt(self.link.predictive_noise_var.item()),
        }

    def get_ready(self, batches: Batches, epochs: int) -> None:
        """Keep some images back, if others are to be learned more than once."""
        super().get_ready(batches, epochs)
        if epochs > 1 and self.average is not None:
            batches.keep_back(KEPT_BACK, LEAST_KEPT)
        self.held_out = batches if batches.kept_back else None

    def score_link(self, x: Any, y: Tensor) -> None:
        if self.average is None or self.average.count % SCORE_EVERY != 1:
            return
        if self.held_out is not None:
            start = self.average.count // SCORE_EVERY * CHUNK
            inputs, labels = self.held_out.kept(start, CHUNK)
            x, y = self.prepared(inputs), self.encoded(labels)
        with torch.no_grad():
            self.link.score_link(self.predicting(x), y, new=self.new or self.held_out is not None)

    def predict(self, x: Any) -> ClassPrediction:
        """Class probabilities with both uncertainties."""
        parts = [self.link.predict(z) for z in self.outputs(x)]
        columns = zip(*((part.probs, part.epistemic, part.aleatoric) for part in parts), strict=True)
        probs, epistemic, aleatoric = (torch.cat(column) for column in columns)
        return ClassPrediction(probs, epistemic, aleatoric, self.classes)

    def scores(self, prediction: ClassPrediction, y: Any) -> Row:
        """Error in %; the rest as `torchtagi.metrics` defines it."""
        return metrics.classification_scores(prediction.probs, self.encoded(y))

    def description(self) -> Row:
        classes = self.classes if self.classes is not None else self.likelihood.classes
        return {"kind": "Classifier", "classes": classes, "noise": self.noise, "horizon": self.horizon}


class Regressor(Model):
    """Real numbers from anything a network takes.

    `net` is an ordinary torch network, which is converted (`convert`), or a Gaussian one, with one output a target.
    `noise` is `learned`, one for each target; or `predicted` for each input by the network itself; or a number, its
    standard deviation in the targets' units. Inputs and targets are standardised inside, by the training data of
    `fit` or by the first rows of a stream. A NaN target is missing; an input may be uncertain, a `Gaussian`.
    `horizon` is the number of observations after which what was learned has faded, as in `Classifier`.
    """

    def __init__(self, net: nn.Module, *, noise: str | float = "learned", horizon: float | None = None) -> None:
        if isinstance(noise, str) and noise not in ("learned", "predicted"):
            raise ValueError(f'noise must be "learned", "predicted" or a number, got {noise!r}')
        if not isinstance(noise, str):
            require_positive("noise", noise)
        self.noise = noise
        self.scale_of_x, self.scale_of_y = Standardiser(), Standardiser()
        self.flat = True
        """Whether targets came without a dimension of their own."""
        net = gaussian(net)
        self.targets = outputs_of(last_layer(net)[1])
        if noise != "predicted":
            likelihood = Regression([NOISE_FLOOR] * self.targets, learn_noise=noise == "learned")
            super().__init__(net, likelihood, horizon)
            return
        if isinstance(net, nn.Sequential) and isinstance(net[-1], EvenExp):
            self.targets //= 2
        else:
            net = Sequential(with_outputs(net, self.targets, 2 * self.targets), EvenExp())
        super().__init__(net, HeteroscedasticRegression(), horizon)

    def start_inference(self) -> None:
        super().start_inference()
        self.posterior.repeats = math.inf

    def replaces_repeats(self) -> bool:
        """Once a noise is seen in the errors. Before that the predicted variance alone is larger than they are:
        what the data say has not been learned yet, and goes on being learned from."""
        residual_var = getattr(self.likelihood, "residual_var", None)
        return not self.new and (residual_var is None or bool((residual_var > self.likelihood.noise_var).any()))

    def get_ready(self, batches: Batches, epochs: int) -> None:
        """Find the scales of inputs and targets first."""
        if not self.calibrated:
            self.observe(*batches.first(SCALE_ROWS))
            self.scale_of_x.settled = self.scale_of_y.settled = True
        super().get_ready(batches, epochs)

    def update(self, x: Any, y: Any) -> Row:
        if not self.scale_of_y.settled:
            self.observe(x, y)
        return super().update(x, y)

    def observe(self, x: Any, y: Any) -> None:
        y = torch.as_tensor(y)
        self.flat = y.ndim == 1
        self.scale_of_x.observe(x.mean if isinstance(x, Gaussian) else torch.as_tensor(x))
        self.scale_of_y.observe(y[:, None] if self.flat else y)
        if isinstance(self.likelihood, Regression) and not isinstance(self.noise, str):
            self.likelihood.noise_std = self.noise / self.scale_of_y.std.to(self.like)

    def prepared(self, x: Any) -> Any:
        return self.scale_of_x(super().prepared(x))

    def encoded(self, y: Any) -> Tensor:
        y = torch.as_tensor(y).to(self.like)
        y = y[:, None] if y.ndim == 1 else y
        if y.ndim != 2 or y.shape[1] != self.targets:
            raise ValueError(
                f"y must have shape (N, {self.targets}), as the network has outputs, got {tuple(y.shape)}"
            )
        standardised: Tensor = self.scale_of_y(y)
        return standardised

    def split(self, z: Gaussian) -> tuple[Gaussian, Tensor]:
        """The targets without their noise, and its variance, both standardised."""
        if isinstance(self.likelihood, Regression):
            epistemic = Gaussian.trusted(z.mean, self.likelihood.predictive_scale * z.variance)
            return epistemic, self.likelihood.predictive_noise_var.expand_as(z.mean)
        return z[:, ::2], z.mean[:, 1::2]

    def error(self, z: Gaussian, y: Tensor) -> float:
        missed = (self.split(z)[0].mean - y) * self.scale_of_y.factor(y)
        return float(missed.square().nanmean(1).nansum())

    def training_error(self, total: float, samples: int) -> float:
        """The root of the mean squared error, in the targets' units."""
        return math.sqrt(total / max(samples, 1))

    def measures(self) -> Row:
        if not isinstance(self.likelihood, Regression):
            return {}
        noise = self.likelihood.predictive_noise_var.sqrt()[None]
        return {"noise_std": (noise * self.scale_of_y.factor(noise))[0].tolist()}

    def predict(self, x: Any) -> RegressionPrediction:
        """In the targets' units."""
        rows = []
        for z in self.outputs(x):
            z, noise = self.split(z)
            square = self.scale_of_y.factor(noise).square()
            rows.append((self.scale_of_y.undo(z.mean), z.variance * square, noise * square))
        columns = [torch.cat(column) for column in zip(*rows, strict=True)]
        return RegressionPrediction(*(part[:, 0] if self.flat and self.targets == 1 else part for part in columns))

    def scores(self, prediction: RegressionPrediction, y: Any) -> Row:
        """In the targets' units; a missing target counts nothing."""
        y = torch.as_tensor(y).to(prediction.mean).reshape(prediction.mean.shape)
        return metrics.regression_scores(prediction.mean, prediction.epistemic + prediction.aleatoric, y)

    def description(self) -> Row:
        scales = {"x": self.scale_of_x.as_json(), "y": self.scale_of_y.as_json()}
        own = {"noise": self.noise, "horizon": self.horizon, "flat": self.flat}
        return {"kind": "Regressor", **own, **scales}

    def read_description(self, described: Row) -> None:
        self.flat = bool(described["flat"])
        self.scale_of_x.read_json(described["x"])
        self.scale_of_y.read_json(described["y"])


class Prior(nn.Module):
    """The prior that an update keeps, as a part of a file."""

    def __init__(self, update: Update) -> None:
        super().__init__()
        for number, part in enumerate(update.parameters):
            for name, tensor in update.state[part.var].items():
                self.register_buffer(f"{name}_{number}", tensor)


def gaussian(net: nn.Module) -> nn.Module:
    """`net` as a Gaussian network."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch module, got {type(net).__name__}")
    return net if gaussian_parameters([net]) else convert(net)


def load(path: str | Path, net: nn.Module | None = None) -> Classifier | Regressor:
    """The model in a file, ready to predict. A network of modules of your own cannot be built from the file: give
    `net`, a Gaussian network like the one that was saved, to be filled."""
    described = files.read(path)[0]["extra"].get("model")
    if not isinstance(described, dict) or described.get("kind") not in ("Classifier", "Regressor"):
        raise CheckpointError(f"{path}: no Classifier or Regressor; torchtagi.checkpoint.load reads networks")
    try:
        with torch.random.fork_rng(devices=[]):  # layers draw a prior when they are built, for nothing here
            built = files.load(path).net if net is None else net
            model: Classifier | Regressor
            horizon = described["horizon"]
            if described["kind"] == "Classifier":
                model = Classifier(built, described["classes"], noise=described["noise"], horizon=horizon)
            else:
                model = Regressor(built, noise=described["noise"], horizon=horizon)
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: its model cannot be built ({error})") from error
    model.restore(path)
    for part in (model.net, model.likelihood, model.link):
        part.eval()
    return model
