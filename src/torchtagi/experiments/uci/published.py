"""The nine sets, and what was published for networks of one hidden layer of 50 ReLU units, 100 for protein."""

from typing import NamedTuple

COLUMNS = ("TAGI", "TAGI-V", "MC-dropout", "PBP", "deep ensemble")
TAGI_COLUMNS = COLUMNS[:2]
# RMSE/log-likelihood of each column, as printed
FIGURES = """
boston     3.15/-2.58  3.33/-2.57  2.90/-2.40   3.54/-2.82  3.72/-2.50
concrete   5.87/-3.20  6.27/-3.19  4.83/-2.94   5.83/-3.20  5.35/-2.96
energy     1.32/-1.81  2.24/-1.66  0.54/-1.21   -           2.58/-2.19
kin8nm     0.095/0.89  0.122/0.94  0.079/1.14   0.099/0.89  0.077/1.22
naval      0.007/3.54  0.007/3.74  0.0007/4.45  -           0.0037/3.84
power      4.13/-2.88  4.16/-2.83  4.01/-2.81   4.15/-2.84  4.13/-2.82
protein    4.62/-2.95  4.73/-2.89  4.27/-2.87   -           4.59/-2.86
wine       0.639/-0.98 0.638/-0.98 0.622/-0.93  0.633/-0.97 0.633/-0.97
yacht      1.04/-1.60  1.50/-1.42  0.67/-1.25   1.07/-1.66  0.93/-1.19
"""


class Figures(NamedTuple):
    """Both as printed, for a number's digits say how exact it is."""

    rmse: str
    log_likelihood: str


def read_figures(text: str) -> dict[str, dict[str, Figures]]:
    """By set and column; a column has nothing for the sets that its authors left out."""
    found = {}
    for name, *cells in map(str.split, text.strip().splitlines()):
        pairs = zip(COLUMNS, cells, strict=True)
        found[name] = {column: Figures(*cell.split("/")) for column, cell in pairs if cell != "-"}
    return found


PUBLISHED = read_figures(FIGURES)
