"""TAGI's rivals by name: what each is, its hyperparameters, and the small grid on which it is tuned.

A grid is fixed here, the same for every comparison, at most twelve cells each: learning rates around the one that
its authors or common practice use, times both schedules. `refined` is a second stage: one more hyperparameter, such
as the rate of dropout, tried at the best cell of the grid. VOGN's and IVON's learning rates are in SGD's units (see
their modules), so that the same few serve for any number of images.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Value = float | int | str
Hyperparameters = dict[str, Value]

SCHEDULES = ("constant", "cosine")


def product(**choices: Sequence[Value]) -> tuple[Hyperparameters, ...]:
    """Every combination of the choices."""
    return tuple(dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values()))


@dataclass(frozen=True)
class Method:
    """A rival; `defaults` names every hyperparameter it has."""

    name: str
    title: str
    defaults: Mapping[str, Value]
    grid: tuple[Hyperparameters, ...] = ()
    refined: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    tuned_as: str | None = None
    """Takes what was found for another method, whose training it shares."""
    batch_size: int = 64
    learns_drawn: bool = False
    """Whether it learns from one or two networks drawn: their answers for a batch are not its prediction."""

    @property
    def draws_networks(self) -> bool:
        """Whether a prediction averages over networks drawn."""
        return "draws" in self.defaults

    def hyperparameters(self, changes: Mapping[str, Value]) -> Hyperparameters:
        """The defaults with `changes`, checked."""
        for name, value in changes.items():
            if name not in self.defaults:
                raise ValueError(f"{self.name} has no hyperparameter {name!r}; it has {', '.join(self.defaults)}")
            check_value(f"{self.name}'s {name.replace('_', ' ')}", name, value, self.defaults[name])
        return {**self.defaults, **changes}

    def describe(self, hyperparameters: Mapping[str, Value]) -> str:
        """What differs from the defaults, for names: `-lr0.003-cosine`."""
        return "".join(
            f"-{value}" if isinstance(value, str) else f"-{SHORT.get(name, name.replace('_', ''))}{value:g}"
            for name, value in hyperparameters.items()
            if value != self.defaults[name]
        )


SHORT = {"learning_rate": "lr", "prior_precision": "prior"}
UNIT = ("rate", "momentum", "curvature_rate")
MAY_BE_ZERO = ("weight_decay", "momentum", "damping")


def check_value(label: str, name: str, value: object, default: Value) -> None:
    if isinstance(default, str):
        if value not in SCHEDULES:
            raise ValueError(f"{label} must be one of {', '.join(SCHEDULES)}, got {value!r}")
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{label} must be a number, got {value!r}")
    if isinstance(default, int) and (not isinstance(value, int) or value < 1):
        raise ValueError(f"{label} must be a whole number of at least 1, got {value!r}")
    if value < 0 or (value == 0 and name not in MAY_BE_ZERO):
        raise ValueError(f"{label} must be {'at least 0' if name in MAY_BE_ZERO else 'positive'}, got {value!r}")
    if name in UNIT and value >= 1:
        raise ValueError(f"{label} must be below 1, got {value!r}")


DRAWS: Mapping[str, Value] = {"draws": 30, "curve_draws": 5}
"""Networks drawn for a prediction; fewer for the points of a learning curve, measured in the training loop."""

ADAM: Mapping[str, Value] = {"learning_rate": 1e-3, "schedule": "constant", "weight_decay": 0.0}
ADAM_GRID = product(learning_rate=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2), schedule=SCHEDULES)

METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method(
            "sgd",
            "backpropagation, SGD with momentum",
            {"learning_rate": 0.03, "schedule": "constant", "weight_decay": 5e-4, "momentum": 0.9},
            product(learning_rate=(0.01, 0.03, 0.1, 0.3), schedule=SCHEDULES),
        ),
        Method("adam", "backpropagation, Adam", ADAM, ADAM_GRID),
        Method(
            "mc-dropout",
            "MC-dropout",
            {**ADAM, "rate": 0.1, **DRAWS},
            ADAM_GRID,
            refined={"rate": (0.05, 0.3)},
            learns_drawn=True,
        ),
        Method(
            "laplace",
            "last-layer Laplace",
            {**ADAM, "draws": 30, "curve_draws": 30},  # of logits, which cost next to nothing
            ADAM_GRID,
            tuned_as="adam",
        ),
        Method(
            "vogn",
            "VOGN, natural-gradient variational inference",
            {
                "learning_rate": 0.1,
                "schedule": "constant",
                "prior_precision": 1.0,
                "damping": 1000.0,
                "momentum": 0.9,
                "curvature_rate": 0.01,
                "mc_samples": 2,
                **DRAWS,
            },
            product(learning_rate=(0.01, 0.03, 0.1, 0.3), schedule=SCHEDULES),
            refined={"damping": (300.0, 3000.0)},
            learns_drawn=True,
        ),
        Method(
            "ivon",
            "IVON, variational online Newton",
            {
                "learning_rate": 0.3,
                "schedule": "constant",
                "prior_precision": 10.0,
                "momentum": 0.9,
                "curvature_rate": 1e-4,
                "first_precision": 5000.0,
                "mc_samples": 1,
                **DRAWS,
            },
            product(learning_rate=(0.1, 0.3, 1.0, 3.0), schedule=SCHEDULES),
            learns_drawn=True,
        ),
        Method("ensemble", "deep ensemble", {**ADAM, "members": 5}, ADAM_GRID, tuned_as="adam"),
    )
}


def find_method(name: str) -> Method:
    if name not in METHODS:
        raise ValueError(f"there is no method {name!r}; there are tagi, {', '.join(METHODS)}")
    return METHODS[name]
