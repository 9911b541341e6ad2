"""A run under way: a fit whose progress a run folder keeps, and going on where it stopped.

    run = Run.create(folder, config.as_json())
    training = Training(config, run)
    for event in training.events():      # a Step after each batch, an EpochEnd after each epoch
        ...                              # stop whenever you like; training.save() keeps the place

A run continued from any of its checkpoints ends with the same bits as one that was never interrupted (`fitting`).
"""

from abc import abstractmethod
from dataclasses import asdict, replace
from typing import Any, Self

import torch

from torchtagi import distributed
from torchtagi.checkpoint import CheckpointError
from torchtagi.distributed import Group
from torchtagi.experiments import data
from torchtagi.experiments.runs.config import RunConfig, check_device
from torchtagi.experiments.runs.folder import Row, Run, RunError
from torchtagi.fitting import Batches, Fit


class EpochLearner:
    """What learners of experiments share (`fitting.Learner`): they need no look at the data, and count epochs."""

    epochs = 0

    def get_ready(self, batches: Batches, epochs: int) -> None:
        pass

    def share(self, group: Group) -> None:
        raise RunError("only TAGI's classifiers learn on several processes")

    shard = share

    def end_epoch(self) -> None:
        self.epochs += 1

    def training_error(self, total: float, samples: int) -> float:
        """In %."""
        return 100 * total / max(samples, 1)


class RunTraining(Fit):
    """What the trainings of classifiers and GANs share."""

    def __init__(self, config: Any, run: Run | None = None, sets: data.TrainTest | None = None) -> None:
        """Sets torch's number of threads and seeds torch's global generator: results depend on both."""
        check_device(config.device)
        self.config, self.run = config, run
        sets = config.split(sets or data.load_train_test(config.data))
        torch.set_num_threads(config.threads)
        self.train, self.test = (half.to(config.device, torch.channels_last) for half in (sets.train, sets.test))
        targets = torch.arange(len(self.train)) if self.train.labels is None else self.train.labels
        batches = Batches((self.train.images, targets), config.batch_size, config.seed)
        group = distributed.everybody()
        super().__init__(self.new_learner(), batches, config.epochs, None, self.measured, group)

    @abstractmethod
    def new_learner(self) -> Any: ...

    @abstractmethod
    def measured(self, epoch: int) -> Row:
        """What an epoch's row says of the test set, if anything."""

    @abstractmethod
    def load_checkpoint(self, run: Run) -> Row:
        """Become what the run's checkpoint holds; returns what was saved with it."""

    @abstractmethod
    def write_checkpoint(self, run: Run, position: Row) -> None: ...

    @classmethod
    def resume(cls, run: Run, config: Any, sets: data.TrainTest | None = None) -> Self:
        """Go on where `run` was saved, from the beginning if it was killed before its first checkpoint.

        `config` may ask for more epochs than before, if it is open-ended, and for nothing else.
        """
        before: RunConfig = type(config).from_json(run.config)
        asked = asdict(config)
        for name, value in asdict(before).items():
            if asked[name] != value and not (name == "epochs" and before.open_ended):
                raise RunError(f"{run.folder} was started with {name.replace('_', ' ')} {value}, not {asked[name]}")
        run.clear_leftovers()
        training = cls(config, run, sets)
        if run.checkpoint.is_file():
            extra = training.load_checkpoint(run)
            try:
                training.go_to(extra["fit"])
            except (KeyError, TypeError, ValueError, RuntimeError) as error:
                raise CheckpointError(f"{run.checkpoint}: its position in the training cannot be read") from error
        if config.epochs < training.epoch:
            raise RunError(f"{run.folder} has seen {training.epoch} epochs already, more than {config.epochs}")
        run.keep_metrics(training.epoch)
        if config != before:
            training.run = replace(run, config={**run.config, "epochs": config.epochs})
            training.run.write_json("config.json", training.run.config)
        return training

    def save(self) -> None:
        """Write a checkpoint of this very moment."""
        if self.run is None:
            raise RunError("this training has no run folder to save to")
        self.write_checkpoint(self.run, self.position())

    @property
    def epoch(self) -> int:
        """How many whole epochs were learned."""
        return self.learner.epochs

    def keep(self, row: Row) -> None:
        if self.run is not None:
            self.run.add_metrics(row)
        if self.run is not None or self.sharded:
            self.save()
