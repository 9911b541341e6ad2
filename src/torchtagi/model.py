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

import contextlib
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
from torchtagi.fitting import Batches, EpochEnd, Fit, Row, Step, concatenated, joined
from torchtagi.gaussian import Gaussian
from torchtagi.heads import last_layer, outputs_of, with_outputs
from torchtagi.inference.average import Average
from torchtagi.inference.conditioning import CHUNK, condition
from torchtagi.inference.prior import calibrate_prior
from torchtagi.inference.update import Update
from torchtagi.likelihoods import HeteroscedasticRegression, HierarchicalClassification, Regression
from torchtagi.nn import EvenExp, Sequential
from torchtagi.nn.affine import ConvolutionLayer
from torchtagi.parameter import gaussian_parameters, ordinary_parameters
from torchtagi.prediction import ClassPrediction, RegressionPrediction
from torchtagi.standardising import Standardiser

PRIOR_INPUTS = 16
SCALE_ROWS = 10_000  # of the training data say what the scales of inputs and targets are
SCORE_EVERY = 10  # chunks: how often the average is asked beforehand; each time costs half a step
NOISE_FLOOR = 0.01  # of a learned noise, in units of ±1 codes and of standardised targets
PREDICTION_BATCH = 200  # as fast as 1000, whose large tensors are given back to the system and fetched again
SAVE_SECONDS = 300.0  # no more than this is lost if a fit with a checkpoint is killed


