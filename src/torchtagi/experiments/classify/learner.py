"""What the training loop, the evaluation and the report know of a method: TAGI, or one of its rivals."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from torchtagi.experiments.runs.folder import Row, Run
from torchtagi.likelihoods import ClassPrediction


class Predictor(Protocol):
    """Class probabilities for preprocessed images (N, C, H, W)."""

    def predict(self, images: Tensor) -> ClassPrediction: ...


class Learner(Predictor, Protocol):
    """A network that learns from batches."""

    def start_epoch(self, epoch: int) -> None:
        """Called before the first batch of an epoch, counted from 0, and again if it is resumed in its middle."""

    def learn(self, x: Tensor, y: Tensor) -> tuple[int, dict[str, float]]:
        """Learn one batch; returns how many of its labels were predicted wrongly before, and a report of the
        step whose numbers the loop averages over the epoch. FloatingPointError if the numbers blow up."""

    def measures(self) -> dict[str, float]:
        """What else is worth knowing at this moment: part of an epoch's row."""

    def save(self, run: Run, position: Row) -> None:
        """Write the run's checkpoint: everything the next step depends on, and the loop's position."""

    def restore(self, run: Run) -> Row:
        """Become what the run's checkpoint holds; returns the position."""
