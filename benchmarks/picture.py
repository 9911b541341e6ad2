"""The pictures of the README and of docs/pictures.md. `python benchmarks/picture.py [NAME…]`, all unless given."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn

import torchtagi as tagi

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Ellipse

FOLDER = Path(__file__).parents[1] / "docs" / "figures"
INK, MEAN, WEIGHTS, NOISE, TRUTH = "#333333", "#1f5fa8", "#e08a3c", "#9fc3e6", "#2a8a57"


def perceptron(inputs: int, width: int, activation: type[nn.Module], outputs: int = 1) -> nn.Sequential:
    layers = (nn.Linear(inputs, width), activation(), nn.Linear(width, width), activation())
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def draw_bands(axes: Any, grid: Tensor, prediction: Any) -> None:
    """Mean, two standard deviations, and what of them is epistemic."""
    at, mean, std = grid[:, 0], prediction.mean[:, 0], prediction.std[:, 0]
    epistemic = prediction.epistemic[:, 0].sqrt()
    axes.fill_between(at, mean - 2 * std, mean + 2 * std, color=NOISE, alpha=0.5, label="± 2 std")
    label = "of it epistemic"
    axes.fill_between(at, mean - 2 * epistemic, mean + 2 * epistemic, color=WEIGHTS, alpha=0.6, label=label)
    axes.plot(at, mean, color=MEAN, label="mean")
    axes.spines[["top", "right"]].set_visible(False)


def regression() -> plt.Figure:
    """A regression that knows where it has seen data."""
    torch.manual_seed(0)
    x = 5 * torch.rand(300, 1) - 2.5
    y = torch.sin(1.5 * x) + 0.15 * torch.randn_like(x)
    model = tagi.Regressor(perceptron(1, 20, nn.Tanh))
    model.fit((x, y), epochs=20)
    grid = torch.linspace(-5, 5, 400)[:, None]
    figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    draw_bands(axes, grid, model.predict(grid))
    axes.scatter(x, y, s=8, color=INK, label="data", zorder=3)
    axes.set(xlim=(-5, 5), ylim=(-4.5, 4.5), xlabel="x", ylabel="y")
    axes.legend(frameon=False, ncols=4, loc="upper center", fontsize=9)
    return figure


def noise_std(x: Tensor) -> Tensor:
    return 0.05 + 0.3 * torch.sigmoid(3 * x)


def bands() -> plt.Figure:
    """Noise that grows with x and a gap in the data; a noise that is one number, and one for each input."""
    torch.manual_seed(0)
    x = torch.cat([4 * torch.rand(200, 1) - 4, 2 * torch.rand(200, 1) + 2])
    y = torch.sin(1.5 * x) + noise_std(x) * torch.randn_like(x)
    grid = torch.linspace(-6, 6, 400)[:, None]
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
    for axes, noise in zip(panels, ("learned", "predicted"), strict=True):
        model = tagi.Regressor(perceptron(1, 20, nn.Tanh), noise=noise)
        model.fit((x, y), epochs=50)
        draw_bands(axes, grid, model.predict(grid))
        true_mean = torch.sin(1.5 * grid)
        for side in (-2, 2):
            edge = (true_mean + side * noise_std(grid))[:, 0]
            axes.plot(grid[:, 0], edge, color=TRUTH, lw=0.9, ls=":", label="true ± 2 std" if side > 0 else None)
        axes.scatter(x, y, s=4, color=INK, label="data", zorder=3, linewidths=0)
        axes.set(xlim=(-6, 6), ylim=(-4, 4), xlabel="x", title=f'noise="{noise}"')
    panels[0].set_ylabel("y")
    panels[0].legend(frameon=False, ncols=2, loc="upper left", fontsize=8)
    return figure


def moons() -> plt.Figure:
    """Two classes: what they are, and how unsure that is."""
    torch.manual_seed(0)
    points, labels = make_moons(300, noise=0.15, random_state=0)
    x, y = torch.tensor(points).float(), torch.tensor(labels)
    model = tagi.Classifier(perceptron(2, 50, nn.ReLU, 2), classes=2)
    model.fit((x, y), epochs=10)
    first, second = torch.meshgrid(torch.linspace(-4, 5, 120), torch.linspace(-4, 4.5, 120), indexing="xy")
    prediction = model.predict(torch.stack([first.flatten(), second.flatten()], 1))
    maps = {
        "probability of the red class": (prediction.probs[:, 1], "RdBu_r", 1.0),
        "entropy": (prediction.entropy, "viridis", math.log(2)),
        "epistemic std of the probability": (prediction.epistemic[:, 1].sqrt(), "viridis", 0.5),
    }
    figure, panels = plt.subplots(1, 3, figsize=(10.5, 3.2), sharey=True, layout="constrained")
    for axes, (title, (values, colours, top)) in zip(panels, maps.items(), strict=True):
        levels = torch.linspace(0, top, 21)
        picture = axes.contourf(first, second, values.view_as(first).clamp(0, top), levels, cmap=colours)
        figure.colorbar(picture, ax=axes, ticks=levels[::5].tolist(), format="%.2f")
        axes.scatter(
            x[:, 0], x[:, 1], s=7, c=["#b2182b" if label else "#2166ac" for label in labels], ec="w", lw=0.2
        )
        axes.set_title(title, fontsize=10)
    return figure


def surface(x: Tensor) -> Tensor:
    return torch.sin(1.5 * x[:, :1]) + 0.5 * x[:, 1:] ** 2 - 0.3 * x[:, :1] * x[:, 1:]


def inverse() -> plt.Figure:
    """Which input gives a wanted output: Gauss–Newton by the messages to an uncertain input."""
    torch.manual_seed(0)
    x = 4 * torch.rand(1000, 2) - 2
    y = surface(x) + 0.05 * torch.randn(1000, 1)
    learning = tagi.convert(perceptron(2, 50, nn.ReLU))
    tagi.calibrate_prior(learning, x[:16])
    likelihood, update = tagi.Regression(noise_std=0.05), tagi.Update(learning)
    average = tagi.Average(learning)
    for rows in torch.randperm(len(x)).repeat(5).split(16):
        tagi.condition(learning, likelihood, update, x[rows], y[rows])
        average.follow()
    net = average.net

    wanted, prior_std = 1.5, 0.5
    start = torch.tensor([[-0.6, 0.2]])
    starts = torch.cat([start, start + prior_std * torch.randn(150, 2)])
    path, noise = [starts], 0.0
    for noise in [1.0] * 40 + [0.05]:  # a large noise makes short steps; the last one says how sure the answer is
        guess = tagi.Gaussian(path[-1].clone(), torch.full_like(starts, prior_std**2)).requires_grad_()
        tagi.Regression(noise)(net(guess), torch.full((len(starts), 1), wanted)).backward()
        found = guess.posterior()
        path.append(found.mean)

    first, second = torch.meshgrid(torch.linspace(-2, 2, 120), torch.linspace(-2, 2, 120), indexing="xy")
    grid = torch.stack([first.flatten(), second.flatten()], 1)
    with torch.no_grad():
        learned = net(grid).mean.view_as(first)
        print("outputs along the path:", [round(float(net(at[:1]).mean), 3) for at in path])
        # the same answer with all correlations, for comparison
        at = path[-2][:1]
        slope = (net(at + 0.01 * torch.eye(2)).mean - net(at - 0.01 * torch.eye(2)).mean)[:, 0] / 0.02
        output_var = prior_std**2 * slope.square().sum() + net(at).var[0, 0] + noise**2
        joint = prior_std**2 * torch.eye(2) - prior_std**4 * torch.outer(slope, slope) / output_var
        print("std by posterior()", found.std[0].tolist(), "with correlations", joint.diagonal().sqrt().tolist())
    figure, axes = plt.subplots(figsize=(5.8, 5.4), layout="constrained")
    filled = axes.contourf(first, second, learned, levels=16, cmap="Greys", alpha=0.6)
    figure.colorbar(filled, ax=axes, label="learned output")
    axes.contour(first, second, learned, levels=[wanted], colors=WEIGHTS, linewidths=2)
    true = surface(grid).view_as(first)
    axes.contour(first, second, true, levels=[wanted], colors=TRUTH, linewidths=1, linestyles=":")
    axes.scatter(*path[-1][1:].T, s=5, color=INK, label="found from draws of the prior", zorder=3)
    steps = torch.cat([at[:1] for at in path])
    axes.plot(*steps.T, "o-", color=MEAN, ms=3, lw=1, label="steps from the guess")
    centres = (
        ("the guess, ± 2 std", steps[0], [prior_std] * 2, "--"),
        ("the answer, ± 2 std", steps[-1], found.std[0], "-"),
    )
    for label, centre, std, style in centres:
        width, height = (4 * float(s) for s in std)
        axes.add_patch(Ellipse(centre.tolist(), width, height, fill=False, ec=MEAN, ls=style, lw=1.3, label=label))
    (small, large), axis = torch.linalg.eigh(joint)
    turn = math.degrees(math.atan2(axis[1, 1], axis[0, 1]))
    label = "with correlations, ± 2 std"
    size = 4 * math.sqrt(large), 4 * math.sqrt(small)
    axes.add_patch(Ellipse(steps[-1].tolist(), *size, angle=turn, fill=False, ec=TRUTH, lw=1.3, label=label))
    axes.plot([], [], color=WEIGHTS, lw=2, label=f"output {wanted}, learned")
    axes.plot([], [], color=TRUTH, lw=1, ls=":", label="and true")
    figure.legend(fontsize=8, loc="outside lower center", ncols=2, frameon=False)
    axes.set(xlabel="first input", ylabel="second input", xlim=(-2, 2), ylim=(-2, 2))
    return figure


PICTURES: dict[str, Callable[[], plt.Figure]] = {
    "regression": regression,
    "bands": bands,
    "moons": moons,
    "inverse": inverse,
}


def main(names: list[str]) -> None:
    for name in names or PICTURES:
        PICTURES[name]().savefig(FOLDER / f"{name}.png", dpi=110 if name == "regression" else 90)


if __name__ == "__main__":
    main(sys.argv[1:])