class Model(ABC):
    """What Classifier and Regressor share."""

    def __init__(self, net: nn.Module, likelihood: nn.Module) -> None:
        for parameter in ordinary_parameters(net):
            parameter.requires_grad_(False)  # ordinary layers are features here; they do not learn
        self.net, self.likelihood = net, likelihood
        self.convolutional = any(isinstance(part, ConvolutionLayer) for part in net.modules())
        self.to(next(net.parameters()).device)
        self.epochs = 0
        self.calibrated = any(part.learned for part in gaussian_parameters([net]))
        self.start_inference()

    def to(self, device: torch.device | str) -> Self:
        """Move everything; convolutions are fastest with channels last, and bits depend on it."""
        for module in self.modules():
            module.to(device)
            if self.convolutional:
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self

    def modules(self) -> list[nn.Module]:
        parts = (self.net, self.likelihood, *(getattr(self, name, None) for name in ("predicting", "link")))
        return [part for part in parts if part is not None]

    def start_inference(self) -> None:
        """The update, and what predicts."""
        self.posterior = Update(self.net)
        self.average: Average | None = Average(self.net)
        self.predicting, self.link = self.average.net, copy.deepcopy(self.likelihood)

    # ---- what a kind of model says --------------------------------------------------------------------------

    @abstractmethod
    def prepared(self, x: Any) -> Any:
        """Inputs as the network takes them."""

    @abstractmethod
    def encoded(self, y: Any) -> Tensor:
        """Targets as the likelihood takes them."""

    @abstractmethod
    def error(self, z: Gaussian, y: Tensor) -> float:
        """The sum of a batch's errors."""

    @abstractmethod
    def training_error(self, total: float, samples: int) -> float: ...

    @abstractmethod
    def predict(self, x: Any) -> Any: ...

    @abstractmethod
    def scores(self, prediction: Any, y: Any) -> Row: ...

    @abstractmethod
    def description(self) -> Row:
        """As JSON: what a file has to say besides tensors."""

    @abstractmethod
    def measures(self) -> Row: ...

    def look_at(self, batches: Batches) -> None:  # noqa: B027 - most have nothing to look at
        """Before the first epoch: whatever has to be known of the data at large."""

    # ---- learning -------------------------------------------------------------------------------------------

    def calibrate(self, x: Any) -> None:
        """Fit the prior to the first inputs that come."""
        calibrate_prior(self.net, x[:PRIOR_INPUTS])
        self.calibrated = True
        if self.average is not None:
            self.predicting.load_state_dict(self.net.state_dict())

    def start_epoch(self, epoch: int) -> bool:
        self.train()
        self.posterior.count_sharing = epoch == 0
        return epoch > 0

    def end_epoch(self) -> None:
        self.epochs += 1

    def train(self) -> None:
        self.net.train()
        self.likelihood.train()

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

        def after() -> None:
            nonlocal steps
            steps += 1
            for name in report:
                report[name] += self.posterior.reports[0][name]
            if self.average is not None:
                self.average.follow()

        condition(self.net, self.likelihood, self.posterior, x, y, self.chunk_size(len(x)), before, after)
        return errors, {name: total / steps for name, total in report.items()}

    def chunk_size(self, samples: int) -> int:
        return CHUNK

    def score_link(self, x: Any, y: Tensor) -> None:
        """Now and then, show the likelihood that predicts what the average says of inputs not learned yet."""
        if self.average is not None and self.average.count % SCORE_EVERY == 1:
            with torch.no_grad():
                self.link.score_link(self.predicting(x), y)  # type: ignore[operator]

    def update(self, x: Any, y: Any) -> Row:
        """Learn new observations, one or many; nothing of them is a repeat. Returns a report of the step:
        `innovation`, the mean of r²/(v+R), near 1 where the predicted variance is right."""
        self.train()
        self.posterior.count_sharing = True
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
        if seed is None:
            seed = int(torch.randint(2**62, ()))
        held_out = None if validation is None else everything(validation)
        validate = None if held_out is None else lambda epoch: self.evaluate(*held_out)
        fit = Fit(self, Batches(data, batch_size, seed), epochs, augment, validate)
        history: list[Row] = []
        if resume:
            if checkpoint is None:
                raise ValueError("resume=True needs checkpoint=PATH, the file to go on from")
            if Path(checkpoint).is_file():
                history = self.resume(fit, checkpoint)
        saved = time.monotonic()
        with bar(fit, progress) as show:
            try:
                for event in fit.events():
                    show(event)
                    if isinstance(event, EpochEnd):
                        history.append(event.row)
                    if checkpoint is not None and (
                        isinstance(event, EpochEnd) or time.monotonic() - saved > SAVE_SECONDS
                    ):
                        self.save(checkpoint, fit=fit.position(), history=history)
                        saved = time.monotonic()
            except KeyboardInterrupt:
                if checkpoint is not None:
                    self.save(checkpoint, fit=fit.position(), history=history)
                raise
        self.eval()
        return history

    def get_ready(self, batches: Batches) -> None:
        """Before the first epoch of a fit: find the scale of the data, and fit the prior to it."""
        if not self.calibrated:
            self.look_at(batches)
            self.calibrate(self.prepared(batches.first(PRIOR_INPUTS)[0]))

    def resume(self, fit: Fit, path: str | Path) -> list[Row]:
        """Become what the file holds, and let `fit` go on from there; returns the rows so far."""
        extra = self.restore(path)
        try:
            position, history = extra["fit"], extra["history"]
            fit.go_to(position)
            fit.last = int(position["last"])
            return list(history)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path}: holds a model, but no fit to go on with") from error

    # ---- predicting -----------------------------------------------------------------------------------------

    def eval(self) -> None:
        for module in self.modules():
            module.eval()

    @torch.no_grad()
    def outputs(self, x: Any) -> Iterator[Gaussian]:
        """What the network that predicts says of x, in parts; afterwards all is in the mode it was in."""
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            for start in range(0, len(x), PREDICTION_BATCH):
                yield self.predicting(self.prepared(x[start : start + PREDICTION_BATCH]))
        finally:
            for module, training in modes:
                module.train(training)

    def evaluate(self, x: Any, y: Any = None) -> Row:
        """Scores on held-out data, given as x and y or as one thing that `fit` would take."""
        if y is None:
            x, y = everything(x)
        return self.scores(self.predict(x), y)

    # ---- files ----------------------------------------------------------------------------------------------

    def save(self, path: str | Path, **extra: Any) -> None:
        """Write everything that this model is into one file, atomically; `load` gives it back."""
        content = {"model": self.description(), "epochs": self.epochs, "calibrated": self.calibrated, **extra}
        content["averaged"] = 0 if self.average is None else self.average.count
        content["learned"] = any(part.learned for part in gaussian_parameters([self.net]))
        files.save(path, self.predicting, self.link, content, **self.other_parts())

    def other_parts(self) -> dict[str, nn.Module]:
        """What a file holds besides the network that predicts and its likelihood."""
        return {} if self.average is None else {"learning_net": self.net, "learning_likelihood": self.likelihood}

    def restore(self, path: str | Path) -> Row:
        """Become what a file holds that a model like this one has saved; returns what else was saved with it."""
        others = self.other_parts()
        saved = files.read(path)[0]["architecture"]
        extra = files.restore(path, self.predicting, self.link, **{k: v for k, v in others.items() if k in saved})
        if others and not others.keys() <= saved.keys():  # saved by one whose last posterior predicts
            self.net.load_state_dict(self.predicting.state_dict())
            self.likelihood.load_state_dict(self.link.state_dict())
        try:
            self.epochs, self.calibrated = int(extra["epochs"]), bool(extra["calibrated"])
            if self.average is not None:
                self.average.count = int(extra["averaged"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: holds a network, but not a model") from error
        for part in gaussian_parameters([self.net]):
            part.learned = bool(extra.get("learned"))
        return extra


class Classifier(Model):
    """Classes from anything a network takes.

    `net` is an ordinary torch network, which is converted (`convert`), or a Gaussian one. Its last layer has as
    many outputs as there are classes, as in torch; the model replaces it by one for the nodes of the classes' tree
    (`likelihoods.classification`). `classes` is their number, for labels 0, 1, …, or the list of labels: whole
    numbers or strings. `noise` is learned, or the standard deviation of the labels' ±1 codes.
    """

    likelihood: HierarchicalClassification
    link: HierarchicalClassification

    def __init__(self, net: nn.Module, classes: int | Sequence[Any], *, noise: str | float = "learned") -> None:
        self.classes: list[Any] | None = None
        if not isinstance(classes, int):
            self.classes = [name.item() if isinstance(name, Tensor) else name for name in classes]
            if len(set(self.classes)) < len(self.classes):
                raise ValueError(f"classes must differ from each other, got {self.classes}")
            if not all(isinstance(name, int | str) for name in self.classes):
                raise TypeError(f"classes must be whole numbers or strings, got {self.classes}")
            self.places = {name: place for place, name in enumerate(self.classes)}
        self.noise = noise
        count = classes if isinstance(classes, int) else len(classes)
        likelihood = HierarchicalClassification(count, *noise_of(noise, 1.0))
        super().__init__(gaussian(net, count, likelihood.outputs), likelihood)

    def prepared(self, x: Any) -> Any:
        return placed(x, self.net, self.convolutional)

    def encoded(self, y: Any) -> Tensor:
        device = next(self.net.parameters()).device
        if self.classes is None:
            return torch.as_tensor(y, device=device)
        names = y.tolist() if hasattr(y, "tolist") else list(y)
        try:
            return torch.tensor([self.places[name] for name in names], device=device)
        except (KeyError, TypeError):
            bad = next(name for name in names if name not in self.places)
            raise ValueError(f"label {bad!r} is not among the classes {self.classes}") from None

    def error(self, z: Gaussian, y: Tensor) -> float:
        return float((self.likelihood.log_probs(z).argmax(1) != y).sum())

    def training_error(self, total: float, samples: int) -> float:
        """In %."""
        return 100 * total / max(samples, 1)

    def measures(self) -> Row:
        """The noise that messages assume, and that of predictions, which may have their own."""
        return {
            "noise_std": math.sqrt(self.likelihood.learned_noise_var.item()),
            "link_noise_std": math.sqrt(self.link.predictive_noise_var.item()),
        }

    def predict(self, x: Any) -> ClassPrediction:
        """Class probabilities with both uncertainties."""
        parts = [self.link.predict(z) for z in self.outputs(x)]
        columns = [
            [part.probs for part in parts],
            [part.epistemic for part in parts],
            [part.aleatoric for part in parts],
        ]
        probs, epistemic, aleatoric = map(torch.cat, columns)
        return ClassPrediction(probs, epistemic, aleatoric, self.classes)

    def scores(self, prediction: ClassPrediction, y: Any) -> Row:
        """Error in %; the rest as `torchtagi.metrics` defines it."""
        return metrics.classification_scores(prediction.probs, self.encoded(y))

    def description(self) -> Row:
        classes = self.classes if self.classes is not None else self.likelihood.classes
        return {"kind": "Classifier", "classes": classes, "noise": self.noise}


class Regressor(Model):
    """Real numbers from anything a network takes.

    `net` is an ordinary torch network, which is converted (`convert`), or a Gaussian one, with one output a target.
    `noise` is `learned`, one for each target; or `predicted` for each input by the network itself; or a number, its
    standard deviation in the targets' units. Inputs and targets are standardised inside, by the training data of
    `fit` or by the first rows of a stream. A NaN target is missing; an input may be uncertain, a `Gaussian`.
    """

    def __init__(self, net: nn.Module, *, noise: str | float = "learned") -> None:
        if isinstance(noise, str) and noise not in ("learned", "predicted"):
            raise ValueError(f'noise must be "learned", "predicted" or a number, got {noise!r}')
        if not isinstance(noise, str):
            require_positive("noise", noise)
        self.noise = noise
        net = gaussian(net)
        outputs = outputs_of(last_layer(net)[1])
        likelihood: nn.Module
        if noise == "predicted":
            likelihood = HeteroscedasticRegression()
            if isinstance(net, nn.Sequential) and isinstance(net[-1], EvenExp):
                outputs //= 2
            else:
                net = Sequential(with_outputs(net, outputs, 2 * outputs), EvenExp())
        else:
            likelihood = Regression([NOISE_FLOOR] * outputs, learn_noise=noise == "learned")
        self.targets = outputs
        self.inputs, self.outcome = Standardiser(), Standardiser()
        self.flat = True
        """Whether targets came without a dimension of their own."""
        super().__init__(net, likelihood)

    def look_at(self, batches: Batches) -> None:
        self.observe(*batches.first(SCALE_ROWS))
        self.inputs.settled = self.outcome.settled = True

    def observe(self, x: Any, y: Any) -> None:
        """Let the scales of inputs and targets be known; those of a stream until its first thousand rows are."""
        y = torch.as_tensor(y)
        self.flat = y.ndim == 1
        self.inputs.observe(x.mean if isinstance(x, Gaussian) else torch.as_tensor(x))
        self.outcome.observe(y[:, None] if self.flat else y)
        if not isinstance(self.noise, str):
            self.likelihood.noise_std = self.noise / self.outcome.std.float()

    def update(self, x: Any, y: Any) -> Row:
        if not self.outcome.settled:
            self.observe(x, y)
        return super().update(x, y)

    def prepared(self, x: Any) -> Any:
        return self.inputs(placed(x, self.net, self.convolutional))

    def encoded(self, y: Any) -> Tensor:
        like = next(self.net.parameters())
        y = torch.as_tensor(y).to(like)
        y = y[:, None] if y.ndim == 1 else y
        if y.ndim != 2 or y.shape[1] != self.targets:
            raise ValueError(
                f"y must have shape (N, {self.targets}), as the network has outputs, got {tuple(y.shape)}"
            )
        standardised: Tensor = self.outcome(y)
        return standardised

    def error(self, z: Gaussian, y: Tensor) -> float:
        mean = z.mean[:, ::2] if self.noise == "predicted" else z.mean
        return float(((mean - y) * self.outcome.scale(y)).square().nanmean(1).nansum())

    def training_error(self, total: float, samples: int) -> float:
        """The root of the mean squared error, in the targets' units."""
        return math.sqrt(total / max(samples, 1))

    def measures(self) -> Row:
        if not isinstance(self.likelihood, Regression):
            return {}
        noise = self.likelihood.predictive_noise_var.sqrt()[None]
        return {"noise_std": (noise * self.outcome.scale(noise))[0].tolist()}

    def score_link(self, x: Any, y: Tensor) -> None:
        """Predictions have the noise that messages have."""

    def predict(self, x: Any) -> RegressionPrediction:
        """In the targets' units."""
        means, epistemic, aleatoric = [], [], []
        for z in self.outputs(x):
            if isinstance(self.likelihood, Regression):
                noise = self.likelihood.predictive_noise_var.expand_as(z.mean)
            else:
                z, noise = z[:, ::2], z.mean[:, 1::2]
            means.append(self.outcome.undo(z.mean))
            epistemic.append(z.variance * self.outcome.scale(z.mean).square())
            aleatoric.append(noise * self.outcome.scale(z.mean).square())
        parts = [torch.cat(part) for part in (means, epistemic, aleatoric)]
        return RegressionPrediction(*(part[:, 0] if self.flat and self.targets == 1 else part for part in parts))

    def scores(self, prediction: RegressionPrediction, y: Any) -> Row:
        """In the targets' units; a missing target counts nothing."""
        y = torch.as_tensor(y).to(prediction.mean).reshape(prediction.mean.shape)
        return metrics.regression_scores(prediction.mean, prediction.epistemic + prediction.aleatoric, y)

    def description(self) -> Row:
        scales = {"inputs": self.inputs.as_json(), "outcome": self.outcome.as_json()}
        return {"kind": "Regressor", "noise": self.noise, "flat": self.flat, **scales}

    def restore(self, path: str | Path) -> Row:
        extra = super().restore(path)
        try:
            described = extra["model"]
            self.flat = bool(described["flat"])
            self.inputs.read_json(described["inputs"])
            self.outcome.read_json(described["outcome"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: does not say the scale of its inputs and targets") from error
        return extra


def noise_of(noise: str | float, unit: float) -> tuple[float, bool]:
    """noise_std and learn_noise of a likelihood."""
    if noise == "learned":
        return NOISE_FLOOR, True
    if isinstance(noise, str):
        raise ValueError(f'noise must be "learned" or a number, got {noise!r}')
    return noise / unit, False


def gaussian(net: nn.Module, written: int | None = None, needed: int | None = None) -> nn.Module:
    """`net` as a Gaussian network; its last layer, written with as many outputs, gets as many as are needed."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch module, got {type(net).__name__}")
    if not gaussian_parameters([net]):
        net = convert(net)
    return net if written is None or needed is None else with_outputs(net, written, needed)


def placed(x: Any, net: nn.Module, convolutional: bool) -> Any:
    """Inputs where the network is, of its dtype and, for images, in its layout."""
    like = next(net.parameters())
    x = x if isinstance(x, Gaussian | Tensor) else torch.as_tensor(x)
    x = x.to(device=like.device)
    if isinstance(x, Tensor) and not x.is_floating_point():
        raise TypeError(
            f"x must have a floating dtype, got {x.dtype}; convert it with .float(), images also to 0…1"
        )
    x = x.to(dtype=like.dtype)
    if convolutional and x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)
    return x


def everything(data: Any) -> tuple[Any, Any]:
    """All inputs and all targets of what `fit` would take."""
    if isinstance(data, tuple | list) and len(data) == 2:
        return data[0], data[1]
    parts = list(Batches(data, PREDICTION_BATCH, 0).epoch(0))
    return concatenated([x for x, _ in parts]), joined([y for _, y in parts])


@contextlib.contextmanager
def bar(fit: Fit, wanted: bool) -> Iterator[Callable[[Step | EpochEnd], None]]:
    """A bar with rate, error so far and remaining time; none where the output is no terminal."""
    if not wanted:
        yield lambda event: None
        return
    from tqdm.auto import tqdm

    samples, seen = fit.batches.samples, fit.sums.samples
    total = None if samples is None else samples * (fit.last - fit.learner.epochs)
    with tqdm(total=total, initial=seen, unit=" samples", disable=None) as shown:

        def show(event: Step | EpochEnd) -> None:
            nonlocal seen
            if isinstance(event, EpochEnd):
                seen = 0
                return
            shown.set_postfix_str(f"epoch {event.epoch}, error {event.error:.3g}", refresh=False)
            shown.update(event.samples - seen)
            seen = event.samples

        yield show


def load(path: str | Path, net: nn.Module | None = None) -> Classifier | Regressor:
    """The model in a file, ready to predict. A network of modules of your own cannot be built from the file: give
    `net`, a Gaussian network like the one that was saved, to be filled."""
    header, _ = files.read(path)
    described = header["extra"].get("model")
    if not isinstance(described, dict) or described.get("kind") not in ("Classifier", "Regressor"):
        raise CheckpointError(
            f"{path}: holds a network, but no Classifier or Regressor; torchtagi.checkpoint.load reads networks"
        )
    try:
        with torch.random.fork_rng(devices=[]):  # layers draw a prior when they are built, for nothing here
            built = files.load(path).net if net is None else net
            if described["kind"] == "Classifier":
                model: Classifier | Regressor = Classifier(built, described["classes"], noise=described["noise"])
            else:
                model = Regressor(built, noise=described["noise"])
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: its model cannot be built ({error})") from error
    model.restore(path)
    model.eval()
    return model
