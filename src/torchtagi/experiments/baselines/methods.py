"""The baselines by name: what each is, its hyperparameters, and the small grid on which it is tuned.

A grid is fixed here, the same for every comparison, at most twelve cells each: learning rates around the one that
its authors or common practice use, times both schedules. `variants` are further values of one more hyperparameter,
such as the rate of dropout, tried at the grid's best cell. VOGN's and IVON's learning rates are in SGD's units (see
their modules), so that the same few serve for any number of images.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Value = float | int | str
Hyperparameters = dict[str, Any]
"""Of these values; `Method.hyperparameters` checks each."""

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
        Method("sgd", "backpropagation, SGD with momentum", SGD, SGD_GRID),
        Method("adam", "backpropagation, Adam", ADAM, ADAM_GRID),
        Method("mc-dropout", "MC-dropout", DROPOUT, ADAM_GRID, {"rate": (0.05, 0.3)}, learns_drawn=True),
        Method("laplace", "last-layer Laplace", {**ADAM, "draws": DRAWS}, ADAM_GRID, tuned_as="adam"),
        Method("vogn", VOGN_TITLE, VOGN, SGD_GRID, {"damping": (300.0, 3000.0)}, learns_drawn=True),
        Method("ivon", "IVON, variational online Newton", IVON, IVON_GRID, learns_drawn=True, package="ivon"),
        Method("ensemble", "deep ensemble", {**ADAM, "members": 5}, ADAM_GRID, tuned_as="adam"),
    )
}
