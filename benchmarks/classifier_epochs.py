"""How many epochs a small classifier should learn: errors and likelihoods on four tables of scikit-learn.

    python benchmarks/classifier_epochs.py results/ablation/classifier-epochs.jsonl

A row is a table and a number of epochs: the test error in % and the NLL of `TAGIClassifier`, its other arguments as
they are, over five folds, standardised by their training part.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from torchtagi.sklearn import TAGIClassifier

TABLES = {"iris": load_iris, "wine": load_wine, "breast-cancer": load_breast_cancer, "digits": load_digits}
EPOCHS = (1, 3, 5, 10, 20, 40)


def main(path: Path) -> None:
    torch.set_num_threads(1)
    with path.open("w") as file:
        for table, load in TABLES.items():
            X, y = load(return_X_y=True)
            for epochs in EPOCHS:
                errors, losses = [], []
                for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(X, y):
                    model = make_pipeline(StandardScaler(), TAGIClassifier(epochs=epochs, random_state=0))
                    log_probs = model.fit(X[train], y[train]).predict_log_proba(X[test])
                    errors.append(100 * np.mean(log_probs.argmax(1) != y[test]))
                    losses.append(-np.mean(log_probs[np.arange(len(test)), y[test]]))
                row = {"table": table, "epochs": epochs}
                row |= {"error": round(float(np.mean(errors)), 2), "nll": round(float(np.mean(losses)), 4)}
                file.write(json.dumps(row) + "\n")
                print(row, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
