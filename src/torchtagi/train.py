"""Training a classifier: what was asked for, the loop, and going on where it stopped.

    run = Run.create(folder, config.as_json())
    training = Training(config, run)
    for event in training.events():      # a Step after each batch, an EpochEnd after each epoch
        ...                              # stop whenever you like; training.save() keeps the place

A run continued from any of its checkpoints ends with the same bits as one that was never interrupted (on a CPU,
with the same number of threads): the order of the data depends on seed and epoch alone, and the checkpoint holds
whatever else the next step depends on.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchtagi import data
from torchtagi.checkpoint import CheckpointError
from torchtagi.condition import CHUNK
from torchtagi.config import TrainConfig, check_device, configure
from torchtagi.evaluation import channels_last, predict, scores
from torchtagi.likelihood import HierarchicalClassification
from torchtagi.prior import match_prior, use_relu_prior
from torchtagi.runs import Row, Run, RunError
from torchtagi.tasks import find_task
from torchtagi.update import Update

__all__ = ["EpochEnd", "Step", "TrainConfig", "Training", "configure", "prior_network"]

CURVE_POINTS = 30  # how finely an epoch's training error is kept: enough to see its shape in a plot


@dataclass
class EpochSums:
    """What an unfinished epoch has added up; it goes into a checkpoint made in its middle."""

    batches: int = 0
    images: int = 0
    wrong: int = 0
    alpha: float = 0.0
    innovation: float = 0.0
    seconds: float = 0.0
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(images seen in this epoch, error in % on those since the point before)."""
    curve_images: int = 0
    curve_wrong: int = 0

    @property
    def error(self) -> float:
        return 100 * self.wrong / max(self.images, 1)

    def end_curve_point(self) -> None:
        if self.curve_images:
            self.curve.append((self.images, 100 * self.curve_wrong / self.curve_images))
        self.curve_images = self.curve_wrong = 0


@dataclass(frozen=True)
class Step:
    """After a batch. `error` is this epoch's so far, in %, on images not yet learned from in it."""

    epoch: int
    images: int
    of_images: int
    error: float
    alpha: float
    noise_std: float
    images_per_second: float


@dataclass(frozen=True)
class EpochEnd:
    """After an epoch: the row that went into metrics.jsonl."""

    row: Row


