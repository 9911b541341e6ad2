"""Training a GAN: a configuration made into a fit (`runs.training`) that draws after each epoch.

A resumed run is the same to the bit: the order of the images depends on seed and epoch alone, latent points come
from torch's global generator, whose state is in the checkpoint, and evaluation draws from generators of its own.
"""

from typing import Any

import torch

from torchtagi import checkpoint
from torchtagi.experiments import data
from torchtagi.experiments.gan import drawing
from torchtagi.experiments.gan.config import GanConfig, build_gan, restore_gan
from torchtagi.experiments.gan.evaluation import find_judge, measure
from torchtagi.experiments.runs.config import check_device
from torchtagi.experiments.runs.folder import Row, Run
from torchtagi.experiments.runs.training import EpochLearner, RunTraining
from torchtagi.fitting import Batches, epoch_order


class GanTraining(EpochLearner, RunTraining):
    """A run under way, and what learns in it. It sets torch's number of threads and seeds torch's global generator,
    because results depend on both."""

    def __init__(self, config: GanConfig, run: Run | None = None, sets: data.TrainTest | None = None) -> None:
        check_device(config.device)
        self.config, self.run = config, run
        sets = sets or data.load_train_test(config.data)
        torch.set_num_threads(config.threads)
        self.train = sets.train.subset(slice(config.samples)).to(config.device, torch.channels_last)
        self.test = sets.test.subset(slice(config.test_samples)).to("cpu", torch.channels_last)
        self.judge = None if config.judge is None else find_judge(config.judge, self.train)
        self.gan = build_gan(config)
        rows = torch.arange(len(self.train))
        super().__init__(self, Batches((self.train.images, rows), config.batch_size, config.seed), config.epochs)
        self.validate = lambda epoch: measure(self.gan, self.test, self.judge)

    def load_checkpoint(self, run: Run) -> Row:
        extra = restore_gan(run, self.gan)
        self.epochs = int(extra["epochs"])
        return extra

    def write_checkpoint(self, run: Run, position: Row) -> None:
        pixels = self.train.preprocessing
        extra = {
            "fit": position,
            "epochs": self.epochs,
            "averaged": 0 if self.gan.average is None else self.gan.average.count,
            # the scale, so that images can be shown where the data are not
            "pixels": {"mean": list(pixels.mean), "std": list(pixels.std)},
        }
        checkpoint.save(run.checkpoint, self.gan.networks, self.gan.state, extra)

    # ---- as a learner (`fitting`) ---------------------------------------------------------------------------

    def start_epoch(self, epoch: int, left: int) -> bool:
        self.gan.begin_epoch(epoch)
        return False

    def learn(self, x: Any, y: Any) -> tuple[float, Row]:
        """The errors are the codes that Qnet read wrongly."""
        batch = self.sums.batches
        labels = self.gan.pseudo_labels
        if labels is not None and labels.begins_at(batch):
            first = batch * self.config.batch_size
            order = epoch_order(len(self.train), self.config.seed, self.epochs)
            block = self.train.images[order[first : first + len(labels.classes)]]
            self.gan.assign_pseudo_labels(block.contiguous(memory_format=torch.channels_last))
        report = self.gan.step(x.contiguous(memory_format=torch.channels_last), batch)
        if self.gan.average is not None:
            self.gan.average.follow()
        return report.get("code_error", 0.0) * len(x), {f"train_{name}": value for name, value in report.items()}

    def measures(self) -> Row:
        return {"judge": None if self.judge is None else self.judge.name}

    def keep(self, row: Row) -> None:
        if self.run is not None:
            images = self.gan.draw(drawing.sample_sheet_latents(self.gan.space))
            drawing.draw_epoch(self.run, self.epochs, self.test.to_uint8(images))
        super().keep(row)
