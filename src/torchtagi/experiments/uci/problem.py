"""What a method learns from and predicts, in a data set's own units and standardised."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from torchtagi.standardising import Standardiser

Moments = tuple[Tensor, Tensor]
"""The mean and the variance (N,) of each new target."""


@dataclass(frozen=True, eq=False)
class Problem:
    """All that a method may see: x (N, features) and y (N,) to learn from, new inputs, and no targets of theirs."""

    x: Tensor
    y: Tensor
    x_new: Tensor
    hidden: int
    """Units of a hidden layer."""
    seed: int


Predict = Callable[[Any, Problem], Moments]
"""Of a method's setting and a problem."""


def standardised(predict: Predict) -> Predict:
    """A method for standardised inputs and targets as one for any units."""

    def in_units(setting: Any, problem: Problem) -> Moments:
        scale_of_x, scale_of_y = Standardiser(), Standardiser()
        targets = problem.y[:, None].double()
        scale_of_x.observe(problem.x)
        scale_of_y.observe(targets)
        x, x_new = (scale_of_x(part.double()).float() for part in (problem.x, problem.x_new))
        scaled = replace(problem, x=x, x_new=x_new, y=scale_of_y(targets)[:, 0].float())
        mean, var = (part.double()[:, None] for part in predict(setting, scaled))
        return scale_of_y.undo(mean)[:, 0], (var * scale_of_y.factor(var).square())[:, 0]

    return in_units
