"""A model of classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchtagi import metrics
from torchtagi.checks import as_numbers, plain_number, require_labels, require_noise
from torchtagi.fitting import Batches, Row
from torchtagi.gaussian import Gaussian, as_gaussian
from torchtagi.heads import with_outputs
from torchtagi.inference.conditioning import CHUNK
from torchtagi.likelihoods import HierarchicalClassification, OneVsRest
from torchtagi.likelihoods.link import MEMORY
from torchtagi.model import NOISE_FLOOR, Model, gaussian, without_autocast
from torchtagi.prediction import ClassPrediction

SCORE_EVERY = 10  # chunks: how often the average is asked beforehand; each time costs half a step
KEPT_BACK, LEAST_KEPT = 0.05, 100  # share of a fit's samples, and how few say too little of a link
LATE = 0.1  # of the epochs: in these the samples that were kept back are learned


class Classifier(Model):
    """Classes from anything a network takes.

    `net` is an ordinary torch network, which is converted (`convert`), or a Gaussian one. Its last layer has as
    many outputs as there are classes, as in torch; each says of one class whether it is the label's
    (`likelihoods.one_vs_rest`). `classes` is their number, for labels 0, 1, …, or the list of labels: whole
    numbers or strings. `noise` is learned, or the standard deviation of the labels' ±1 codes. `horizon` is the
    number of observations after which what was learned has faded: for a world that drifts, never unless given.
    """

    kind = "Classifier"
    codes: type[OneVsRest] | type[HierarchicalClassification] = OneVsRest
    """How labels are observed."""
    likelihood: OneVsRest | HierarchicalClassification
    link: OneVsRest | HierarchicalClassification
    held_out: Batches | None = None
    """The data of a fit that keeps some of them back."""
    judges = True
    """Whether labels to come tell something of the link; not so in a fit whose last ones kept back are learned."""

    def __init__(
        self,
        net: nn.Module,
        classes: int | Sequence[Any],
        *,
        noise: str | float = "learned",
        horizon: float | None = None,
    ) -> None:
        classes, noise = plain_number(classes), plain_number(noise)
        if isinstance(classes, str) or not isinstance(classes, int | Iterable):
            raise TypeError(f"classes must be a whole number or the list of labels, got {classes!r}")
        self.classes = None if isinstance(classes, int) else [getattr(c, "item", lambda c=c: c)() for c in classes]
        if not all(isinstance(name, int | str) for name in self.classes or ()):
            raise TypeError(f"classes must be whole numbers or strings, got {self.classes}")
        self.places = {name: place for place, name in enumerate(self.classes or ())}
        if self.classes is not None and len(self.places) < len(self.classes):
            raise ValueError(f"classes must differ from each other, got {self.classes}")
        if isinstance(noise, str) and noise != "learned":
            raise ValueError(f'noise must be "learned" or a number, got {noise!r}')
        if noise != "learned":
            require_noise(noise)
        self.noise = noise
        count = classes if isinstance(classes, int) else len(self.places)
        learned = noise == "learned"
        likelihood = self.codes(count, NOISE_FLOOR if learned else float(noise), learned)
        super().__init__(with_outputs(gaussian(net), count, likelihood.outputs), likelihood, horizon)

    def checked_targets(self, y: Any) -> Any:
        if self.classes is None:
            try:
                labels = as_numbers("labels", y)
            except TypeError as error:
                raise TypeError(f"{error}, or name the labels: classes=[...]") from error
            require_labels("labels", labels, labels.shape[0] if labels.ndim else 1, self.likelihood.classes)
            return labels
        names = y.tolist() if hasattr(y, "tolist") else list(y)
        for row, name in enumerate(names):
            if isinstance(name, list) or name not in self.places:
                raise ValueError(f"label {name!r} is not among the classes {self.classes}, row {row}")
        return names

    def encoded(self, y: Any) -> Tensor:
        if self.classes is not None:
            y = torch.tensor([self.places[name] for name in y], dtype=torch.long)
        labels: Tensor = y.to(self.like.device)
        return labels

    def error(self, z: Gaussian, y: Tensor) -> float:
        return float((self.likelihood.log_probs(z).argmax(1) != y).sum())

    def training_error(self, total: float, samples: int) -> float:
        """In %."""
        return 100 * total / max(samples, 1)

    def measures(self) -> Row:
        """The noise that messages assume, and that of predictions by margins."""
        return {
            "noise_std": math.sqrt(self.likelihood.learned_noise_var.item()),
            "link_noise_std": math.sqrt(self.link.predictive_noise_var.item()),
        }

    def get_ready(self, batches: Batches, epochs: int) -> None:
        """Keep some images back, if others are to be learned more than once."""
        super().get_ready(batches, epochs)
        if epochs > 1 and self.average is not None:
            batches.keep_back(KEPT_BACK, LEAST_KEPT, max(1, int(LATE * epochs)))
        self.held_out = batches if batches.kept_back else None
        self.link.memory = 2.0 * batches.kept_back or MEMORY  # those come again, and the network learns meanwhile

    def start_epoch(self, epoch: int, left: int) -> bool:
        self.judges = self.held_out is None or left >= self.held_out.late
        return super().start_epoch(epoch, left)

    def update(self, x: Any, y: Any, weights: Any = None) -> Row:
        self.held_out, self.link.memory = None, MEMORY  # what a fit kept back it has learned at its end
        self.judges = True
        return super().update(x, y, weights)

    def score_link(self, x: Any, y: Tensor) -> None:
        if self.average is None or not self.judges or self.average.count % SCORE_EVERY != 1:
            return
        self.link.weights = self.likelihood.weights
        if self.held_out is not None:
            start = self.average.count // SCORE_EVERY * CHUNK
            inputs, labels, *weights = self.checked(*self.held_out.kept(start, CHUNK))
            x, y = self.prepared(inputs), self.encoded(labels)
            self.link.weights = weights[0] if weights else None
        with torch.no_grad():
            z = self.predicting(as_gaussian(x, finite=True))
            self.link.score_link(z, y, new=self.new or self.held_out is not None)

    @without_autocast
    def predict(self, x: Any) -> ClassPrediction:
        """Class probabilities with both uncertainties."""
        parts = [self.link.predict(z) for z in self.outputs(x)]
        columns = zip(*((part.probs, part.epistemic, part.aleatoric) for part in parts), strict=True)
        probs, epistemic, aleatoric = (torch.cat(column) for column in columns)
        return ClassPrediction(probs, epistemic, aleatoric, self.classes)

    def scores(self, prediction: ClassPrediction, y: Any) -> Row:
        """Error in %; the rest as `torchtagi.metrics` defines it."""
        return metrics.classification_scores(prediction.probs, self.encoded(self.checked_targets(y)))

    def description(self) -> Row:
        classes = self.classes if self.classes is not None else self.likelihood.classes
        return {"kind": self.kind, "classes": classes, "noise": self.noise, "horizon": self.horizon}


class TreeClassifier(Classifier):
    """Classes as paths in a binary tree, which is the paper's way and the authors' own: for parity with them. The
    last layer, written with an output for each class, gets one for each node of the tree
    (`likelihoods.classification`). docs/maths.md has what it is behind by."""

    kind = "TreeClassifier"
    codes = HierarchicalClassification
