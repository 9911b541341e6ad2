"""Models from files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from torchtagi import checkpoint as files
from torchtagi.checkpoint import CheckpointError
from torchtagi.classifier import Classifier, TreeClassifier
from torchtagi.regressor import Regressor

CLASSIFIERS = {kind.kind: kind for kind in (Classifier, TreeClassifier)}


def load(path: str | Path, net: nn.Module | None = None) -> Classifier | Regressor:
    """The model in a file, ready to predict. A network of modules of your own cannot be built from the file: give
    `net`, a Gaussian network like the one that was saved, to be filled."""
    described = files.read(path)[0]["extra"].get("model")
    if not isinstance(described, dict) or described.get("kind") not in (*CLASSIFIERS, "Regressor"):
        raise CheckpointError(f"{path}: no Classifier or Regressor; torchtagi.checkpoint.load reads networks")
    try:
        with torch.random.fork_rng(devices=[]):  # layers draw a prior when they are built, for nothing here
            built = files.load(path).net if net is None else net
            model: Classifier | Regressor
            horizon = described["horizon"]
            if described["kind"] in CLASSIFIERS:
                kind = CLASSIFIERS[described["kind"]]
                model = kind(built, described["classes"], noise=described["noise"], horizon=horizon)
            else:
                names = "noise", "covariance", "horizon", "targets"
                model = Regressor(built, **{name: described[name] for name in names})
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: its model cannot be built ({error})") from error
    model.restore(path)
    for part in (model.net, model.likelihood, model.link):
        part.eval()
    return model
