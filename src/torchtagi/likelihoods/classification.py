"""Classes as paths in a binary tree: hierarchical classification.

C classes become the leaves of a tree of L = ⌈log₂ C⌉ levels. A class is the path to its leaf: at each of the L
nodes on it the network's output is observed as +1 (left) or −1 (right), the other nodes are not observed.
Ten classes have 4 levels and 11 nodes.

    P(class c) ∝ Π over its path of Φ(± m/√(v + R)),  normalised over the C classes

The two kinds of uncertainty follow from the law of total variance of the indicator 1[class = c], p the class
probability if the network's weights were known:

    P(1 − P)  =  var[p]  +  E[p(1 − p)]         epistemic + aleatoric

    E[Φ²] at one node, z ~ N(m, v):  E[Φ(z/√R)²] = Φ(h) − 2 T(h, 1/√(1 + 2v/R)),   h = m/√(v + R)

with Owen's function T (Owen 1980); nodes are independent, so paths multiply. Where C is no power of two, p is a
ratio π/S of the path's product and the mass S on all C leaves; to first order var[p] = E[(π − P S)²]/E[S]², whose
moments climb the tree from the leaves (`epistemic_variance`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtagi.checks import require_labels
from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods.link import LabelLikelihood
from torchtagi.likelihoods.observation import require_output
from torchtagi.prediction import ClassPrediction

FEW = 128  # classes; up to here one product with the dense tree is faster than a walk down its levels


def tree_levels(classes: int) -> list[slice]:
    """Which outputs are the nodes of each level, the root first.

    The nodes of a level are the distinct prefixes of that length among the classes' binary numbers.
    """
    if not isinstance(classes, int) or classes < 2:
        raise ValueError(f"classes must be a whole number of at least 2, got {classes!r}")
    sizes = [(classes - 1 >> below) + 1 for below in range((classes - 1).bit_length(), 0, -1)]
    return [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def class_paths(classes: int) -> tuple[Tensor, Tensor]:
    """(C, L) twice: the nodes on each class's path, and +1 or −1 for the branch that it takes there."""
    levels = tree_levels(classes)
    branch = torch.arange(classes)[:, None] >> torch.arange(len(levels) - 1, -1, -1)
    return torch.tensor([level.start for level in levels]) + (branch >> 1), 1.0 - 2.0 * (branch & 1)


def class_tree(classes: int) -> Tensor:
    """(C, nodes): +1 or −1 at the nodes on a class's path, 0 elsewhere."""
    nodes, signs = class_paths(classes)
    return torch.zeros(classes, tree_levels(classes)[-1].stop).scatter_(1, nodes, signs)


