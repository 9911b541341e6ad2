"""Train the paper's CNN on MNIST by inference alone, and look at what it knows and does not know.

    python examples/mnist_demo.py [--samples 60000] [--seed 0] [--out runs/demo]

One pass over the 60,000 images that come with the package; no gradient descent, no learning rate, no noise to
choose. Prints the result beside the paper's and draws three plots.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import torchtagi as tagi
from torchtagi import data, metrics, models

PAPER_ERROR = 1.88  # Table 1, e = 1
BATCH = 16
console = Console()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=60_000, help="training images, at most 60,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the plots and the model")
    options = parser.parse_args()
    if not BATCH <= options.samples <= 60_000:
        parser.error(f"--samples must lie between {BATCH} and 60000, got {options.samples}")

    train, test = (data.load("mnist", split).to("cpu", torch.channels_last) for split in ("train", "test"))
    order = data.epoch_order(len(train), options.seed, 0)[: options.samples]
    torch.manual_seed(options.seed)
    net = models.mnist_cnn().to(memory_format=torch.channels_last)
    tagi.use_relu_prior(net)
    tagi.match_prior(net, train.images[order[:BATCH]])
    likelihood = tagi.HierarchicalClassification(10, noise_std=0.01, learn_noise=True)
    posterior = tagi.Update(net)

    console.print(f"Training on {options.samples:,} digits, each seen once, {BATCH} at a time.")
    start = time.perf_counter()
    curve = train_once(net, likelihood, posterior, train, order)
    seconds = time.perf_counter() - start

    net.eval()
    likelihood.eval()
    prediction = predict(net, likelihood, test.images)
    measured = {
        "error": 100 * metrics.error_rate(prediction.probs, test.labels),
        "nll": metrics.nll(prediction.probs, test.labels),
        "ece": metrics.ece(prediction.probs, test.labels),
        "auroc_misclassification": metrics.auroc_misclassification(prediction.probs, test.labels),
    }
    show(measured, seconds, options.samples)
    options.out.mkdir(parents=True, exist_ok=True)
    plot(options.out, curve, prediction, test)
    tagi.save(options.out / "model.safetensors", net, likelihood, {"seed": options.seed, **measured})
    (options.out / "metrics.json").write_text(
        json.dumps({"samples": options.samples, "seconds": round(seconds, 1), **measured}, indent=1) + "\n"
    )
    console.print(f"Plots and the trained model are in [bold]{options.out}[/bold].")


def train_once(
    net: torch.nn.Module,
    likelihood: tagi.HierarchicalClassification,
    posterior: tagi.Update,
    train: data.ImageSet,
    order: torch.Tensor,
) -> list[tuple[int, float]]:
    """One pass; returns (images seen, error % over the last 2,000 before they were learned)."""
    curve: list[tuple[int, float]] = []
    recent: list[float] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(
            "{task.fields[speed]:5.0f} img/s  error {task.fields[error]:5.2f} %  α {task.fields[alpha]:.2f}"
        ),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("TAGI", total=len(order), speed=0.0, error=100.0, alpha=1.0)
        start, seen = time.perf_counter(), 0
        for x, y in data.batches(train, BATCH, order=order):
            z = net(x)
            recent.append((likelihood.predict(z).labels != y).float().mean().item())
            likelihood(z, y).backward()
            posterior.step()
            posterior.zero_grad()
            seen += len(x)
            if len(recent) == 125:
                curve.append((seen, 100 * sum(recent) / len(recent)))
                recent.clear()
            if curve and seen % (BATCH * 25) == 0:
                progress.update(
                    task,
                    completed=seen,
                    speed=seen / (time.perf_counter() - start),
                    error=curve[-1][1],
                    alpha=posterior.reports[0]["alpha"],
                )
        progress.update(task, completed=len(order))
    return curve


@torch.no_grad()
def predict(
    net: torch.nn.Module, likelihood: tagi.HierarchicalClassification, images: torch.Tensor
) -> tagi.ClassPrediction:
    parts = [likelihood.predict(net(x)) for x in images.split(1000)]
    probs, epistemic, aleatoric = (
        torch.cat([getattr(part, field) for part in parts]) for field in ("probs", "epistemic", "aleatoric")
    )
    return tagi.ClassPrediction(probs, epistemic, aleatoric)


def show(measured: dict[str, float], seconds: float, samples: int) -> None:
    table = Table(title="10,000 test digits")
    for heading in ("", "this run", "paper, one epoch"):
        table.add_column(heading, justify="left" if not heading else "right")
    table.add_row("error", f"{measured['error']:.2f} %", f"{PAPER_ERROR} %")
    table.add_row("negative log-likelihood", f"{measured['nll']:.3f}", "-")
    table.add_row("expected calibration error", f"{measured['ece']:.4f}", "-")
    table.add_row("AUROC, right over wrong answers", f"{measured['auroc_misclassification']:.3f}", "-")
    table.add_row("training images", f"{samples:,}", "60,000")
    table.add_row("training time", f"{seconds:.0f} s", "-")
    console.print(table)


def plot(out: Path, curve: list[tuple[int, float]], prediction: tagi.ClassPrediction, test: data.ImageSet) -> None:
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    axes.semilogy(*zip(*curve, strict=True), marker=".") if curve else None
    axes.set(xlabel="training images seen", ylabel="error on new images before learning them, %")
    axes.grid(alpha=0.3, which="both")
    figure.savefig(out / "learning.png", dpi=150)

    bins = metrics.reliability_bins(prediction.probs, test.labels)
    figure, axes = plt.subplots(figsize=(4.5, 4.5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, label="perfect")
    filled = bins.counts > 0
    axes.plot(bins.confidence[filled], bins.accuracy[filled], marker="o", label="TAGI")
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1), title="Reliability")
    axes.legend()
    figure.savefig(out / "reliability.png", dpi=150)

    doubtful = prediction.entropy.argsort(descending=True)[:24]
    figure, grid = plt.subplots(3, 8, figsize=(10, 5.2), layout="constrained")
    pictures = test.to_uint8(test.images[doubtful])
    for axes, picture, i in zip(grid.flat, pictures, doubtful.tolist(), strict=True):
        best = prediction.probs[i].argsort(descending=True)[:2].tolist()
        guess = " or ".join(f"{c} ({prediction.probs[i, c]:.0%})" for c in best)
        axes.imshow(picture[0], cmap="gray_r")
        axes.set_title(guess, fontsize=7.5)
        axes.set_xlabel(f"is {int(test.labels[i])}", fontsize=7.5)
        axes.set(xticks=[], yticks=[])
    figure.suptitle("The most uncertain test digits")
    figure.savefig(out / "uncertain.png", dpi=150)
    plt.close("all")


if __name__ == "__main__":
    main()
