"""Training a classifier, TAGI's or a baseline's: a configuration made into a fit (`runs.training`)."""

from typing import Any

from torchtagi.experiments import data
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.runs.folder import Row, Run
from torchtagi.experiments.runs.training import RunTraining
from torchtagi.metrics import classification_scores

MEASURE_SHARE = 5  # the test set is predicted when a fifth as many images have been learned


class Training(RunTraining):
    learner: Any

    def __init__(self, config: Any, run: Run | None = None, sets: data.TrainTest | None = None) -> None:
        super().__init__(config, run, sets)
        self.augment = find_task(config.task).augment if config.augment else None

    def new_learner(self) -> Any:
        return self.config.build(self.train)

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
        """Of few training images, which are learned sooner than the test set is predicted, several epochs have to
        be learned first; the last is always measured."""
        every = max(1, round(len(self.test) / MEASURE_SHARE / len(self.train)))
        if epoch % every and epoch < self.config.epochs:
            return {}
        assert self.test.labels is not None
        return classification_scores(self.learner.predict(self.test.images).probs, self.test.labels)
