"""Going through data in epochs: any learner, any number of epochs, and going on where it stopped.

    fit = Fit(learner, Batches((x, y), 16, seed=0), epochs=10)
    for event in fit.events():           # a Step after each batch, an EpochEnd after each epoch
        ...                              # stop whenever you like: fit.position() is the place to go on from

A fit continued from any position ends with the same bits as one that was never interrupted (on a CPU, with the same
number of threads): the order of tensors and data sets depends on seed and epoch alone, that of a `DataLoader` on
torch's generator, whose state is part of the position.

Processes that learn together (`distributed`) take turns in that order: of each step's samples the first ones are
the first process's, and so on. The position counts the samples of all, so that a fit may go on with more processes
or fewer. What a process draws at random depends on seed, epoch, position and rank.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from torchtagi import distributed
from torchtagi.checks import as_numbers, plain_number
from torchtagi.gaussian import Gaussian, cat

CURVE_POINTS = 30  # how finely an epoch's training error is kept: enough to see its shape in a plot

KEPT = -2  # the order by which samples are kept back, among those of the epochs

SAVE_SECONDS = 300.0  # no more than this is lost if a fit that writes checkpoints is killed

Row = dict[str, Any]
Augment = Callable[[Any], Any]


class Learner(Protocol):
    """What learns from batches: a model of this library, or a baseline it is compared with."""

    epochs: int
    """How many it has learned."""

    def get_ready(self, batches: Batches, epochs: int) -> None:
        """Called before the first of so many epochs of a fit, to look at the data."""

    def start_epoch(self, epoch: int, left: int) -> bool:
        """Called before the first batch of an epoch, counted from 0, and again if it is resumed in its middle;
        `left` are those to come, this one included. Returns whether its inputs are to be augmented."""

    def end_epoch(self) -> None:
        """Called after the last batch."""

    def share(self, group: distributed.Group) -> None:
        """Become what the first process's learner is; called before it learns with others."""

    def shard(self, group: distributed.Group) -> None:
        """Keep a part of the weights only."""

    def learn(self, x: Any, y: Any) -> tuple[float, Row]:
        """Learn one batch; returns the sum of its errors before it was learned, and numbers that are averaged over
        the epoch. FloatingPointError if the numbers blow up. Called with weights, too, if the data have some."""

    def training_error(self, total: float, samples: int) -> float:
        """A mean error from a sum of errors."""

    def measures(self) -> Row:
        """What else is worth knowing at this moment: part of an epoch's row."""


