"""What `Classifier` and `Regressor` share: a network, its likelihood and its update as one thing that fits, updates
and predicts.

    model = Classifier(net, classes=10)
    model.fit((x, y), epochs=10)
    model.predict(x_new).probs
    model.update(x_one, y_one)
    model.save("model.safetensors"); load("model.safetensors")

All that makes inference good is decided here, once, for `fit`, `update` and everything built on them:

-   The prior is calibrated to the first inputs (`inference.prior`), unless the user has called `calibrate_prior`.
-   A batch is learned in chunks of 16, each chunk's posterior the next one's prior (`inference.conditioning`).
-   The noise is learned. Labels are predicted through a link of their own (`likelihoods.link`).
-   Predictions are those of the mean of the last posteriors (`inference.average`). It is surer than the network
    that learns, so it has a link of its own, which sees now and then what it says of labels not learned yet.
-   Repeats of real numbers replace what they said before (`regressor`). Those of labels count as new, and what
    sharing adds (`inference.update`) counts while inputs are new: in `update`, and in the first epoch of `fit`.
    From the second epoch on inputs are augmented, if `fit` was told how.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar

import torch
from torch import Tensor, nn

from torchtagi import checkpoint as files
from torchtagi import distributed
from torchtagi.checkpoint import CheckpointError
from torchtagi.checks import as_numbers, naming_largest, place, plain_number, require_finite
from torchtagi.convert import convert
from torchtagi.fitting import Batches, EpochEnd, Fit, Row, everything, held_interrupt, is_columns
from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.inference.average import STEPS, Average
from torchtagi.inference.conditioning import CHUNK, condition
from torchtagi.inference.prior import calibrate_prior
from torchtagi.inference.statistics import local
from torchtagi.inference.update import Update, writers
from torchtagi.likelihoods.link import LabelLikelihood
from torchtagi.likelihoods.observation import Observer
from torchtagi.nn.affine import ConvolutionLayer
from torchtagi.nn.layer import Layer
from torchtagi.parameter import gaussian_parameters, ordinary_parameters
from torchtagi.standardising import Standardiser

PRIOR_INPUTS = 16
SETTLING = 4  # epochs at the end of a fit in which steps become shorter: results/ablation/repeats.jsonl
DRIFTING = 32  # an average's steps are so many times less than a horizon, or it would lag behind what drifts
NOISE_FLOOR = 0.01  # of a learned noise, in units of ±1 codes and of standardised targets
REBUILT = ("posterior", "average", "predicting", "joint", "held_out")  # by a copy; the last are a fit's data
PREDICTION_BATCH = 200  # as fast as 1000, whose large tensors are given back to the system and fetched again

P = ParamSpec("P")
T = TypeVar("T")


def without_autocast(method: Callable[P, T]) -> Callable[P, T]:
    """A method of a model for which `torch.autocast` is off: variances and messages in lower precision are not
    slightly but utterly wrong. `multiply_in` is the way to multiply in it."""

    @wraps(method)
    def in_own_precision(*args: P.args, **options: P.kwargs) -> T:
        model: Any = args[0]
        device = model.like.device.type
        if not torch.is_autocast_enabled(device):
            return method(*args, **options)
        with torch.autocast(device, enabled=False):
            return method(*args, **options)

    return in_own_precision


class Model(ABC):
    """What Classifier and Regressor share."""

    def __init__(self, net: nn.Module, likelihood: Observer, horizon: float | None = None) -> None:
        for parameter in ordinary_parameters(net):
            parameter.requires_grad_(False)  # ordinary layers are features here; they do not learn
        self.net, self.likelihood, self.horizon = net, likelihood, plain_number(horizon)
        self.epochs, self.observations, self.new = 0, 0, True
        self.calibrated = any(part.learned or part.calibrated for part in gaussian_parameters([net]))
        self.convolutional = any(isinstance(part, ConvolutionLayer) for part in net.modules())
        if self.convolutional:  # the layout in which they are fastest; bits depend on it
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # where the first parameter is kept: small networks feel it when torch looks for it at every use
        owned = ((part, part.named_parameters(recurse=False)) for part in net.modules())
        self.first = next((part, name) for part, parameters in owned for name, _ in parameters)
        likelihood.to(self.like)
        self.start_inference()

    def start_inference(self) -> None:
        """The update, and what predicts."""
        self.posterior = Update(self.net, horizon=self.horizon)
        steps = STEPS if self.horizon is None else min(STEPS, max(1, int(self.horizon / DRIFTING)))
        self.average: Average | None = Average(self.net, steps)
        self.predicting, self.link = self.average.net, copy.deepcopy(self.likelihood)
        if isinstance(self.likelihood, LabelLikelihood):
            self.likelihood.follows_messages = False

    @property
    def like(self) -> Tensor:
        """A parameter, to tell dtype and device."""
        part, name = self.first
        first: Tensor = local(part._parameters[name])
        return first

    @property
    def sharded(self) -> bool:
        """Whether this process keeps a part of the weights only."""
        return self.posterior.sharded

    def to(self, device: torch.device | str) -> Self:
        """All that the model is moves: what predicts, what learns, and the prior that it returns to."""
        for module in self.parts().values():
            module.to(device)
        for prior in self.posterior.state.values():
            prior.update({name: tensor.to(device) for name, tensor in prior.items()})
        return self

    # ---- copies and pickles ---------------------------------------------------------------------------------

    def __getstate__(self) -> Row:
        """What a file would have, and the network and its likelihood themselves."""
        states = {name: part.state_dict() for name, part in self.parts().items()}
        own = {name: value for name, value in vars(self).items() if name not in REBUILT}
        return {"own": own, "json": self.as_json(), "prior": bool(self.posterior.state), "states": states}

    def __setstate__(self, state: Row) -> None:
        vars(self).update(state["own"])
        self.start_inference()
        vars(self).update(state["own"])  # the link was made anew
        if state["prior"]:
            self.posterior.keep_prior()  # to be overwritten
        for name, part in self.parts().items():
            part.load_state_dict(state["states"][name])
        self.read_json(state["json"])

    def __copy__(self) -> Self:
        """Another name for the same network, which has one update."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    # ---- what a kind of model says --------------------------------------------------------------------------

    @abstractmethod
    def checked_targets(self, y: Any) -> Any:
        """Targets, each of which can be learned; what cannot is refused by its row."""

    @abstractmethod
    def encoded(self, y: Any) -> Tensor:
        """Checked targets as the likelihood takes them."""

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
        """Checked inputs where the network is, of its dtype and, for images, in its layout."""
        like = self.like
        x = x.to(device=like.device, dtype=like.dtype)
        return x.to(memory_format=torch.channels_last) if self.convolutional and x.ndim == 4 else x

    # ---- bad input ------------------------------------------------------------------------------------------

    def checked_inputs(self, x: Any) -> Tensor | Gaussian:
        """A tensor or a Gaussian, a row for each sample; what cannot be learned is refused by row and column."""
        numbers: Tensor | Gaussian = x if isinstance(x, Gaussian) else as_numbers("x", x)
        if not numbers.dtype.is_floating_point:
            raise TypeError(
                f"x must have a floating dtype, got {numbers.dtype}; convert it with .float(), images also to 0…1"
            )
        if numbers.ndim < 2:
            raise ValueError(
                f"x must have a row for each sample, got shape {tuple(numbers.shape)}; x[:, None] is one column"
            )
        if not all(numbers.shape) and distributed.state.group is None:
            raise ValueError(f"x is empty, shape {tuple(numbers.shape)}: it needs at least one row and one column")
        require_finite("x", numbers.mean if isinstance(numbers, Gaussian) else numbers, self.like.dtype, source=x)
        return numbers

    def checked_weights(self, weights: Any, samples: int) -> Tensor:
        checked = as_numbers("weights", weights).to(self.like)
        if checked.shape != (samples,):
            raise ValueError(f"weights must have shape ({samples},), one a sample, got {tuple(checked.shape)}")
        bad = torch.nonzero(~(torch.isfinite(checked) & (checked > 0)))
        if len(bad):
            index = bad[0].tolist()
            raise ValueError(
                f"weights must be positive and finite, got {checked[index[0]].item()} at {place(index)}; "
                "leave out a sample that is to count nothing"
            )
        return checked

    def checked(self, x: Any, y: Any, weights: Any = None) -> tuple[Any, ...]:
        """Inputs, targets, and weights if there are some."""
        x, y = self.checked_inputs(x), self.checked_targets(y)
        if len(y) != len(x):
            raise ValueError(f"y must have as many entries as x, {len(x)}, got {len(y)}")
        return (x, y) if weights is None else (x, y, self.checked_weights(weights, len(x)))

    @contextmanager
    def unchanged_on_error(self, whole: bool = True) -> Iterator[None]:
        """Whatever is raised leaves the model as it was. A step that is refused has not written a parameter yet:
        where no more than one step is made, `whole` may be false, and buffers alone are kept."""
        update = self.posterior
        modules = (self.net, self.likelihood, self.link)
        objects: list[Any] = [self, update, update.passes, *self.scales()]
        tensors = [tensor for module in modules for tensor in buffers(module)]
        if whole:
            every = (*modules, self.predicting, *self.learning_parts().values())
            tensors = [tensor for module in every for tensor in module.state_dict().values()]
            objects += [part for module in modules for part in module.modules()]
            objects += [self.average] if self.average is not None else []
        with torch.no_grad():
            kept = [tensor.clone() for tensor in tensors]
        attributes = [(part, vars(part).copy()) for part in objects]
        priors = {var: dict(state) for var, state in update.state.items()}
        try:
            yield
        except BaseException:
            update.zero_grad()
            with torch.no_grad():
                for tensor, before in zip(tensors, kept, strict=True):
                    tensor.copy_(before)
            for part, values in attributes:
                vars(part).clear()
                vars(part).update(values)
            update.state.clear()
            update.state.update(priors)
            for part in update.parameters:
                if not part.learned:
                    writers.pop(part, None)  # the claim of a first step
            raise

    def scales(self) -> tuple[Standardiser, ...]:
        return ()

    # ---- learning -------------------------------------------------------------------------------------------

    def get_ready(self, batches: Batches, epochs: int) -> None:
        """Before the first epoch of a fit: fit the prior to the first inputs, in the first of several processes."""
        if not self.calibrated and not batches.rank:
            self.calibrate(self.prepared(self.checked_inputs(batches.first(PRIOR_INPUTS)[0])))

    def calibrate(self, x: Any) -> None:
        calibrate_prior(self.net, as_gaussian(x[:PRIOR_INPUTS]))
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
        if not (self.net.training and self.likelihood.training):
            self.net.train()
            self.likelihood.train()
        if new and not self.new:
            self.posterior.passes.restart()
        self.posterior.count_sharing = self.new = new
        self.posterior.settling = False
        if self.likelihood.repeats == new:  # a module's attributes are slow to set
            self.likelihood.repeats = not new

    def end_epoch(self) -> None:
        self.epochs += 1

    def learn(self, x: Any, y: Any, weights: Any = None, *, checked: bool = False) -> tuple[float, Row]:
        """Learn one batch, which may have been checked; the sum of its errors before, and a report."""
        batch, sizes = distributed.together(lambda: self.batch(x, y, weights, checked))
        given, observed, x, y, weights = batch
        if not self.calibrated:
            self.calibrate(x)
        errors, samples, steps, observing, report = 0.0, 0, 0, 0, {"alpha": 0.0, "innovation": 0.0}

        def before(inputs: Any, z: Gaussian, targets: Tensor) -> None:
            nonlocal errors, samples
            errors += self.error(z, targets)
            if weights is not None:
                self.likelihood.weights = weights[samples : samples + len(targets)]
                samples += len(targets)
            self.score_link(inputs, targets)
            if self.posterior.repeats is not None:
                self.posterior.repeats = self.observations if self.replaces_repeats() else math.inf

        def after() -> None:
            nonlocal steps, observing
            steps += 1
            observing += self.posterior.report["innovation"] > 0  # it is 0 where all targets are missing
            for name in report:
                report[name] += self.posterior.report[name]
            if self.average is not None:
                self.average.follow()

        try:
            chunk = self.chunk_size(max(sizes))
            with naming_largest(x=(given, x), y=(observed, y)):
                condition(self.net, self.likelihood, self.posterior, x, y, chunk, before, after, sizes)
        finally:
            if weights is not None:
                self.likelihood.weights = None
        self.observations += sum(sizes) if self.new else 0
        innovation = report["innovation"] / observing if observing else math.nan
        return errors, {"alpha": report["alpha"] / steps, "innovation": innovation}

    def batch(self, x: Any, y: Any, weights: Any, checked: bool) -> tuple[Any, Any, Any, Tensor, Tensor | None]:
        """Inputs and targets, checked and as they are learned; weights if there are some."""
        if not checked:
            x, y, *own = self.checked(x, y, weights)
            weights = own[0] if own else None
        return x, y, self.prepared(x), self.encoded(y), weights

    def replaces_repeats(self) -> bool:
        """Whether what is learned now takes the place of what the same observations said before."""
        return False

    def chunk_size(self, samples: int) -> int:
        return CHUNK

    def score_link(self, x: Any, y: Tensor) -> None:  # noqa: B027 - only labels are predicted through a link
        """Now and then, show the likelihood that predicts what the average says of inputs not learned yet."""

    @without_autocast
    @torch.inference_mode(False)  # and with gradients, which are the messages
    def update(self, x: Any, y: Any, weights: Any = None) -> Row:
        """Learn new observations, one or many; nothing of them is a repeat. Each counts for one, or for its weight.
        Returns a report of the step: `innovation`, the mean of r²/(v+R), near 1 where the predicted variance is
        right."""
        x, y, *own = self.checked(x, y, weights)
        with self.unchanged_on_error(whole=not self.calibrated or len(x) > self.chunk_size(len(x))):
            self.observe(x, y, *own)
            self.start_learning(new=True)
            return self.learn(x, y, *own, checked=True)[1]

    def observe(self, x: Any, y: Any, weights: Any = None) -> None:  # noqa: B027 - labels have no scale
        """Look at new observations before they are learned."""

    @without_autocast
    @torch.inference_mode(False)  # and with gradients, which are the messages
    def fit(
        self,
        data: Any,
        *,
        epochs: int = 1,
        batch_size: int = 16,
        augment: Callable[[Any], Any] | None = None,
        validation: Any = None,
        progress: bool = True,
        stop: Callable[[Row], bool] | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        seed: int | None = None,
        shard: bool = False,
    ) -> list[Row]:
        """Learn from `(x, y)`, a `Dataset` or a `DataLoader` of such pairs, `epochs` times; returns a row an epoch.
        `(x, y, weights)` says for how many observations each sample counts.

        A batch of any size learns as well as a small one. `augment`, a function of a batch of inputs, varies them
        from the second epoch on. `validation`, data like the others, is measured after each epoch. `progress` shows
        a bar on a terminal. `stop`, a function of an epoch's row, ends the fit after it by returning True.
        `checkpoint` names a file that is written after each epoch and every five minutes; with `resume` a fit that
        was stopped goes on from it, to the bit, if it is given the same `epochs`. One whose epochs are done goes on
        to as many as are given now. It learns what a second fit would, not what one fit of so many would have: the
        steps become shorter towards the end of each. `seed` decides the order of the data; unless given it is drawn
        from torch's generator.

        Under `torchrun`, or where a default process group is there, all processes learn together: each is given all
        data and learns its part of them, `batch_size` samples at a time (docs/distributed.md). With `shard` each
        keeps a part of the weights only; all of them have to call `predict` and `save` from then on.

        A fit that fails leaves the model as it was before. Ctrl-C ends it after the step; what was learned stays.
        """
        if resume and checkpoint is None:
            raise ValueError("resume=True needs checkpoint=PATH, the file to go on from")
        group = distributed.start(self.like.device)
        if checkpoint is not None:
            files.require_writable(checkpoint)
        if is_columns(data) and group is None:  # of several processes each names its batch and itself
            data = self.checked(*data)
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        batches = Batches(data, batch_size, seed)
        with nullcontext() if shard else self.unchanged_on_error():
            history, interrupted = self.go_through(
                batches, epochs, augment, validation, progress, stop, checkpoint, resume, group, shard
            )
        self.net.eval()
        self.likelihood.eval()
        if interrupted:
            raise KeyboardInterrupt
        return history

    def go_through(
        self,
        batches: Batches,
        epochs: int,
        augment: Callable[[Any], Any] | None,
        validation: Any,
        progress: bool,
        stop: Callable[[Row], bool] | None,
        checkpoint: str | Path | None,
        resume: bool,
        group: distributed.Group | None,
        shard: bool,
    ) -> tuple[list[Row], bool]:
        """The history, and whether Ctrl-C has ended it."""
        from tqdm.auto import tqdm

        held_out: tuple[Any, ...] = ()
        fit = Fit(
            self, batches, epochs, augment, lambda epoch: self.evaluate(*held_out) if held_out else {}, group, shard
        )
        try:
            held_out = () if validation is None else self.checked(*everything(validation))
        except (TypeError, ValueError) as error:
            raise type(error)(f"validation: {error}") from error
        first = group is None or group.first

        def history_so_far() -> list[Row]:
            known = checkpoint is not None and resume and Path(checkpoint).is_file()
            return self.resume(fit, checkpoint) if known and checkpoint is not None else []

        history = history_so_far() if group is None else group.of_first(history_so_far)
        hidden = None if progress and first else True  # None: where the output is no terminal
        bar = tqdm(total=fit.samples_left, initial=fit.sums.samples, unit=" samples", disable=hidden)
        with bar, held_interrupt() as release_interrupt:
            try:
                for event in fit.events():
                    if isinstance(event, EpochEnd):
                        history.append(event.row)
                    else:
                        bar.set_postfix_str(f"epoch {event.epoch}, error {event.error:.3g}", refresh=False)
                        bar.update(event.new_samples)
                    due = isinstance(event, EpochEnd) or event.save_due
                    if checkpoint is not None and due and (first or self.sharded):
                        self.save(checkpoint, fit=fit.position(), history=history)
                    release_interrupt()
                    if stop is not None and isinstance(event, EpochEnd):
                        asked, row = stop, event.row
                        if asked(row) if group is None else group.of_first(lambda: asked(row)):  # noqa: B023
                            break
            except KeyboardInterrupt:
                if fit.torn:
                    raise
                if checkpoint is not None and first and not self.sharded:
                    self.save(checkpoint, fit=fit.position(), history=history)
                return history, True
        return history, False

    def resume(self, fit: Fit, path: str | Path) -> list[Row]:
        """Become what the file holds, and let `fit` go on from there; returns the rows so far."""
        given = fit.last - self.epochs
        extra = self.restore(path)
        try:
            fit.go_to(extra["fit"])
            fit.last = int(extra["fit"]["last"])
            history = list(extra["history"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{path}: holds a model, but no fit to go on with") from error
        begun_at = self.epochs - len(history)
        planned = fit.last - begun_at
        if given < planned or (given > planned and not fit.done):
            raise ValueError(
                f"{path}: holds a fit of {planned} epochs, {len(history)} of them learned, which cannot become one "
                f"of epochs={given}, because its steps depend on their number; go on with epochs={planned}, and "
                "with more when these are learned"
            )
        fit.last = begun_at + given
        return history

    # ---- predicting -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def outputs(self, x: Any) -> Iterator[Gaussian]:
        """What the network that predicts says of x, in parts; its mode is afterwards what it was."""
        training = self.predicting.training
        self.predicting.eval()
        x = self.checked_inputs(x)
        group = distributed.state.group
        size = 1 if group is None else group.size
        try:
            for start in range(0, len(x), PREDICTION_BATCH * size):
                starts = [min(start + PREDICTION_BATCH * rank, len(x)) for rank in range(size + 1)]
                own = slice(*starts[:2]) if group is None else slice(*starts[group.rank : group.rank + 2])
                z = self.predicting(as_gaussian(self.prepared(x[own]), finite=True))
                if group is not None:
                    sizes = [end - begin for begin, end in pairwise(starts)]
                    z = Gaussian.trusted(group.rows(z.mean, sizes), group.rows(z.variance, sizes))
                yield z
        finally:
            self.predicting.train(training)

    def evaluate(self, x: Any, y: Any = None) -> Row:
        """Scores on held-out data, given as x and y or as one thing that `fit` would take."""
        x, y = everything(x) if y is None else (x, y)
        return self.scores(self.predict(x), y)

    # ---- files ----------------------------------------------------------------------------------------------

    def save(self, path: str | Path, **extra: Any) -> None:
        """Write everything that this model is into one file, atomically; `load` gives it back."""
        files.save(path, self.predicting, self.link, {**self.as_json(), **extra}, **self.learning_parts())

    def as_json(self) -> Row:
        """What this model is besides tensors."""
        content: Row = {"model": self.description(), "epochs": self.epochs, "calibrated": self.calibrated}
        content["observations"], content["new"] = self.observations, self.new
        content["passes"] = self.posterior.passes.as_json()
        content["averaged"] = 0 if self.average is None else self.average.count
        content["learned"] = any(part.learned for part in gaussian_parameters([self.net]))
        return content

    def read_json(self, content: Row) -> None:
        self.epochs, self.calibrated = int(content["epochs"]), bool(content["calibrated"])
        self.observations, self.new = int(content["observations"]), bool(content["new"])
        self.posterior.passes.read_json(content["passes"], self.like)
        if self.average is not None:
            self.average.count = int(content["averaged"])
        for part in gaussian_parameters([self.net]):
            part.learned = bool(content["learned"])
        self.read_description(content["model"])

    def share(self, group: distributed.Group) -> None:
        """Become what the first process's model is."""
        if self.sharded:  # in an earlier fit
            return
        content, keeps_prior = group.of_first(lambda: (self.as_json(), bool(self.posterior.state)))
        if keeps_prior:
            self.posterior.keep_prior()  # to be overwritten
        state = {f"{name}.{key}": t for name, part in self.parts().items() for key, t in part.state_dict().items()}
        shapes = group.objects({key: tuple(tensor.shape) for key, tensor in state.items()})
        if any(own != shapes[0] for own in shapes):
            raise ValueError("all processes must fit the same model, and their networks or likelihoods differ")
        for tensor in state.values():
            group.share_(tensor)
        self.read_json(content)

    def parts(self) -> dict[str, nn.Module]:
        """All that has tensors, some of them perhaps twice."""
        return {"predicting": self.predicting, "link": self.link, **self.learning_parts()}

    def learning_parts(self) -> dict[str, nn.Module]:
        """What learns, where it is not what predicts, and the prior that it returns to, if it does."""
        prior: dict[str, nn.Module] = {"prior": Prior(self.posterior)} if self.posterior.state else {}
        if self.average is None:
            return prior
        return {"learning_net": self.net, "learning_likelihood": self.likelihood, **prior}

    def shard(self, group: distributed.Group) -> None:
        """Keep a part of the weights only, of the average's and of the prior's. A layer's are gathered while it is
        at work."""
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        if self.sharded:
            return
        priors = [self.posterior.state[part.var] for part in self.posterior.parameters]
        mesh = DeviceMesh.from_group(group.handle, group.device.type)
        for net in dict.fromkeys((self.net, self.predicting)):
            net.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            layers = [part for part in net.modules() if isinstance(part, Layer) and gaussian_parameters([part])]
            for part in dict.fromkeys((*layers, net)):
                fully_shard(part, mesh=mesh, reshard_after_forward=True)
        self.posterior.take_shards(self.net, priors)

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
            self.read_json(extra)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: holds a network, but not a model like this one") from error
        return extra

    def read_description(self, described: Row) -> None:  # noqa: B027 - most is said by the constructor
        """Take what the constructor does not."""


class Prior(nn.Module):
    """The prior that an update keeps, as a part of a file."""

    def __init__(self, update: Update) -> None:
        super().__init__()
        for number, part in enumerate(update.parameters):
            for name, tensor in update.state[part.var].items():
                self.register_buffer(f"{name}_{number}", tensor)


def buffers(net: nn.Module) -> Iterator[Tensor]:
    """All of a network's, some perhaps twice. Small networks feel the search of `net.buffers()`."""
    yield from (tensor for tensor in net._buffers.values() if tensor is not None)
    for part in net._modules.values():
        if part is not None:
            yield from buffers(part)


def gaussian(net: nn.Module) -> nn.Module:
    """`net` as a Gaussian network."""
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch module, got {type(net).__name__}")
    return net if gaussian_parameters([net]) else convert(net)
