"""Training a GAN: a configuration made into a fit (`runs.training`) that draws after each epoch.

A resumed run is the same to the bit: the order of the images depends on seed and epoch alone, latent points come
from torch's global generator, whose state is in the checkpoint, and evaluation draws from generators of its own.
"""

from typing import Any

import torch

from torchtagi import checkpoint
from torchtagi.experiments.gan import drawing
from torchtagi.experiments.gan.config import build_gan, restore_gan
from torchtagi.experiments.gan.evaluation import find_judge, measure
from torchtagi.experiments.runs.folder import Row, Run
from torchtagi.experiments.runs.training import EpochLearner, RunTraining
from torchtagi.fitting import epoch_order


class GanTraining(EpochLearner, RunTraining):
    """A run under way, and what learns in it."""

    def new_learner(self) -> Any:
        self.judge = None if self.config.judge is None else find_judge(self.config.judge, self.train)
        self.gan = build_gan(self.config)
        return self

    def measured(self, epoch: int) -> Row:
        return measure(self.gan, self.test, self.judge)

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
