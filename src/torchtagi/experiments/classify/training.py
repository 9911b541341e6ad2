"""A run of a classifier, TAGI's or a baseline's: what was asked for, made into a fit whose progress a folder keeps.

    run = Run.create(folder, config.as_json())
    training = Training(config, run)
    for event in training.events():      # a Step after each batch, an EpochEnd after each epoch
        ...                              # stop whenever you like; training.save() keeps the place

A run continued from any of its checkpoints ends with the same bits as one that was never interrupted (`fitting`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from torchtagi.checkpoint import CheckpointError
from torchtagi.experiments import data
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.runs.config import ClassifierConfig, check_device
from torchtagi.experiments.runs.folder import Row, Run, RunError
from torchtagi.fitting import Batches, Fit
from torchtagi.metrics import classification_scores


class Training(Fit):
    """A run under way. It sets torch's number of threads and seeds torch's global generator: results depend on
    both."""

    learner: Any

    def __init__(self, config: Any, run: Run | None = None, sets: data.TrainTest | None = None) -> None:
        check_device(config.device)
        self.config, self.run = config, run
        sets = config.split(sets or data.load_train_test(config.task))
        torch.set_num_threads(config.threads)
        self.train, self.test = (half.to(config.device, torch.channels_last) for half in (sets.train, sets.test))
        batches = Batches((self.train.images, self.train.labels), config.batch_size, config.seed)
        augment = find_task(config.task).augment if config.augment else None
        super().__init__(config.build(self.train), batches, config.epochs, augment, self.measured)

    @classmethod
    def resume(cls, run: Run, config: Any, sets: data.TrainTest | None = None) -> Training:
        """Go on where `run` was saved, from the beginning if it was killed before its first checkpoint.

        `config` may ask for more epochs than before, if it is open-ended, and for nothing else.
        """
        before: ClassifierConfig = type(config).from_json(run.config)
        asked = config.asdict()
        for name, value in before.asdict().items():
            if asked[name] != value and not (name == "epochs" and before.open_ended):
                raise RunError(f"{run.folder} was started with {name.replace('_', ' ')} {value}, not {asked[name]}")
        run.clear_leftovers()
        training = cls(config, run, sets)
        if run.checkpoint.is_file():
            training.restore()
        if config.epochs < training.epoch:
            raise RunError(f"{run.folder} has seen {training.epoch} epochs already, more than {config.epochs}")
        run.keep_metrics(training.epoch)
        if config != before:
            training.run = replace(run, config={**run.config, "epochs": config.epochs})
            training.run.write_json("config.json", training.run.config)
        return training

    def restore(self) -> None:
        assert self.run is not None
        extra = self.learner.restore(self.run.checkpoint)
        try:
            self.go_to(extra["fit"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{self.run.checkpoint}: its position in the training cannot be read") from error

    def save(self) -> None:
        """Write a checkpoint of this very moment."""
        if self.run is None:
            raise RunError("this training has no run folder to save to")
        self.learner.save(self.run.checkpoint, fit=self.position())

    @property
    def epoch(self) -> int:
        """How many whole epochs were learned."""
        return int(self.learner.epochs)

    def keep(self, row: Row) -> None:
        if self.run is not None:
            self.run.add_metrics(row)
            self.save()

    def measured(self, epoch: int) -> Row:
        """What an epoch's row says of the test set, if anything."""
        if epoch % self.config.measure_every and epoch < self.config.epochs:
            return {}
        assert self.test.labels is not None
        return classification_scores(self.learner.predict(self.test.images).probs, self.test.labels)
