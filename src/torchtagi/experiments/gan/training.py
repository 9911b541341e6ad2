"""Training a GAN: the loop, what is kept of it, and going on where it stopped.

Used as `train.Training` is:

    run = Run.create(folder, config.as_json())
    training = GanTraining(config, run)
    for event in training.events():      # a GanStep after each batch, an EpochEnd after each epoch
        ...                              # stop whenever you like; training.save() keeps the place

and as exact: the order of the images depends on seed and epoch alone, latent points come from torch's global
generator, whose state is in the checkpoint, and looking at the game draws from generators of its own.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi.checkpoint import CheckpointError
from torchtagi.experiments import data
from torchtagi.experiments.gan import filmstrip
from torchtagi.experiments.gan.config import GanConfig
from torchtagi.experiments.gan.drawing import as_png, reference_latents, sample_sheet_latents, sheet
from torchtagi.experiments.gan.engine import Engine
from torchtagi.experiments.gan.game import StepReport
from torchtagi.experiments.gan.inference import InferenceEngine
from torchtagi.experiments.gan.judge import Judge, judge_from_run, quick_judge
from torchtagi.experiments.gan.latent import Latents
from torchtagi.experiments.gan.measuring import DRAWN, measure
from torchtagi.experiments.gan.rival import BackpropEngine
from torchtagi.experiments.gan.tasks import find_gan_task
from torchtagi.experiments.runs.config import check_device
from torchtagi.experiments.runs.folder import PLOTS, Row, Run, RunError
from torchtagi.experiments.runs.resumable import EpochEnd, Resumable, prepared


@dataclass
class GanSums:
    """What an unfinished epoch has added up; it goes into a checkpoint made in its middle."""

    batches: int = 0
    images: int = 0
    seconds: float = 0.0
    totals: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, report: StepReport) -> None:
        for name, value in dataclasses.asdict(report).items():
            if math.isfinite(value):
                self.totals[name] = self.totals.get(name, 0.0) + value
                self.counts[name] = self.counts.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        """Each quantity's mean over the batches that have it."""
        return {f"train_{name}": total / self.counts[name] for name, total in self.totals.items()}


@dataclass(frozen=True)
class GanStep:
    """After a batch."""

    epoch: int
    images: int
    of_images: int
    report: StepReport
    images_per_second: float


def build_engine(config: GanConfig) -> Engine:
    """The game of a configuration before anything is learned; seeds torch's global generator."""
    return InferenceEngine(config) if config.method == "tagi" else BackpropEngine(config)


