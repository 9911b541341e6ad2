"""Training a classifier, TAGI's or a baseline's: a configuration made into a fit (`runs.training`)."""

from typing import Any

import torch

from torchtagi import distributed
from torchtagi.experiments import data
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.runs.config import check_device
from torchtagi.experiments.runs.folder import Row, Run
from torchtagi.experiments.runs.training import RunTraining
from torchtagi.fitting import Batches
from torchtagi.metrics import classification_scores

MEASURE_SHARE = 5  # the test set is predicted when a fifth as many images have been learned


class Training(RunTraining):
    """It sets torch's number of threads and seeds torch's global generator: results depend on both."""

    learner: Any

    def __init__(self, config: Any, run: Run | None = None, sets: data.TrainTest | None = None) -> None:
        check_device(config.device)
        self.config, self.run = config, run
        sets = config.split(sets or data.load_train_test(config.task))
        torch.set_num_threads(config.threads)
        self.train, self.test = (half.to(config.device, torch.channels_last) for half in (sets.train, sets.test))
        batches = Batches((self.train.images, self.train.labels), config.batch_size, config.seed)
        augment = find_task(config.task).augment if config.augment else None
        group = distributed.everybody()
        super().__init__(config.build(self.train), batches, config.epochs, augment, self.measured, group)

    def load_checkpoint(self, run: Run) -> Row:
        extra: Row = self.learner.restore(run.checkpoint)
        return extra

    def write_checkpoint(self, run: Run, position: Row) -> None:
        self.learner.save(run.checkpoint, fit=position)

    def save(self) -> None:
        if self.run is None and self.sharded:  # what the first process writes
            self.learner.save("", fit={})
        else:
            super().save()

    def measured(self, epoch: int) -> Row:
        """What an epoch's row says of the test set, if anything: of few training images, which are learned sooner
        than it is predicted, several epochs have to be learned first; the last is always measured."""
        every = max(1, round(len(self.test) / MEASURE_SHARE / len(self.train)))
        if epoch % every and epoch < self.config.epochs:
            return {}
        assert self.test.labels is not None
        return classification_scores(self.learner.predict(self.test.images).probs, self.test.labels)
