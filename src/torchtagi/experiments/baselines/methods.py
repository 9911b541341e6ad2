"""The baselines by name: what each is, its hyperparameters, and the small grid on which it is tuned; and what a
baseline's training was asked for.

A grid is fixed here, the same for every comparison, at most twelve cells each: learning rates around the one that
its authors or common practice use, times both schedules. `variants` are further values of one more hyperparameter,
such as the rate of dropout, tried at the grid's best cell. VOGN's and IVON's learning rates are in SGD's units (see
their modules), so that the same few serve for any number of images.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchtagi import checkpoint
from torchtagi.experiments.baselines.backprop import Backprop, Ensemble, McDropout
from torchtagi.experiments.baselines.baseline import Baseline
from torchtagi.experiments.baselines.ivon import Ivon
from torchtagi.experiments.baselines.laplace import LastLayerLaplace
from torchtagi.experiments.baselines.vogn import VognLearner
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.data import ImageSet, TrainTest, find_named
from torchtagi.experiments.runs.config import ClassifierConfig
from torchtagi.experiments.runs.folder import Run

Value = float | int | str
Hyperparameters = dict[str, Any]
"""Of these values; `Method.hyperparameters` checks each."""

BATCH_SIZE = 64
FOLDS = 5
SCHEDULES = ("constant", "cosine")
SHORT = {"learning_rate": "lr", "prior_precision": "prior"}
FRACTIONS = ("rate", "momentum", "curvature_rate")


def grid(*rates: float) -> tuple[Hyperparameters, ...]:
    """Each learning rate with each schedule."""
    return tuple({"learning_rate": r, "schedule": s} for r, s in itertools.product(rates, SCHEDULES))


@dataclass(frozen=True)
class Method:
    """A baseline; `defaults` names every hyperparameter it has."""

    name: str
    learner: type[Baseline]
    title: str
    defaults: Mapping[str, Value]
    grid: tuple[Hyperparameters, ...]
    variants: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    tuned_as: str | None = None
    """Takes what was found for another method, whose training it shares."""
    learns_drawn: bool = False
    """Whether it learns with one or two networks drawn, whose answers for a batch are not its prediction."""
    package: str | None = None
    """The module it needs, of the extra `baselines`."""

    def hyperparameters(self, changes: Mapping[str, Value]) -> Hyperparameters:
        """The defaults with `changes`, checked."""
        for name, value in changes.items():
            if name not in self.defaults:
                raise ValueError(f"{self.name} has no hyperparameter {name!r}; it has {', '.join(self.defaults)}")
            fine, wanted = check(name, value, self.defaults[name])
            if not fine:
                raise ValueError(f"{self.name}'s {name.replace('_', ' ')} must be {wanted}, got {value!r}")
        return {**self.defaults, **changes}

    def describe(self, hyperparameters: Mapping[str, Value]) -> str:
        """What differs from the defaults, for names: `lr0.003-cosine`."""
        changed = {name: value for name, value in hyperparameters.items() if value != self.defaults[name]}
        return "-".join(
            value if isinstance(value, str) else f"{SHORT.get(name, name.replace('_', ''))}{value:g}"
            for name, value in changed.items()
        )


def check(name: str, value: object, default: Value) -> tuple[bool, str]:
    """Whether a hyperparameter may have this value, and what it must be."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if isinstance(default, str):
        return value in SCHEDULES, f"one of {', '.join(SCHEDULES)}"
    if isinstance(default, int):
        return isinstance(number, int) and number >= 1, "a whole number of at least 1"
    if name in FRACTIONS:
        return 0 <= number < 1, "a number of at least 0 and below 1"
    return 0 <= number < math.inf, "a number of at least 0"