@lru_cache(maxsize=8)
def stored_paths(classes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """`class_paths`, made when it is first needed."""
    with torch.inference_mode(False), torch.device(device):
        nodes, signs = class_paths(classes)
        return nodes, signs.to(dtype)


@lru_cache(maxsize=8)
def stored_branches(classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(2·nodes, C): 1 where a class's path goes left at a node, then where it goes right."""
    with torch.inference_mode(False), torch.device(device):
        code = class_tree(classes).to(dtype).t()
        return torch.cat([code.clamp_min(0), code.neg().clamp_min(0)])


class HierarchicalClassification(LabelLikelihood):
    """Labels 0..classes−1, each observed as ±1 on its path; the network needs `.outputs` outputs."""

    def __init__(
        self, classes: int, noise_std: float | Sequence[float] | Tensor = 1.0, learn_noise: bool = False
    ) -> None:
        super().__init__(noise_std, learn_noise)
        self.classes = classes
        self.levels = tree_levels(classes)
        self.outputs = self.levels[-1].stop
        """How many outputs the network must have: the nodes of the tree."""

    def paths(self, labels: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """(N, L) twice: the nodes on the paths of these labels, and the signs observed there."""
        nodes, signs = stored_paths(self.classes, like.dtype, like.device)
        labels = labels.long()
        return nodes.index_select(0, labels), signs.index_select(0, labels)

    def targets(self, z: Gaussian, y: Tensor) -> tuple[Tensor, Tensor | None]:
        target = torch.zeros_like(z.mean).scatter_(1, *self.paths(self.check(z, y), z.mean))
        return target, target.bool()

    def predict(self, z: Gaussian) -> ClassPrediction:
        require_output("z", z, self.outputs)
        with torch.no_grad():
            var, noise = self.predictive_scale * z.variance, self.predictive_noise_var
            margin = self.margin(z)
            probs = self.log_probs(z).exp()
            total = probs * (1 - probs)
            squared = torch.special.ndtr(margin) - 2 * owens_t(margin, torch.rsqrt(1 + 2 * var / noise))
            epistemic = torch.minimum(self.epistemic_variance(probs, margin, squared), total)
        return ClassPrediction(probs, epistemic, total - epistemic)

    def check(self, z: Gaussian, labels: Tensor) -> Tensor:
        require_output("z", z, self.outputs)
        require_labels("labels", labels, len(z), self.classes)
        return labels

    def log_probs(self, z: Gaussian) -> Tensor:
        """(N, C), normalised: what `predict` gives without the two uncertainties, at a fraction of the cost."""
        require_output("z", z, self.outputs)
        margin = self.margin(z)
        return self.along_paths(torch.special.log_ndtr(margin), torch.special.log_ndtr(-margin)).log_softmax(-1)

    def log_prob_at(self, margin: Tensor, labels: Tensor) -> Tensor:
        """Of a label alone: its own path and the last class's, not all C."""
        nodes, signs = self.paths(labels, margin)
        path = margin.gather(-1, nodes.expand(*margin.shape[:-1], -1)) * signs
        log_prob: Tensor = torch.special.log_ndtr(path).sum(-1) - self.log_mass(margin)
        return log_prob

    def log_mass(self, margin: Tensor) -> Tensor | float:
        """log S, the mass on all C leaves: what lies below the last class's path or left of it.

        S climbs that path from S = 1 at its leaf: S ← Φ S where it goes left, S ← Φ + (1 − Φ) S where it goes
        right; to its right no leaf is a class.
        """
        log_mass: Tensor | None = None
        last = self.classes - 1
        for level in reversed(self.levels):
            goes_right, last = last & 1, last >> 1
            here = margin[..., level.start + last]
            if not goes_right:
                left = torch.special.log_ndtr(here)
                log_mass = left if log_mass is None else left + log_mass
            elif log_mass is not None:
                right = torch.special.log_ndtr(-here) + log_mass
                log_mass = torch.logaddexp(torch.special.log_ndtr(here), right)
        return 0.0 if log_mass is None else log_mass

    def epistemic_variance(self, probs: Tensor, margin: Tensor, squared: Tensor) -> Tensor:
        """E[(π − P S)²]/E[S]² for each class; `squared` is E[Φ²] of going left at each node.

        From the leaves up, below a node: `mass` and `mass2` are E[S] and E[S²] of its subtree; for each class
        `path`, `path2` and `shared` are E[π], E[π²] and E[π S] from its path's node at that level down.
        """
        leaf = torch.arange(self.classes, device=margin.device)
        mass = torch.zeros(len(margin), 1 << len(self.levels), dtype=margin.dtype, device=margin.device)
        mass[:, : self.classes] = 1.0
        mass2 = mass
        path = path2 = shared = torch.ones_like(probs)
        left, right = torch.special.ndtr(margin), torch.special.ndtr(-margin)
        cross = left - squared  # E[Φ(z)Φ(−z)]
        squared_right = right - cross
        for depth, here in enumerate(reversed(self.levels)):
            nodes = here.stop - here.start
            branch = leaf >> depth  # each class's node one level down
            goes_left, node = branch % 2 == 0, here.start + branch // 2
            sibling = mass[:, branch ^ 1]
            shared = (
                torch.where(goes_left, squared[:, node], squared_right[:, node]) * shared
                + cross[:, node] * path * sibling
            )
            path2 = torch.where(goes_left, squared[:, node], squared_right[:, node]) * path2
            path = torch.where(goes_left, left[:, node], right[:, node]) * path
            a, b = mass[:, 0 : 2 * nodes : 2], mass[:, 1 : 2 * nodes : 2]
            a2, b2 = mass2[:, 0 : 2 * nodes : 2], mass2[:, 1 : 2 * nodes : 2]
            mass2 = squared[:, here] * a2 + squared_right[:, here] * b2 + 2 * cross[:, here] * a * b
            mass = left[:, here] * a + right[:, here] * b
            if nodes % 2 and here.start:  # the parent's other child holds no class
                mass, mass2 = (torch.nn.functional.pad(t, (0, 1)) for t in (mass, mass2))
        residual = path2 - 2 * probs * shared + probs.square() * mass2
        return residual.clamp_min(0) / mass.square().clamp_min(torch.finfo(mass.dtype).tiny)

    def along_paths(self, left: Tensor, right: Tensor) -> Tensor:
        """Σ over each class's path of its nodes' values: (N, nodes) twice → (N, C)."""
        if self.classes <= FEW:
            return torch.cat([left, right], -1) @ stored_branches(self.classes, left.dtype, left.device)
        branches = torch.stack([left, right], -1)
        total = torch.zeros_like(branches[..., :1, 0])
        for level in self.levels:
            total = (total[..., : level.stop - level.start, None] + branches[..., level, :]).flatten(-2)
        return total[..., : self.classes]

    def config(self) -> dict[str, Any]:
        return {"classes": self.classes, **super().config()}

    def extra_repr(self) -> str:
        return f"classes={self.classes}, {super().extra_repr()}"


def owens_t(h: Tensor, a: Tensor, nodes: int = 20) -> Tensor:
    """Owen's T(h, a) = (1/2π) ∫₀ᵃ exp(−h²(1 + x²)/2)/(1 + x²) dx for 0 ≤ a ≤ 1, by Gauss–Legendre."""
    points, weights = np.polynomial.legendre.leggauss(nodes)
    total = torch.zeros_like(h)
    for point, weight in zip(points.tolist(), weights.tolist(), strict=True):
        square = 1 + (a * (point + 1) / 2).square()
        total += weight * torch.exp(-0.5 * h.square() * square) / square
    return total * a / (4 * math.pi)
