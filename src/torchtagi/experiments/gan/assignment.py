"""Which code means which digit, and how well Qnet knows real digits by them.

Codes are learned without labels, so their numbers mean nothing. The contingency table counts how often test images
of each digit are read as each code; the Hungarian method finds the one-to-one assignment that explains most of
them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Assignment:
    """`digit_of[k]` is the digit that code k stands for; `table` (codes, digits) counts test images."""

    digit_of: tuple[int, ...]
    table: Tensor

    @property
    def code_of(self) -> tuple[int, ...]:
        """The code that stands for each digit."""
        codes = [0] * len(self.digit_of)
        for code, digit in enumerate(self.digit_of):
            codes[digit] = code
        return tuple(codes)

    @property
    def accuracy(self) -> float:
        """The share of images read as their digit's code."""
        return sum(self.table[code, digit].item() for code, digit in enumerate(self.digit_of)) / max(
            int(self.table.sum()), 1
        )

    @property
    def own_codes(self) -> int:
        """How many digits have a code of their own: the code that most of the digit's images are read as, and of
        whose images most show this digit."""
        found = 0
        for code, digit in enumerate(self.digit_of):
            count = self.table[code, digit].item()
            found += 2 * count > max(int(self.table[:, digit].sum()), int(self.table[code].sum()))
        return found


def assign(codes: Tensor, digits: Tensor, classes: int = 10) -> Assignment:
    """The assignment for images of `digits` that were read as `codes`."""
    from scipy.optimize import linear_sum_assignment

    if codes.shape != digits.shape or codes.ndim != 1:
        raise ValueError(f"one code for each digit: got shapes {tuple(codes.shape)} and {tuple(digits.shape)}")
    for name, values in (("codes", codes), ("digits", digits)):
        if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < classes:
            raise ValueError(f"{name} must lie between 0 and {classes - 1}")
    table = torch.bincount(codes.long() * classes + digits.long(), minlength=classes**2).view(classes, classes)
    _, chosen = linear_sum_assignment(table.cpu().numpy(), maximize=True)
    return Assignment(tuple(int(digit) for digit in chosen), table.cpu())
