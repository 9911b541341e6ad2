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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchtagi.checks import require_labels
from torchtagi.gaussian import Gaussian
from torchtagi.likelihoods.link import LabelLikelihood
from torchtagi.likelihoods.observation import Message, observe, require_output
from torchtagi.prediction import ClassPrediction


def class_tree(classes: int) -> Tensor:
    """(C, nodes): +1 or −1 at the nodes on a class's path, 0 elsewhere."""
    if not isinstance(classes, int) or classes < 2:
        raise ValueError(f"classes must be a whole number of at least 2, got {classes!r}")
    levels = (classes - 1).bit_length()
    # The nodes of a level are the distinct prefixes of that length among the classes' binary numbers.
    sizes = [math.ceil(classes / 2 ** (levels - level)) for level in range(levels)]
    code = torch.zeros(classes, sum(sizes))
    for c in range(classes):
        for level in range(levels):
            node = sum(sizes[:level]) + (c >> (levels - level))
            code[c, node] = -1.0 if (c >> (levels - level - 1)) & 1 else 1.0
    return code


class HierarchicalClassification(LabelLikelihood):
    """Labels 0..classes−1, each observed as ±1 on its path; the network needs `.outputs` outputs."""

    code: Tensor

    def __init__(
        self, classes: int, noise_std: float | Sequence[float] | Tensor = 1.0, learn_noise: bool = False
    ) -> None:
        super().__init__(noise_std, learn_noise)
        self.classes = classes
        self.register_buffer("code", class_tree(classes), persistent=False)

    @property
    def outputs(self) -> int:
        """How many outputs the network must have: the nodes of the tree."""
        return self.code.shape[1]

    def message(self, z: Gaussian, y: Tensor) -> Message:
        require_output("z", z, self.outputs)
        require_labels("labels", y, len(z), self.classes)
        target = self.code.to(z.dtype)[y.long()]
        observed = target != 0
        self.score_link(z, y)
        return observe(z, target, self.training_noise_var(z, target, observed), observed)

    def predict(self, z: Gaussian) -> ClassPrediction:
        require_output("z", z, self.outputs)
        with torch.no_grad():
            var, noise = z.variance, self.predictive_noise_var
            margin = z.mean / (var + noise).sqrt()
            probs = self.log_probs(z).exp()
            total = probs * (1 - probs)
            squared = torch.special.ndtr(margin) - 2 * owens_t(margin, torch.rsqrt(1 + 2 * var / noise))
            epistemic = torch.minimum(self.epistemic_variance(probs, margin, squared), total)
        return ClassPrediction(probs, epistemic, total - epistemic)

    def log_prob(self, z: Gaussian, labels: Tensor) -> Tensor:
        require_output("z", z, self.outputs)
        require_labels("labels", labels, len(z), self.classes)
        return self.log_prob_given(z, labels, self.predictive_noise_var)

    def log_probs(self, z: Gaussian) -> Tensor:
        """(N, C), normalised: what `predict` gives without the two uncertainties, at a fraction of the cost."""
        require_output("z", z, self.outputs)
        return self.log_probs_given(z, self.predictive_noise_var)

    def log_prob_given(self, z: Gaussian, labels: Tensor, noise_var: Tensor) -> Tensor:
        log_probs = self.log_probs_given(z, noise_var)
        return log_probs.gather(-1, labels.long()[:, None].expand(*log_probs.shape[:-1], 1))[..., 0]

    def log_probs_given(self, z: Gaussian, noise_var: Tensor) -> Tensor:
        margin = z.mean / (z.variance + noise_var).sqrt()
        left, right = torch.special.log_ndtr(margin), torch.special.log_ndtr(-margin)
        return self.along_paths(left, right).log_softmax(-1)

    def epistemic_variance(self, probs: Tensor, margin: Tensor, squared: Tensor) -> Tensor:
        """E[(π − P S)²]/E[S]² for each class; `squared` is E[Φ²] of going left at each node.

        From the leaves up, below a node: `mass` and `mass2` are E[S] and E[S²] of its subtree; for each class
        `path`, `path2` and `shared` are E[π], E[π²] and E[π S] from its path's node at that level down.
        """
        leaf = torch.arange(self.classes, device=margin.device)
        mass = torch.zeros(len(margin), 1 << self.levels, dtype=margin.dtype, device=margin.device)
        mass[:, : self.classes] = 1.0
        mass2 = mass
        path = path2 = shared = torch.ones_like(probs)
        left, right = torch.special.ndtr(margin), torch.special.ndtr(-margin)
        cross = left - squared  # E[Φ(z)Φ(−z)]
        squared_right = right - cross
        first = self.outputs
        for level in reversed(range(self.levels)):
            nodes = (self.classes - 1 >> (self.levels - level)) + 1  # prefixes of this length in use
            first -= nodes
            here = slice(first, first + nodes)
            branch = leaf >> (self.levels - level - 1)  # each class's node one level down
            goes_left, node = branch % 2 == 0, first + branch // 2
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
            if nodes % 2 and level:  # the parent's other child holds no class
                mass, mass2 = (torch.nn.functional.pad(t, (0, 1)) for t in (mass, mass2))
        residual = path2 - 2 * probs * shared + probs.square() * mass2
        return residual.clamp_min(0) / mass.square().clamp_min(torch.finfo(mass.dtype).tiny)

    @property
    def levels(self) -> int:
        return (self.classes - 1).bit_length()

    def along_paths(self, left: Tensor, right: Tensor) -> Tensor:
        """Σ over each class's path of its nodes' values: (N, nodes) twice → (N, C)."""
        code = self.code.to(left.dtype)
        return left @ code.clamp_min(0).t() + right @ code.neg().clamp_min(0).t()

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