DRAWS = 30  # networks drawn for a prediction
ADAM: Mapping[str, Value] = {"learning_rate": 1e-3, "schedule": "constant", "weight_decay": 0.0}
ADAM_GRID = grid(3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
DROPOUT: Mapping[str, Value] = {**ADAM, "rate": 0.1, "draws": DRAWS}
SGD: Mapping[str, Value] = {"learning_rate": 0.03, "schedule": "constant", "weight_decay": 5e-4, "momentum": 0.9}
VOGN: Mapping[str, Value] = {
    **{"learning_rate": 0.1, "schedule": "constant", "prior_precision": 1.0, "damping": 1000.0},
    **{"momentum": 0.9, "curvature_rate": 0.01, "mc_samples": 2, "draws": DRAWS},
}
IVON: Mapping[str, Value] = {
    **{"learning_rate": 0.3, "schedule": "constant", "prior_precision": 10.0, "first_precision": 5000.0},
    **{"momentum": 0.9, "curvature_rate": 1e-4, "mc_samples": 1, "draws": DRAWS},
}

SGD_GRID, IVON_GRID = grid(0.01, 0.03, 0.1, 0.3), grid(0.1, 0.3, 1.0, 3.0)
VOGN_TITLE = "VOGN, natural-gradient variational inference"

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("sgd", Backprop, "backpropagation, SGD with momentum", SGD, SGD_GRID),
        Method("adam", Backprop, "backpropagation, Adam", ADAM, ADAM_GRID),
        Method("mc-dropout", McDropout, "MC-dropout", DROPOUT, ADAM_GRID, {"rate": (0.05, 0.3)}, learns_drawn=True),
        Method(
            "laplace", LastLayerLaplace, "last-layer Laplace", {**ADAM, "draws": DRAWS}, ADAM_GRID, tuned_as="adam"
        ),
        Method("vogn", VognLearner, VOGN_TITLE, VOGN, SGD_GRID, {"damping": (300.0, 3000.0)}, learns_drawn=True),
        Method("ivon", Ivon, "IVON, variational online Newton", IVON, IVON_GRID, learns_drawn=True, package="ivon"),
        Method("ensemble", Ensemble, "deep ensemble", {**ADAM, "members": 5}, ADAM_GRID, tuned_as="adam"),
    )
}


@dataclass(frozen=True)
class BaselineConfig(ClassifierConfig):
    """Everything that decides what a baseline's run becomes; `configure_baseline` fills it in."""

    method: str = "adam"
    hyperparameters: Hyperparameters = field(default_factory=dict)
    fold: int | None = None
    """For tuning: a fifth of the training images is not learned, but measured on in place of the test set; the last
    fifth is fold 0, the one before it fold 1, …"""

    def __post_init__(self) -> None:
        find_task(self.task).network(self.network)
        complete = find_named("method", self.method, METHODS).hyperparameters(self.hyperparameters)
        if complete.keys() != self.hyperparameters.keys():
            raise ValueError(f"{self.method}'s {min(complete.keys() - self.hyperparameters.keys())} is missing")
        self.check_sizes()
        if self.fold is not None and not 0 <= self.fold < FOLDS:
            raise ValueError(f"fold must lie between 0 and {FOLDS - 1}, got {self.fold}")

    @property
    def open_ended(self) -> bool:
        """A schedule that ends at zero ends with the epochs it was made for."""
        return bool(self.hyperparameters["schedule"] == "constant")

    def split(self, sets: TrainTest) -> TrainTest:
        """A fold that is held out takes the test set's place."""
        sets = super().split(sets)
        if self.fold is None:
            return sets
        size = max(1, len(sets.train) // FOLDS)
        end = len(sets.train) - self.fold * size
        if end < size or size == len(sets.train):
            raise ValueError(
                f"fold {self.fold} of {len(sets.train)} images leaves none to learn, or none to hold out"
            )
        held_out = torch.zeros(len(sets.train), dtype=torch.bool)
        held_out[end - size : end] = True
        return TrainTest(sets.train.subset(~held_out), sets.train.subset(held_out))

    def build(self, train: ImageSet) -> Baseline:
        """The baseline before its first step."""
        return METHODS[self.method].learner(self, len(train))

    def build_network(self) -> torch.nn.Module:
        """The architecture as an ordinary torch network, with the classes as its outputs."""
        task = find_task(self.task)
        return task.network(self.network).build(len(task.classes), layers=torch.nn)

    def weights(self) -> int:
        own = sum(parameter.numel() for parameter in self.build_network().parameters())
        return own * int(self.hyperparameters.get("members", 1))


def configure_baseline(
    task: str,
    method: str,
    network: str | None = None,
    hyperparameters: Hyperparameters | None = None,
    **changes: Any,
) -> BaselineConfig:
    """A method's defaults with `changes`. The images, their augmentation and their number are TAGI's own."""
    kind, tagi = find_named("method", method, METHODS), configure(task, network)
    values = kind.hyperparameters(hyperparameters or {})
    setting = "-".join(filter(None, (method, kind.describe(values))))
    own = {"setting": setting, "batch_size": BATCH_SIZE, "method": method, "hyperparameters": values}
    shared = {name: getattr(tagi, name) for name in ("task", "network", "epochs", "augment", "threads")}
    return BaselineConfig(**{**shared, **own, **changes})


def load_baseline(run: Run) -> Baseline:
    """What learned in `run`, ready to predict."""
    run.require_checkpoint()
    config = replace(BaselineConfig.from_json(run.config), device="cpu")
    images = int(checkpoint.read(run.checkpoint)[0]["extra"].get("images", 1))
    with torch.random.fork_rng(devices=[]):  # an initialisation is drawn, for nothing here
        baseline = METHODS[config.method].learner(config, images)
    baseline.restore(run.checkpoint)
    return baseline