class Training:
    """A run under way: the network, and the place in the data up to which it has learned.

    It sets torch's number of threads and seeds torch's global generator, because results depend on both.
    """

    def __init__(self, config: TrainConfig, run: Run | None = None, sets: data.TrainTest | None = None) -> None:
        check_device(config.device)
        self.config, self.run = config, run
        sets = sets or data.load_train_test(config.task)
        torch.set_num_threads(config.threads)
        self.train = prepared(sets.train, config.samples, config.device)
        self.test = prepared(sets.test, config.test_samples, config.device)
        self.net = prior_network(config, self.train)
        self.likelihood = HierarchicalClassification(
            len(find_task(config.task).classes), config.noise_std, config.learn_noise
        ).to(config.device)
        self.posterior = Update(self.net, config.rule)
        self.epoch = 0
        self.sums = EpochSums()

    @classmethod
    def resume(cls, run: Run, config: TrainConfig | None = None, sets: data.TrainTest | None = None) -> Training:
        """Go on where `run` was saved, from the beginning if it was killed before its first checkpoint.

        `config` may ask for more epochs than before and for nothing else.
        """
        before = TrainConfig.from_json(run.config)
        config = config or before
        for name, value in dataclasses.asdict(before).items():
            asked = getattr(config, name)
            if asked != value and name != "epochs":
                raise RunError(f"{run.folder} was started with {name.replace('_', ' ')} {value}, not {asked}")
        run.clear_leftovers()
        training = cls(config, run, sets)
        if run.checkpoint.is_file():
            training.restore(run)
        if config.epochs < training.epoch:
            raise RunError(f"{run.folder} has seen {training.epoch} epochs already, more than {config.epochs}")
        run.keep_metrics(training.epoch)
        if config != before:
            training.run = Run(run.folder, {**run.config, "epochs": config.epochs})
            training.run.write_json("config.json", training.run.config)
        return training

    def restore(self, run: Run) -> None:
        position = run.restore(self.net, self.likelihood)
        try:
            self.epoch = int(position["epoch"])
            self.sums = EpochSums(**position["sums"])
            self.sums.curve = [(int(images), float(error)) for images, error in self.sums.curve]
            set_random_state(position["random"], self.config.device)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{run.checkpoint}: its position in the training cannot be read") from error

    def save(self) -> None:
        """Write a checkpoint of this very moment."""
        if self.run is None:
            raise RunError("this training has no run folder to save to")
        position = {
            "epoch": self.epoch,
            "sums": dataclasses.asdict(self.sums),
            "random": random_state(self.config.device),
        }
        self.run.save(self.net, self.likelihood, position)

    @property
    def done(self) -> bool:
        return self.epoch >= self.config.epochs

    def events(self) -> Iterator[Step | EpochEnd]:
        """Learn to the end; each event comes at a moment that can be saved."""
        while not self.done:
            yield from self.steps()
            yield self.finish_epoch()

    def steps(self) -> Iterator[Step]:
        config, sums = self.config, self.sums
        order = data.epoch_order(len(self.train), config.seed, self.epoch)
        every = math.ceil(len(order) / config.batch_size / CURVE_POINTS)
        self.net.train()
        self.likelihood.train()
        self.likelihood.noise_std = config.noise_in(self.epoch)
        for x, y in data.batches(self.train, config.batch_size, order=order[sums.batches * config.batch_size :]):
            start = time.perf_counter()
            wrong, report = self.learn(x, y)
            sums.seconds += time.perf_counter() - start
            sums.batches += 1
            sums.images += len(x)
            sums.wrong += wrong
            sums.alpha += report["alpha"]
            sums.innovation += report["innovation"]
            sums.curve_images += len(x)
            sums.curve_wrong += wrong
            if sums.batches % every == 0:
                sums.end_curve_point()
            yield Step(
                epoch=self.epoch + 1,
                images=sums.images,
                of_images=len(order),
                error=sums.error,
                alpha=report["alpha"],
                noise_std=self.noise_std,
                images_per_second=sums.images / sums.seconds,
            )

    def learn(self, x: Tensor, y: Tensor) -> tuple[int, dict[str, float]]:
        """One batch; returns how many of its labels were predicted wrongly before, and the update's mean report.

        The coherent rule conditions on a large batch in chunks (see `condition`), the others take it whole.
        """
        if self.config.augments_in(self.epoch):
            x = find_task(self.config.task).augment(x)
        chunk = CHUNK if self.config.rule == "coherent" else len(x)
        wrong, reports = 0, []
        for inputs, labels in zip(x.split(chunk), y.split(chunk), strict=True):
            z = self.net(inputs)
            with torch.no_grad():
                wrong += int((self.likelihood.log_probs(z).argmax(1) != labels).sum())
            try:
                self.likelihood(z, labels).backward()
                self.posterior.step()
            except FloatingPointError as error:
                place = f"epoch {self.epoch + 1}, batch {self.sums.batches + 1}"
                raise FloatingPointError(f"{place}: {error}") from error
            self.posterior.zero_grad()
            reports.append(self.posterior.reports[0])
        return wrong, {key: sum(report[key] for report in reports) / len(reports) for key in reports[0]}

    def finish_epoch(self) -> EpochEnd:
        sums = self.sums
        sums.end_curve_point()
        assert self.test.labels is not None
        row = {
            "epoch": self.epoch + 1,
            **scores(predict(self.net, self.likelihood, self.test.images), self.test.labels),
            "train_error": round(sums.error, 4),
            "noise_std": self.noise_std,
            "link_noise_std": math.sqrt(self.likelihood.predictive_noise_var.item()),
            "alpha": sums.alpha / sums.batches,
            "innovation": sums.innovation / sums.batches,
            "seconds": round(sums.seconds, 3),
            "images_per_second": round(sums.images / sums.seconds, 1),
            "train_curve": [[images, round(error, 3)] for images, error in sums.curve],
        }
        self.epoch += 1
        self.sums = EpochSums()
        if self.run is not None:
            self.run.add_metrics(row)
            self.save()
        return EpochEnd(row)

    @property
    def noise_std(self) -> float:
        """The noise that messages assume; predictions may have their own."""
        return math.sqrt(self.likelihood.learned_noise_var.item())


def prepared(images: data.ImageSet, limit: int | None, device: str) -> data.ImageSet:
    if limit is not None:
        images = images.subset(slice(limit))
    return images.to(device, torch.channels_last)


def prior_network(config: TrainConfig, train: data.ImageSet) -> torch.nn.Module:
    """The network before it has learned anything: seed and data say what it is, so no file has to keep it."""
    torch.manual_seed(config.seed)
    net = channels_last(find_task(config.task).network(config.network).build(), config.device)
    if config.relu_prior:
        use_relu_prior(net)
    if config.prior_inputs:
        first = data.epoch_order(len(train), config.seed, 0)[: config.prior_inputs]
        match_prior(net, train.images[first.to(train.images.device)])
    return net


def random_state(device: str) -> dict[str, str]:
    states = {"cpu": torch.get_rng_state()}
    if device.startswith("cuda"):
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: base64.b64encode(state.numpy().tobytes()).decode() for name, state in states.items()}


def set_random_state(states: dict[str, str], device: str) -> None:
    def decode(text: str) -> Tensor:
        return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)

    torch.set_rng_state(decode(states["cpu"]))
    if device.startswith("cuda"):
        torch.cuda.set_rng_state(decode(states["cuda"]), device)