class GanTraining(Resumable[GanConfig]):
    """A run under way: the game, and the place in the data up to which it was played.

    It sets torch's number of threads and seeds torch's global generator, because results depend on both.
    """

    def __init__(
        self,
        config: GanConfig,
        run: Run | None = None,
        sets: data.TrainTest | None = None,
        judge: Judge | None = None,
    ) -> None:
        check_device(config.device)
        self.config, self.run = config, run
        sets = sets or data.load_train_test(find_gan_task(config.task).data)
        torch.set_num_threads(config.threads)
        self.train = prepared(sets.train, config.samples, config.device)
        self.test = prepared(sets.test, config.test_samples, "cpu")
        self.judge = judge or find_judge(config, self.train)
        self.engine = build_engine(config)
        self.epoch = 0
        self.sums = GanSums()

    @staticmethod
    def read_config(content: Row) -> GanConfig:
        return GanConfig.from_json(content)

    @staticmethod
    def read_sums(content: dict[str, Any]) -> GanSums:
        return GanSums(**content)

    def load_checkpoint(self, run: Run) -> Row:
        for leftover in (run.folder / PLOTS).glob("**/.*.png.*"):
            leftover.unlink(missing_ok=True)
        return restore_game(run, self.engine)

    def write_checkpoint(self, run: Run, position: Row) -> None:
        pixels = self.train.preprocessing
        # the scale, so that images can be shown where the data are not
        position["pixels"] = {"mean": list(pixels.mean), "std": list(pixels.std)}
        position["averaged"] = 0 if self.engine.average is None else self.engine.average.count
        run.save(self.engine.players, self.engine.memory, position, **averaged_players(self.engine))

    def events(self) -> Iterator[GanStep | EpochEnd]:
        """Play to the end; each event comes at a moment that can be saved."""
        return super().events()

    def steps(self) -> Iterator[GanStep]:
        config, sums = self.config, self.sums
        order = data.epoch_order(len(self.train), config.seed, self.epoch)
        of_batches = -(-len(order) // config.batch_size)
        self.engine.begin_epoch(self.epoch)
        if self.run is not None and not self.epoch and not sums.batches:
            self.add_frame(0)
        rest = order[sums.batches * config.batch_size :]
        for x in data.batches(self.train.images, config.batch_size, order=rest):
            start = time.perf_counter()
            self.read_ahead(order)
            report = self.play(x)
            sums.seconds += time.perf_counter() - start
            sums.batches += 1
            sums.images += len(x)
            sums.add(report)
            frame = filmstrip.frame_after(sums.batches, of_batches)
            if self.run is not None and frame is not None:
                self.add_frame(frame)
            yield GanStep(self.epoch + 1, sums.images, len(order), report, sums.images / sums.seconds)

    def read_ahead(self, order: Tensor) -> None:
        """Where a block of real images begins, let Qnet give them classes."""
        grouping, place = self.engine.grouping, self.sums.batches
        if grouping is not None and grouping.begins_at(place):
            first = place * self.config.batch_size
            block = self.train.images[order[first : first + len(grouping.classes)]]
            self.engine.read_ahead(block.contiguous(memory_format=torch.channels_last))

    def play(self, x: Tensor) -> StepReport:
        try:
            report = self.engine.step(x.contiguous(memory_format=torch.channels_last), self.sums.batches)
        except FloatingPointError as error:
            place = f"epoch {self.epoch + 1}, batch {self.sums.batches + 1}"
            raise FloatingPointError(f"{place}: {error}") from error
        if self.engine.average is not None:
            self.engine.average.follow()
        return report

    def finish_epoch(self) -> EpochEnd:
        sums = self.sums
        row: Row = {
            "epoch": self.epoch + 1,
            **measure(self.engine, self.test, self.judge, min(DRAWN, len(self.test))),
            **sums.means(),
            **self.engine.noises(),
            "judge": None if self.judge is None else self.judge.name,
            "seconds": round(sums.seconds, 3),
            "images_per_second": round(sums.images / sums.seconds, 1),
        }
        self.epoch += 1
        self.sums = GanSums()
        if self.run is not None:
            page = sheet(self.pictures(sample_sheet_latents(self.engine.space)), 10)
            self.run.write(f"{filmstrip.SAMPLES}/epoch-{self.epoch:04d}.png", as_png(page))
            filmstrip.write_strip(self.run, self.epoch)
            self.run.add_metrics(row)
            self.save()
        return EpochEnd(row)

    def add_frame(self, number: int) -> None:
        assert self.run is not None
        filmstrip.add_frame(self.run, self.epoch, number, self.pictures(reference_latents(self.engine.space)))

    def pictures(self, latents: Latents) -> Tensor:
        """The images of these latent points as bytes."""
        return self.test.to_uint8(self.engine.draw(latents))


def find_judge(config: GanConfig, train: data.ImageSet) -> Judge | None:
    """The judge that the configuration names."""
    if config.judge is None:
        return None
    if not find_gan_task(config.task).has_digits:
        raise RunError(f"{config.task} has no digits for a judge to read")
    return quick_judge(train.to("cpu")) if config.judge == "quick" else judge_from_run(Run.open(config.judge))


def averaged_players(engine: Engine) -> dict[str, nn.Module]:
    """What a checkpoint holds beside players and memory."""
    return {} if engine.average is None else {"average": engine.average.net}


def restore_game(run: Run, engine: Engine) -> Row:
    """Let `engine` become what the run's checkpoint holds; returns the position."""
    position = run.restore(engine.players, engine.memory, **averaged_players(engine))
    if engine.average is not None:
        engine.average.count = run.averaged(position)
    return position


def open_engine(run: Run) -> tuple[Engine, data.Preprocessing]:
    """A run's game as it was last saved, on the CPU, ready to be looked at, and the scale of its images; disturbs
    nobody's randomness."""
    if not run.checkpoint.is_file():
        raise RunError(f"{run.folder} has no {run.checkpoint.name}: only its configuration and metrics were kept")
    with torch.random.fork_rng(devices=[]):
        engine = build_engine(dataclasses.replace(GanConfig.from_json(run.config), device="cpu"))
    position = restore_game(run, engine)
    try:
        pixels = data.Preprocessing(tuple(position["pixels"]["mean"]), tuple(position["pixels"]["std"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{run.checkpoint}: does not say the scale of its images") from error
    return engine, pixels
