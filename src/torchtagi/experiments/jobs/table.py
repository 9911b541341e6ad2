"""A table whose best cells stand out, for the terminal and for pages."""

from typing import NamedTuple


class Cell(NamedTuple):
    text: str
    best: bool = False
    """Of its row."""


class Table(NamedTuple):
    title: str
    heads: list[str]
    rows: list[list[Cell]]

    def markdown(self) -> list[str]:
        cells = [[f"**{cell.text}**" if cell.best else cell.text for cell in row] for row in self.rows]
        lines = [self.heads, ["---", *["---:"] * (len(self.heads) - 1)], *cells]
        return [f"| {' | '.join(line)} |" for line in lines]