class Batches:
    """Data in batches: `(x, y)` or `(x, y, weights)`, a `Dataset` of such samples, or a `DataLoader` whose own
    batches are taken."""

    def __init__(self, source: Any, batch_size: int, seed: int) -> None:
        batch_size, seed = plain_number(batch_size), plain_number(seed)
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
        if not isinstance(seed, int):
            raise TypeError(f"seed must be a whole number, got {seed!r}")
        self.source, self.batch_size, self.seed = source, batch_size, seed
        self.samples: int | None = None
        self.kept_back, self.late = 0, 1
        self.rank, self.size = 0, 1  # of the processes that share the data
        if is_columns(source):
            sizes = [len(part) for part in source]
            if len(set(sizes)) > 1 or not sizes[0]:
                names = " and ".join(("x", "y", "weights")[: len(sizes)])
                raise ValueError(
                    f"{names} must have as many entries, and at least one; got {' and '.join(map(str, sizes))}"
                )
            self.samples = sizes[0]
        elif isinstance(source, DataLoader):
            sampler = source.sampler if source.batch_sampler is not None else None
            self.samples = None if isinstance(source.dataset, IterableDataset) else sized(sampler or source.dataset)
        elif isinstance(source, IterableDataset):
            self.source = DataLoader(source, batch_size)
        elif isinstance(source, Dataset) or (hasattr(source, "__getitem__") and not is_table(source)):
            if isinstance(source, list | tuple) and source:
                parts_of(source[0])
            self.samples = sized(source)
            if not self.samples:
                raise ValueError("the data set is empty")
        else:
            raise TypeError(
                f"data must be a pair (x, y), a Dataset or a DataLoader of such pairs, got {type(source).__name__}"
            )

    def first(self, count: int) -> tuple[Any, ...]:
        """The first inputs and targets that the first epoch shows, without disturbing anybody's order; and their
        weights, if there are some."""
        own = getattr(self.source, "generator", None)
        states = torch.get_rng_state(), None if own is None else own.get_state()
        shown: list[tuple[Any, ...]] = []
        for batch in self.epoch(0, shared=False):
            shown.append(batch)
            if sum(len(x) for x, *_ in shown) >= count:
                break
        torch.set_rng_state(states[0])
        if own is not None:
            own.set_state(states[1])
        if not shown:
            raise ValueError("the data are empty: no batch came")
        inputs, *others = map(list, zip(*shown, strict=True))
        return concatenated(inputs)[:count], *(joined(parts)[:count] for parts in others)

    def keep_back(self, share: float, least: int, late: int = 1) -> None:
        """Let all epochs but the last `late` do without a share of the samples, drawn by the seed; these end with
        them. Where there would be fewer than `least`, or samples cannot be chosen, there are none."""
        choose = self.samples is not None and not isinstance(self.source, DataLoader)
        count = int(share * self.samples) if choose and self.samples is not None else 0
        self.kept_back, self.late = count if count >= least else 0, late

    def kept(self, start: int, count: int) -> tuple[Any, ...]:
        """Some of the samples that were kept back, starting again after the last of them: this process's part."""
        rows = self.kept_rows()
        return self.rows_of(self.own(rows[torch.arange(start, start + count) % len(rows)]))

    def own(self, rows: Tensor) -> Tensor:
        """This process's part of a step's samples, one of almost equal ones."""
        return rows[len(rows) * self.rank // self.size : len(rows) * (self.rank + 1) // self.size]

    @property
    def step_size(self) -> int:
        """How many samples all processes take at a time."""
        return self.batch_size * self.size

    def kept_rows(self) -> Tensor:
        assert self.samples is not None
        return epoch_order(self.samples, self.seed, KEPT)[: self.kept_back]

    def length(self, whole: bool) -> int | None:
        """How many samples an epoch shows, with those kept back or without."""
        return None if self.samples is None else self.samples - (0 if whole else self.kept_back)

    def rows_of(self, rows: Tensor) -> tuple[Any, ...]:
        if is_columns(self.source):
            return tuple(taken(part, rows) for part in self.source)
        if not len(rows):  # as another process may have some
            return tuple(part[:0] for part in self.rows_of(torch.zeros(1, dtype=torch.long)))
        return parts_of(default_collate([self.source[row] for row in rows.tolist()]))

    def divide(self, group: distributed.Group) -> None:
        """Let this process have its part of the data, and the others theirs."""
        loader = self.source if isinstance(self.source, DataLoader) else None
        plain = loader is not None and type(loader.batch_sampler) in (BatchSampler, type(None))
        if loader is not None and plain and type(loader.sampler) in (RandomSampler, SequentialSampler):
            raise ValueError(
                "every process would learn the whole DataLoader: give it a DistributedSampler, or give fit the "
                "data set itself, which it divides among the processes"
            )
        self.rank, self.size = group.rank, group.size
        if loader is not None and self.samples is not None:
            self.samples = int(group.sums(self.samples)[0])

    def epoch(
        self, epoch: int, samples: int = 0, batches: int = 0, whole: bool = True, shared: bool = True
    ) -> Iterator[tuple[Any, ...]]:
        """The batches of an epoch, counted from 0, but for those that were seen: so many samples, or of a
        DataLoader so many batches. Where processes share the data, this one's part of each. A single sample that
        would be left over joins the last batch, because a batch norm finds no spread in it."""
        if isinstance(self.source, DataLoader):
            if hasattr(self.source.sampler, "set_epoch"):
                self.source.sampler.set_epoch(epoch)
            for number, batch in enumerate(self.source):
                if number >= batches:
                    yield parts_of(batch)
            return
        assert self.samples is not None
        order = epoch_order(self.samples, self.seed, epoch)
        if self.kept_back:
            kept = self.kept_rows()
            order = torch.cat([order[~torch.isin(order, kept)], *([kept] if whole else [])])
        size = self.step_size if shared else self.batch_size
        for rows in order[samples:].split(sizes_of_batches(len(order) - samples, size)):
            yield self.rows_of(self.own(rows) if shared else rows)


def sizes_of_batches(samples: int, size: int) -> list[int]:
    """So many samples in batches of `size`, and what is left over; a single one only where there is no other."""
    whole, left = divmod(samples, size)
    if whole and left == 1:
        return [*[size] * (whole - 1), size + 1]
    return [*[size] * whole, *([left] if left else [])]


def sized(source: Any) -> int | None:
    try:
        return len(source)
    except TypeError:
        return None


@contextmanager
def held_interrupt() -> Iterator[Callable[[], None]]:
    """Let Ctrl-C wait for a moment that can be kept; a second one does not wait. Yields what raises it there.
    Nothing is done where somebody else sees to interrupts."""
    came = False

    def hold(number: int, frame: Any) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    def release() -> None:
        if came:
            raise KeyboardInterrupt

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield release
        return
    signal.signal(signal.SIGINT, hold)
    try:
        yield release
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_table(data: Any) -> bool:
    """Whether it is one table, or no data at all, where inputs and targets are needed."""
    return isinstance(data, str | bytes | dict | Tensor | np.ndarray) or hasattr(data, "to_numpy")


def is_columns(data: Any) -> bool:
    """Whether it is inputs and targets, and maybe weights, rather than a data set of samples."""
    return isinstance(data, tuple | list) and (len(data) == 2 or (len(data) == 3 and isinstance(data, tuple)))


def parts_of(batch: Any) -> tuple[Any, ...]:
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise TypeError(
            "each batch or sample must be a pair of inputs and targets, or a triple with weights; got "
            f"{type(batch).__name__}{size}"
        )
    return tuple(batch)


def taken(values: Any, rows: Tensor) -> Any:
    """Rows of a tensor or a Gaussian, an array or a list."""
    if isinstance(values, Tensor):
        return values[rows.to(values.device)]
    if isinstance(values, list | tuple):
        return [values[row] for row in rows.tolist()]
    return values[rows.numpy() if type(values).__module__ == "numpy" else rows]


def everything(data: Any) -> tuple[Any, Any]:
    """All inputs and all targets of what a fit would take."""
    if is_columns(data):
        return data[0], data[1]
    parts = list(Batches(data, 200, 0).epoch(0))
    return concatenated([x for x, *_ in parts]), joined([y for _, y, *_ in parts])


def without_target(y: Any) -> int:
    """How many samples have none: all that they could have are NaN."""
    try:
        numbers = as_numbers("y", y)
    except TypeError:  # names of classes
        return 0
    if not numbers.is_floating_point():
        return 0
    missing = torch.isnan(numbers)
    return int((missing.flatten(1).all(1) if missing.ndim > 1 else missing).sum())


def joined(targets: list[Any]) -> Any:
    """Targets of several batches as one."""
    if isinstance(targets[0], Tensor):
        return torch.cat(targets)
    return [entry for part in targets for entry in part]


def concatenated(parts: list[Any]) -> Any:
    return cat(parts) if isinstance(parts[0], Gaussian) else torch.cat([torch.as_tensor(part) for part in parts])


@lru_cache(maxsize=2)
def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """A permutation that depends on `(seed, epoch)` alone. The pair is hashed, because neighbouring seeds and
    epochs must not share orders, as `seed + epoch` would."""
    return torch.randperm(samples, generator=torch.Generator().manual_seed(hashed(seed, epoch)))


def hashed(*numbers: int) -> int:
    """A seed."""
    digest = hashlib.blake2b(":".join(map(str, numbers)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def padded(batches: Iterator[tuple[Any, ...]], group: distributed.Group) -> Iterator[tuple[Any, ...]]:
    """A loader's batches, and empty ones until the other processes' loaders have ended, too."""
    batch: tuple[Any, ...] | None = None
    for following in itertools.chain(batches, itertools.repeat(None)):
        if not group.sums(following is not None)[0]:
            return
        if following is None and batch is None:
            raise ValueError(f"rank {group.rank}: no batch came, where other processes have some")
        batch = tuple(part[:0] for part in batch or ()) if following is None else following
        yield batch


@dataclass
class EpochSums:
    """What an unfinished epoch has added up; part of a position in its middle."""

    batches: int = 0
    samples: int = 0
    missing: int = 0
    """Samples without any target, which make no error."""
    errors: float = 0.0
    seconds: float = 0.0
    reports: dict[str, float] = field(default_factory=dict)
    """The sums of the steps' reports."""
    unreported: dict[str, int] = field(default_factory=dict)
    """Of how many steps a report was NaN: nothing was observed in them."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    """(samples seen in this epoch, error on those since the point before)."""
    curve_samples: int = 0
    curve_missing: int = 0
    curve_errors: float = 0.0


@dataclass(frozen=True)
class Step:
    """After a batch. `error` is this epoch's so far, on samples not yet learned from in it."""

    epoch: int
    new_samples: int
    samples: int
    of_samples: int | None
    error: float
    report: Row
    samples_per_second: float
    save_due: bool = False
    """Whether the last checkpoint is long ago."""


@dataclass(frozen=True)
class EpochEnd:
    """After an epoch: its row of the history."""

    row: Row


class Fit:
    """A learner going through data for so many more epochs."""

    def __init__(
        self,
        learner: Learner,
        batches: Batches,
        epochs: int,
        augment: Augment | None = None,
        validate: Callable[[int], Row] | None = None,
        group: distributed.Group | None = None,
        shard: bool = False,
    ) -> None:
        epochs = plain_number(epochs)
        if not isinstance(epochs, int) or epochs < 1:
            raise ValueError(f"epochs must be a whole number of at least 1, got {epochs!r}")
        if shard and group is None:
            raise ValueError("weights are sharded among several processes: start them with torchrun")
        if group is not None:
            batches.divide(group)
        learner.get_ready(batches, epochs)
        self.group, self.sharded, self.saved = group, shard, time.monotonic()
        self.signals: list[int] = []
        """Those that ask this process to stop."""
        self.asked_to_stop = False
        """Whether some process was, as all know."""
        self.learner, self.batches, self.augment, self.validate = learner, batches, augment, validate
        self.last = learner.epochs + epochs
        self.sums = EpochSums()
        self.torn = False
        """Whether a step or the end of an epoch is under way: no position to go on from."""
        self.order_state = torch.get_rng_state()
        """torch's generator when this epoch began: a DataLoader draws its order from it."""

    @property
    def done(self) -> bool:
        return self.learner.epochs >= self.last

    @property
    def stopping(self) -> bool:
        """Whether to stop after this event: all processes at the same."""
        return bool(self.signals) if self.group is None else self.asked_to_stop

    @property
    def samples_left(self) -> int | None:
        """From the beginning of this epoch on."""
        lengths = [self.batches.length(self.is_whole(epoch)) for epoch in range(self.learner.epochs, self.last)]
        return None if None in lengths else sum(length or 0 for length in lengths)

    def is_whole(self, epoch: int) -> bool:
        """Whether this epoch shows the samples that others keep back."""
        return self.last - epoch <= self.batches.late

    def events(self) -> Iterator[Step | EpochEnd]:
        """Go on to the end; each event comes at a moment whose position can be kept."""
        learner, group = self.learner, self.group
        if group is not None:
            self.start_together(group)
            if self.sharded:
                learner.shard(group)
        while not self.done:
            sums, epoch = self.sums, learner.epochs
            augment = self.augment if learner.start_epoch(epoch, self.last - epoch) else None
            for x, *observed in self.batches_left():
                start = time.perf_counter()
                with self.located():
                    inputs = x if augment is None else self.varied(x, augment)
                    self.torn = True
                    errors, report = learner.learn(inputs, *observed)
                    samples, missing, errors, save_due = self.agreed(len(x), without_target(observed[0]), errors)
                self.add(samples, missing, errors, report, time.perf_counter() - start)
                self.torn = False
                error_so_far = learner.training_error(sums.errors, sums.samples - sums.missing)
                rate = sums.samples / sums.seconds
                of_samples = self.batches.length(self.is_whole(epoch))
                yield Step(epoch + 1, samples, sums.samples, of_samples, error_so_far, report, rate, save_due)
            yield self.finish_epoch()

    # ---- with other processes ------------------------------------------------------------------------------

    def start_together(self, group: distributed.Group) -> None:
        """Start from the very state and place of the first process."""
        source = self.batches.source
        few = str(list(source[1][: self.batches.batch_size])) if is_columns(source) else ""
        plans = group.objects((self.batches.samples, self.batches.batch_size, few))
        if len(set(plans)) > 1:
            sizes = [f"{samples} and {size}" for samples, size, _ in plans]
            told = (
                f"samples and batch_size are {', '.join(sizes)}" if len(set(sizes)) > 1 else "first targets differ"
            )
            raise ValueError(
                "all processes must be given the same data, which fit divides among them, and the same batch_size; "
                f"their {told}"
            )
        self.learner.share(group)
        position = group.of_first(self.position)
        self.go_to(position)
        self.last = int(position["last"])

    @contextmanager
    def located(self) -> Iterator[None]:
        """What goes wrong here is told with its place."""
        where = f"epoch {self.learner.epochs + 1}, batch {self.sums.batches + 1}"
        try:
            with distributed.joined(self.group):
                yield
        except (FloatingPointError, TypeError, ValueError) as error:
            if self.group is not None:
                if isinstance(error, FloatingPointError) and not self.group.first:  # as in all processes
                    raise distributed.ElsewhereError(self.group.stopped_by(0)) from None
                where = f"rank {self.group.rank}, {where}"
            raise type(error)(f"{where}: {error}") from error
        except RuntimeError as error:
            if self.group is None:
                raise
            raise self.group.explained(error) from None

    def agreed(self, samples: int, missing: int, errors: float) -> tuple[int, int, float, bool]:
        """The samples and errors of all processes, and whether to save. All stop if one is asked to."""
        save_due = time.monotonic() - self.saved > SAVE_SECONDS
        if self.group is not None:
            due = self.group.first and save_due
            sums = self.group.sums(samples, missing, errors, due, len(self.signals))
            samples, missing, errors, save_due = int(sums[0]), int(sums[1]), sums[2], sums[3] > 0
            self.asked_to_stop = sums[4] > 0
        if save_due:
            self.saved = time.monotonic()
        return samples, missing, errors, save_due

    def varied(self, x: Any, augment: Augment) -> Any:
        """Inputs augmented; of several processes each draws what no other one draws."""
        if self.group is None:
            return augment(x)
        now = torch.get_rng_state()
        place = self.learner.epochs, self.sums.samples, self.group.rank
        torch.manual_seed(hashed(self.batches.seed, *place))
        try:
            return augment(x) if len(x) else x
        finally:
            torch.set_rng_state(now)

    def add(self, samples: int, missing: int, errors: float, report: Row, seconds: float) -> None:
        """Add a batch to the sums of its epoch."""
        sums = self.sums
        sums.batches += 1
        sums.samples += samples
        sums.missing += missing
        sums.errors += errors
        sums.seconds += seconds
        sums.curve_samples += samples
        sums.curve_missing += missing
        sums.curve_errors += errors
        for name, value in report.items():
            unknown = math.isnan(value)
            sums.reports[name] = sums.reports.get(name, 0.0) + (0.0 if unknown else value)
            sums.unreported[name] = sums.unreported.get(name, 0) + unknown
        every = math.ceil((self.batches.samples or 2**20) / self.batches.step_size / CURVE_POINTS)
        if sums.batches % every == 0:
            self.end_curve_point()

    def keep(self, row: Row) -> None:
        """Called at the end of each epoch, at a moment whose position can be kept."""

    def batches_left(self) -> Iterator[tuple[Any, ...]]:
        now = torch.get_rng_state()
        if self.sums.batches:
            torch.set_rng_state(self.order_state)
        else:
            self.order_state = now
        epoch = self.learner.epochs
        left = self.batches.epoch(epoch, self.sums.samples, self.sums.batches, self.is_whole(epoch))
        if self.group is not None and isinstance(self.batches.source, DataLoader):
            left = padded(left, self.group)
        first = next(left, None)
        if self.sums.batches:
            torch.set_rng_state(now)  # what was drawn to find the place again was drawn before
        if first is None:
            if not self.sums.batches:
                raise ValueError("the data are empty: no batch came")
            return
        yield first
        yield from left

    def end_curve_point(self) -> None:
        sums = self.sums
        if sums.curve_samples > sums.curve_missing:
            error = self.learner.training_error(sums.curve_errors, sums.curve_samples - sums.curve_missing)
            sums.curve.append((sums.samples, round(error, 3)))
        sums.curve_samples, sums.curve_missing, sums.curve_errors = 0, 0, 0.0

    def mean_report(self, name: str) -> float:
        """Over the steps in which something was observed; NaN if there was none."""
        steps = self.sums.batches - self.sums.unreported.get(name, 0)
        return self.sums.reports[name] / steps if steps else math.nan

    def finish_epoch(self) -> EpochEnd:
        sums, learner = self.sums, self.learner
        self.end_curve_point()
        self.torn = True
        learner.end_epoch()
        with distributed.joined(self.group):
            measured = self.validate(learner.epochs) if self.validate is not None else {}
        row = {
            "epoch": learner.epochs,
            **measured,
            "train_error": round(learner.training_error(sums.errors, sums.samples - sums.missing), 4),
            **learner.measures(),
            **{name: self.mean_report(name) for name in sums.reports},
            "seconds": round(sums.seconds, 3),
            "samples_per_second": round(sums.samples / sums.seconds, 1),
            "train_curve": [list(point) for point in sums.curve],
        }
        self.sums, self.torn = EpochSums(), False
        if self.group is not None:
            self.asked_to_stop = self.group.sums(len(self.signals))[0] > 0
        self.keep(row)
        self.saved = time.monotonic()
        return EpochEnd(row)

    # ---- the place to go on from, as JSON -----------------------------------------------------------------

    def position(self) -> Row:
        return {
            "last": self.last,
            "seed": self.batches.seed,
            "sums": asdict(self.sums),
            "order_state": encoded(self.order_state),
            "random": random_states(),
        }

    def go_to(self, position: Row) -> None:
        """Go on from there; the learner must be what it was then. Raises what a malformed position trips over."""
        sums = EpochSums(**position["sums"])
        sums.curve = [(int(samples), float(error)) for samples, error in sums.curve]
        self.order_state = decoded(position["order_state"])
        self.batches.seed = int(position["seed"])
        set_random_states(position["random"])
        self.sums = sums


def encoded(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def decoded(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


def random_states() -> dict[str, str]:
    """Of torch's global generators."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states |= {f"cuda:{n}": torch.cuda.get_rng_state(n) for n in range(torch.cuda.device_count())}
    return {name: encoded(state) for name, state in states.items()}


def set_random_states(states: dict[str, str]) -> None:
    torch.set_rng_state(decoded(states["cpu"]))
    for name, text in states.items():
        if name != "cpu" and torch.cuda.is_available():
            torch.cuda.set_rng_state(decoded(text), name)
