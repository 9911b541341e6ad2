"""Active learning: a model that says what it does not know chooses which digits are worth a label.

    python benchmarks/active.py     # finished runs in results/active.json are not run again

The network of Appendix B.1.1 starts with 20 random labels of MNIST. Each round learns all labels so far, then
chooses the next ones among 5,000 digits, the same for all methods of a seed: at random, by the entropy of the
predicted class, or by the epistemic part of its variance. The error is that on the 10,000 test digits. What counts
is how many labels it takes to come to an error of 5 %, interpolated between rounds. Random choice goes on
to it, or to 1,000 labels.

Batches are drawn with probabilities proportional to the scores. At seed 0 the digits of the largest scores alone
(`--draw greedy`) taught less than random ones up to 100 labels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib
import torch
from torch import Tensor
from tqdm import tqdm

import torchtagi as tagi
from torchtagi.checkpoint import write_atomically
from torchtagi.experiments import data
from torchtagi.experiments.networks import mnist_cnn

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
LABELS = [20, 40, 60, 80, 100, 130, 160, 200, 240, 280, 330, 380, 440, 500]
MORE_LABELS = [600, 700, 850, 1000]  # of random choice where it has not had the target error by then
POOL = 5_000
SHOWN, MAX_EPOCHS = 10_000, 100  # samples a round, repeats included
TARGET = 5.0  # % error
SETTINGS = {"labels": LABELS, "more_labels": MORE_LABELS, "pool": POOL, "shown": SHOWN, "max_epochs": MAX_EPOCHS}
METHODS = {"random": "#777777", "entropy": "#1f5fa8", "epistemic": "#e08a3c"}
NAMES = {"random": "at random", "entropy": "by entropy", "epistemic": "by epistemic variance"}

Run = dict[str, Any]


def scores(method: str, model: tagi.Classifier, x: Tensor) -> Tensor:
    """How much a label of each input is worth."""
    if method == "random":
        return torch.ones(len(x))
    prediction = model.predict(x)
    return prediction.entropy if method == "entropy" else prediction.epistemic.sum(1)


def chosen(score: Tensor, count: int, draw: str, generator: torch.Generator) -> Tensor:
    """The largest scores, or some drawn with probabilities proportional to them."""
    if draw == "greedy":
        return score.topk(count).indices
    return torch.multinomial(score, count, generator=generator)


def learned(x: Tensor, y: Tensor, seed: int) -> tagi.Classifier:
    """A new model of all labels so far."""
    torch.manual_seed(10_000 * seed + len(x))
    model = tagi.Classifier(mnist_cnn(10), classes=10)
    epochs = min(MAX_EPOCHS, max(1, round(SHOWN / len(x))))
    model.fit((x, y), epochs=epochs, augment=data.augment_shift, progress=False)
    return model


def rounds(method: str) -> list[int]:
    return LABELS + MORE_LABELS if method == "random" else LABELS


def errors_by_round(kind: Run, digits: data.TrainTest, bar: tqdm) -> list[float]:
    train, test = digits.train, digits.test
    generator = torch.Generator().manual_seed(kind["seed"])
    order = torch.randperm(len(train.images), generator=generator)
    known, pool = order[: LABELS[0]], order[LABELS[0] : LABELS[0] + POOL]
    errors: list[float] = []
    model: tagi.Classifier | None = None
    for labels in rounds(kind["method"]):
        if model is not None:
            score = scores(kind["method"], model, train.images[pool])
            new = chosen(score, labels - len(known), kind["draw"], generator)
            known = torch.cat([known, pool[new]])
            pool = pool[~torch.isin(pool, known)]
        model = learned(train.images[known], train.labels[known], kind["seed"])
        errors.append(round(model.evaluate(test.images, test.labels)["error"], 2))
        bar.set_postfix_str(f"{kind['method']}, seed {kind['seed']}: {labels} labels, error {errors[-1]:.2f} %")
        bar.update()
        if labels >= LABELS[-1] and min(errors) <= TARGET:
            break
    return errors


def labels_to(target: float, run: Run) -> float:
    """Where the error first comes down to the target, on straight lines between rounds; infinite if it does not."""
    for (labels, error), (more, less) in pairwise(zip(run["labels"], run["errors"], strict=True)):
        if less <= target:
            return labels + (more - labels) * (error - target) / (error - less)
    return float("inf")


def table(runs: list[Run]) -> str:
    """Labels to the target error for each method, seed by seed, and their ratio to those of random choice."""
    needed = {run["seed"]: labels_to(TARGET, run) for run in runs if run["method"] == "random"}
    lines = [f"labels to {TARGET:g} % error, by seed, their mean and its ratio to random; error at {LABELS[-1]}"]
    for name in dict.fromkeys(name_of(run) for run in runs):
        same = [run for run in runs if name_of(run) == name and run["seed"] in needed]
        found = [labels_to(TARGET, run) for run in same]
        if not same:
            continue
        ratio = statistics.fmean(found) / statistics.fmean(needed[run["seed"]] for run in same)
        last = statistics.fmean(run["errors"][len(LABELS) - 1] for run in same)
        by_seed = " ".join(f"{labels:4.0f}" for labels in found)
        lines.append(f"{name:>27}: {by_seed} | {statistics.fmean(found):4.0f} | {ratio:.2f} | {last:.2f} %")
    return "\n".join(lines)


def name_of(run: Run) -> str:
    return f"{run['method']}, {run['draw']}"


def draw_picture(runs: list[Run], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for method, colour in METHODS.items():
        same = [run for run in runs if run["method"] == method]
        if not same:
            continue
        by_round = list(zip(*(run["errors"] for run in same), strict=False))  # as far as all of them went
        labels = same[0]["labels"][: len(by_round)]
        axes.fill_between(labels, list(map(min, by_round)), list(map(max, by_round)), color=colour, alpha=0.2, lw=0)
        axes.plot(labels, list(map(statistics.fmean, by_round)), "o-", ms=3, color=colour, label=NAMES[method])
    axes.axhline(TARGET, color="#333333", lw=0.8, ls=":")
    axes.set_yscale("log")
    ticks = [1, 2, 3, 5, 10, 20, 50]
    axes.set_yticks(ticks, [f"{tick} %" for tick in ticks])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlim=(0, None), ylim=(1, 70), xlabel="labels", ylabel="test error")
    axes.legend(frameon=False, title="labels chosen", alignment="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--draw", choices=("weighted", "greedy"), default="weighted", help="labels by their scores")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "active.json")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "figures" / "active.png")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    saved = json.loads(options.out.read_text()) if options.out.exists() else {"settings": SETTINGS, "runs": []}
    if saved["settings"] != SETTINGS:
        parser.error(f"{options.out} has runs of other settings: name another file with --out")
    runs: list[Run] = saved["runs"]
    digits = data.load_train_test("mnist")
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    draws = {method: "weighted" if method == "random" else options.draw for method in options.methods}
    kinds = [{"method": method, "draw": draw} for method, draw in draws.items()]
    missing = [kind | {"seed": seed} for seed in options.seeds for kind in kinds]
    missing = [kind for kind in missing if not any(kind.items() <= run.items() for run in runs)]
    with tqdm(total=sum(len(rounds(kind["method"])) for kind in missing), unit=" rounds") as bar:
        for kind in missing:
            start = time.perf_counter()
            errors = errors_by_round(kind, digits, bar)
            seconds = round(time.perf_counter() - start, 1)
            run = {**kind, "labels": rounds(kind["method"])[: len(errors)], "errors": errors, "seconds": seconds}
            runs.append({**run, "commit": asked.stdout.strip()})
            write_atomically(options.out, (json.dumps(saved, indent=1) + "\n").encode())
    print(table(runs))
    draw_picture([run for run in runs if any(kind.items() <= run.items() for kind in kinds)], options.picture)


if __name__ == "__main__":
    main()
