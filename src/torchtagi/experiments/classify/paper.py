"""The paper's own way to train a classifier (§3, Appendix B), to compare with.

The messages of a whole batch are added up (rule `paper`), the noise is given and decays from epoch to epoch (eq.
7), the prior is that of the layers, norms hold their statistics constant (eq. 5), classes are paths in a tree, and
the last posterior predicts.
"""

from torch import nn

from torchtagi.classifier import TreeClassifier
from torchtagi.inference.update import Update
from torchtagi.nn.norm import Norm

NOISE_DECAY = 0.975


class PaperClassifier(TreeClassifier):
    """A classifier with the paper's inference; `noise` is σ_V of the first epoch."""

    def __init__(self, net: nn.Module, classes: int, *, noise: float = 1.0) -> None:
        for part in net.modules():
            if isinstance(part, Norm):
                part.differentiate_statistics = False
        self.first_noise = noise
        super().__init__(net, classes, noise=noise)
        self.calibrated = True

    def start_inference(self) -> None:
        self.posterior = Update(self.net, "paper")
        self.average = None
        self.predicting, self.link = self.net, self.likelihood

    def start_epoch(self, epoch: int, left: int) -> bool:
        """σ_V is σ_V⁰ ηᵉ (eq. 7); images are augmented from the first epoch on."""
        self.start_learning(new=False)
        self.likelihood.noise_std = self.first_noise * NOISE_DECAY**epoch
        return True

    def chunk_size(self, samples: int) -> int:
        return samples
