"""Tables whose best cells stand out, for the terminal and for pages, and the measures of regression in them."""

from collections.abc import Mapping
from typing import NamedTuple

SIGNS = {"rmse": -1, "log_likelihood": 1}  # what is large is good, or bad
LABELS = {
    "rmse": "RMSE",
    "log_likelihood": "log-likelihood",
    "coverage": "share of targets in 95 % intervals",
    "seconds": "seconds a split, one core",
}


class Cell(NamedTuple):
    text: str
    best: bool = False
    """Of what it is compared with."""


NOTHING = Cell("–")


class Table(NamedTuple):
    title: str
    heads: list[str]
    rows: list[list[Cell]]

    def markdown(self) -> list[str]:
        cells = [[f"**{cell.text}**" if cell.best else cell.text for cell in row] for row in self.rows]
        lines = [self.heads, ["---", *["---:"] * (len(self.heads) - 1)], *cells]
        return [f"| {' | '.join(line)} |" for line in lines]


def compared(texts: Mapping[str, str], values: Mapping[str, float], measure: str) -> dict[str, Cell]:
    """Cells of what is compared, by name. Several may be the best; one alone is not."""
    sign = SIGNS.get(measure, 0)
    best = max(sign * value for value in values.values())
    return {
        name: Cell(text.replace("-", "−"), bool(sign) and len(values) > 1 and sign * values[name] == best)
        for name, text in texts.items()
    }
