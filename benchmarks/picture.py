"""The README's picture: a regression that knows where it has seen data. `python benchmarks/picture.py`"""

from __future__ import annotations

from pathlib import Path

import matplotlib
import torch

import torchtagi as tagi

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FILE = Path(__file__).parents[1] / "docs" / "figures" / "regression.png"
INK, MEAN, WEIGHTS, NOISE = "#333333", "#1f5fa8", "#e08a3c", "#9fc3e6"


def main() -> None:
    torch.manual_seed(0)
    x = 5 * torch.rand(300, 1) - 2.5
    y = torch.sin(1.5 * x) + 0.15 * torch.randn_like(x)
    net = torch.nn.Sequential(
        *(torch.nn.Linear(1, 50), torch.nn.ReLU(), torch.nn.Linear(50, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1))
    )
    model = tagi.Regressor(net)
    model.fit((x, y), epochs=20)
    grid = torch.linspace(-5, 5, 400)[:, None]
    prediction = model.predict(grid)
    mean, std = prediction.mean[:, 0], prediction.std[:, 0]
    epistemic = prediction.epistemic[:, 0].sqrt()
    figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    axes.fill_between(grid[:, 0], mean - 2 * std, mean + 2 * std, color=NOISE, alpha=0.5, label="± 2 std")
    label = "of it epistemic"
    axes.fill_between(grid[:, 0], mean - 2 * epistemic, mean + 2 * epistemic, color=WEIGHTS, alpha=0.6, label=label)
    axes.plot(grid[:, 0], mean, color=MEAN, label="mean")
    axes.scatter(x, y, s=8, color=INK, label="data", zorder=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlim=(-5, 5), ylim=(-4.5, 4.5), xlabel="x", ylabel="y")
    axes.legend(frameon=False, ncols=4, loc="upper center", fontsize=9)
    figure.savefig(FILE, dpi=110)


if __name__ == "__main__":
    main()
