"""Training a GAN: the loop, what is kept of it, and going on where it stopped.

    run = Run.create(folder, config.as_json())
    training = GanTraining(config, run)
    for event in training.events():      # a GanStep after each batch, an EpochEnd after each epoch
        ...                              # stop whenever you like; training.save() keeps the place

A resumed run is the same to the bit: the order of the images depends on seed and epoch alone, latent points come
from torch's global generator, whose state is in the checkpoint, and evaluation draws from generators of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchtagi.experiments import data
from torchtagi.experiments.gan import drawing
from torchtagi.experiments.gan.build import build_gan, restore_gan
from torchtagi.experiments.gan.config import GanConfig
from torchtagi.experiments.gan.evaluation import measure
from torchtagi.experiments.gan.judge import find_judge
from torchtagi.experiments.gan.latent import Latents
from torchtagi.experiments.gan.model import Report
from torchtagi.experiments.runs.config import check_device
from torchtagi.experiments.runs.folder import PLOTS, Row, Run
from torchtagi.experiments.runs.resumable import EpochEnd, Resumable, prepared


@dataclass
class GanSums:
    """What an unfinished epoch has added up; it goes into a checkpoint made in its middle."""

    batches: int = 0
    images: int = 0
    seconds: float = 0.0
    totals: Report = field(default_factory=dict)

    def add(self, images: int, seconds: float, report: Report) -> None:
        self.batches += 1
        self.images += images
        self.seconds += seconds
        for name, value in report.items():
            self.totals[name] = self.totals.get(name, 0.0) + value


@dataclass(frozen=True)
class GanStep:
    """After a batch."""

    epoch: int
    images: int
    of_images: int
    report: Report
    images_per_second: float


class GanTraining(Resumable[GanConfig]):
    """A run under way: the GAN, and the place in the data up to which it has learned.

    It sets torch's number of threads and seeds torch's global generator, because results depend on both.
    """

    def __init__(self, config: GanConfig, run: Run | None = None, sets: data.TrainTest | None = None) -> None:
        check_device(config.device)
        self.config, self.run = config, run
        sets = sets or data.load_train_test(config.kind.data)
        torch.set_num_threads(config.threads)
        self.train = prepared(sets.train, config.samples, config.device)
        self.test = prepared(sets.test, config.test_samples, "cpu")
        self.judge = None if config.judge is None else find_judge(config.judge, self.train)
        self.gan = build_gan(config)
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
        return restore_gan(run, self.gan)

    def write_checkpoint(self, run: Run, position: Row) -> None:
        pixels = self.train.preprocessing
        # the scale, so that images can be shown where the data are not
        position["pixels"] = {"mean": list(pixels.mean), "std": list(pixels.std)}
        position["averaged"] = 0 if self.gan.average is None else self.gan.average.count
        run.save(self.gan.networks, self.gan.state, position)

    def steps(self) -> Iterator[GanStep]:
        config, sums = self.config, self.sums
        order = data.epoch_order(len(self.train), config.seed, self.epoch)
        of_batches = -(-len(order) // config.batch_size)
        self.gan.begin_epoch(self.epoch)
        if not self.epoch and not sums.batches:
            self.add_frame(0)
        rest = order[sums.batches * config.batch_size :]
        for x in data.batches(self.train.images, config.batch_size, order=rest):
            start = time.perf_counter()
            self.assign_pseudo_labels(order)
            report = self.learn(x)
            sums.add(len(x), time.perf_counter() - start, report)
            frame = drawing.frame_after(sums.batches, of_batches)
            if frame is not None:
                self.add_frame(frame)
            yield GanStep(self.epoch + 1, sums.images, len(order), report, sums.images / sums.seconds)

    def assign_pseudo_labels(self, order: Tensor) -> None:
        """Where a block of real images begins."""
        labels, batch = self.gan.pseudo_labels, self.sums.batches
        if labels is not None and labels.begins_at(batch):
            first = batch * self.config.batch_size
            block = self.train.images[order[first : first + len(labels.classes)]]
            self.gan.assign_pseudo_labels(block.contiguous(memory_format=torch.channels_last))

    def learn(self, x: Tensor) -> Report:
        try:
            report = self.gan.step(x.contiguous(memory_format=torch.channels_last), self.sums.batches)
        except FloatingPointError as error:
            place = f"epoch {self.epoch + 1}, batch {self.sums.batches + 1}"
            raise FloatingPointError(f"{place}: {error}") from error
        if self.gan.average is not None:
            self.gan.average.follow()
        return report

    def finish_epoch(self) -> EpochEnd:
        sums = self.sums
        row: Row = {
            "epoch": self.epoch + 1,
            **measure(self.gan, self.test, self.judge),
            **{f"train_{name}": total / sums.batches for name, total in sums.totals.items()},
            "judge": None if self.judge is None else self.judge.name,
            "seconds": round(sums.seconds, 3),
            "images_per_second": round(sums.images / sums.seconds, 1),
        }
        self.epoch += 1
        self.sums = GanSums()
        if self.run is not None:
            samples = drawing.sheet(self.pictures(drawing.sample_sheet_latents(self.gan.space)), 10)
            self.run.write(f"{drawing.SAMPLES}/epoch-{self.epoch:04d}.png", drawing.as_png(samples))
            drawing.write_strip(self.run, self.epoch)
            self.run.add_metrics(row)
            self.save()
        return EpochEnd(row)

    def add_frame(self, number: int) -> None:
        if self.run is not None:
            images = self.pictures(drawing.reference_latents(self.gan.space))
            drawing.add_frame(self.run, self.epoch, number, images)

    def pictures(self, latents: Latents) -> Tensor:
        """The images of these latent points as bytes."""
        return self.test.to_uint8(self.gan.draw(latents))
