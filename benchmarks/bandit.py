"""MNIST as a contextual bandit: a digit comes, one of ten arms is pulled, only the reward of that arm is seen.

    python benchmarks/bandit.py --seeds 3        # results/bandit.json and docs/figures/bandit.png

The reward is 1 for the arm of the digit's class and 0 for any other. Each pull is learned at once and only once:
batch 1, no replay, the network of Appendix B.1.1 for all. A method chooses the arm of the largest value; what
differs is where the values come from.

    tagi-greedy         the predicted means of a Regressor; arms that were not pulled are missing targets (NaN)
    tagi-thompson       draws from the predicted means and a share of the epistemic standard deviations
    adam-greedy         the outputs of a network trained by Adam, but at random in a share ε of the pulls
    dropout-thompson    the outputs of a network trained by Adam with dropout, one mask a pull
    neural-linear       draws from a Bayesian linear regression for each arm, on the last hidden layer of Adam's net

All learn the rewards as −1 and +1: an arm that was never pulled is then expected to be better than most, so that
even the greedy pull it some time. The runs are on the training half of MNIST. All methods are tuned on 5,000
pulls of the test half: TAGI's prior may be wider than rewards vary, because a pull tells a tenth of what a label
does, and Thompson sampling may draw from less than the whole standard deviation, because arms are drawn one by
one that share a network. What the output file already holds is not run again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import matplotlib
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

import torchtagi as tagi
from torchtagi.checkpoint import write_atomically
from torchtagi.experiments import data
from torchtagi.experiments.networks import mnist_cnn
from torchtagi.fitting import epoch_order

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[1]
ARMS, BLOCK = 10, 1000  # rewards are kept as sums over so many pulls
TUNING_PULLS, TUNING_SEED = 5000, 1000

Row = dict[str, Any]


class Agent(Protocol):
    def values(self, x: Tensor) -> Tensor:
        """Of the arms for an image (1, 1, 28, 28); the arm of the largest is pulled."""

    def learn(self, x: Tensor, arm: int, reward: float) -> None:
        """A reward of −1 or +1."""


class Tagi:
    """Greedy, or by Thompson sampling."""

    def __init__(self, prior_var: float, share: float = 0.0) -> None:
        self.net, self.prior_var, self.share = mnist_cnn(ARMS), prior_var, share
        self.model: tagi.Regressor | None = None

    def start(self, x: Tensor) -> tagi.Regressor:
        """At the first digit, to whose shades the prior is fitted."""
        tagi.calibrate_prior(self.net, x, self.prior_var)
        self.model = tagi.Regressor(self.net)
        # Rewards have a scale of 1 already; one found from the pulls would move for as long as these get better.
        self.model.scale_of_y.settled = True
        return self.model

    def values(self, x: Tensor) -> Tensor:
        prediction = (self.model or self.start(x)).predict(x)
        return prediction.mean[0] + self.share * prediction.epistemic[0].sqrt() * torch.randn(ARMS)

    def learn(self, x: Tensor, arm: int, reward: float) -> None:
        y = torch.full((1, ARMS), float("nan"))
        y[0, arm] = reward
        (self.model or self.start(x)).update(x, y)


class Adam:
    """ε-greedy; with dropout before the last two layers, by Thompson sampling."""

    def __init__(self, lr: float, epsilon: float = 0.0, dropout: float = 0.0) -> None:
        *trunk, hidden, relu, last = mnist_cnn(ARMS, layers=torch.nn)
        self.features = nn.Sequential(*trunk, nn.Dropout(dropout), hidden, relu, nn.Dropout(dropout))
        self.net, self.epsilon = nn.Sequential(self.features, last), epsilon
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr, foreach=True)

    @torch.no_grad()
    def values(self, x: Tensor) -> Tensor:
        return torch.rand(ARMS) if torch.rand(()) < self.epsilon else self.net(x)[0]

    def learn(self, x: Tensor, arm: int, reward: float) -> None:
        self.optimizer.zero_grad()
        (self.net(x)[0, arm] - reward).square().backward()
        self.optimizer.step()


class NeuralLinear(Adam):
    """r = φ(x)·w_a + e, e ~ N(0, noise_std²), w_a ~ N(0, I/precision) for each arm a; φ is from Adam's network."""

    def __init__(self, lr: float, noise_std: float, precision: float) -> None:
        super().__init__(lr)
        self.noise_var, width = noise_std**2, 150 + 1
        self.mean, self.cov = torch.zeros(ARMS, width), torch.eye(width).repeat(ARMS, 1, 1) / precision

    @torch.no_grad()
    def phi(self, x: Tensor) -> Tensor:
        return torch.cat([self.features(x)[0], torch.ones(1)])

    @torch.no_grad()
    def values(self, x: Tensor) -> Tensor:
        phi = self.phi(x)
        return self.mean @ phi + (self.cov @ phi @ phi).clamp_min(0).sqrt() * torch.randn(ARMS)

    @torch.no_grad()
    def condition(self, phi: Tensor, arm: int, reward: float) -> None:
        covariance = self.cov[arm] @ phi
        gain = covariance / (covariance @ phi + self.noise_var)
        self.mean[arm] += gain * (reward - self.mean[arm] @ phi)
        self.cov[arm] -= torch.outer(gain, covariance)

    def learn(self, x: Tensor, arm: int, reward: float) -> None:
        self.condition(self.phi(x), arm, reward)
        super().learn(x, arm, reward)


METHODS: dict[str, Callable[..., Agent]] = {
    "tagi-greedy": Tagi,
    "tagi-thompson": Tagi,
    "adam-greedy": Adam,
    "dropout-thompson": Adam,
    "neural-linear": NeuralLinear,
}
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "tagi-greedy": {"prior_var": (1.0, 3.0, 5.0, 8.0)},
    "tagi-thompson": {"prior_var": (3.0, 5.0, 8.0), "share": (0.2, 0.5)},
    "adam-greedy": {"lr": (1e-4, 3e-4, 1e-3), "epsilon": (0.0, 0.02)},
    "dropout-thompson": {"lr": (1e-4, 3e-4, 1e-3), "dropout": (0.25, 0.5)},
    "neural-linear": {"lr": (3e-4, 1e-3), "noise_std": (0.2, 0.6), "precision": (1.0,)},
}


class Bandit:
    """Digits one after another, in an order that the seed decides."""

    def __init__(self, images: Tensor, labels: Tensor, seed: int, pulls: int) -> None:
        order = epoch_order(len(images), seed, 0)[:pulls]
        self.images, self.labels = images[order], labels[order].tolist()

    def play(self, agent: Agent, title: str) -> list[int]:
        """The rewards of each block of pulls."""
        rewards: list[int] = []
        bar = tqdm(self.labels, title, unit=" pulls", mininterval=1.0, leave=False)
        for pull, label in enumerate(bar):
            x = self.images[pull : pull + 1]
            arm = int(agent.values(x).argmax())
            reward = int(arm == label)
            agent.learn(x, arm, 2.0 * reward - 1)
            if pull % BLOCK == 0:
                rewards.append(0)
                bar.set_postfix(reward=sum(rewards), refresh=False)
            rewards[-1] += reward
        return rewards


class Record:
    """The output file: cells of the tuning, and runs."""

    def __init__(self, path: Path, pulls: int) -> None:
        self.path = path
        self.content: Row = json.loads(path.read_text()) if path.exists() else {"tuning": [], "runs": []}
        self.content["pulls"] = self.content.get("pulls", pulls)
        if self.content["pulls"] != pulls:
            raise SystemExit(f"{path} holds runs of {self.content['pulls']} pulls; name another --out")
        asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
        self.commit = asked.stdout.strip()

    def run(self, kind: str, bandit: Callable[[], Bandit], method: str, seed: int, settings: Row) -> Row:
        """What the file holds of this run, or what it gives now."""
        key = {"method": method, "seed": seed, "settings": settings}
        for row in self.content[kind]:
            if key.items() <= row.items():
                return row
        torch.manual_seed(seed)
        start = time.perf_counter()
        rewards = bandit().play(METHODS[method](**settings), f"{kind} {method} {seed} {settings or ''}")
        row = {**key, "total": sum(rewards), "rewards": rewards}
        row |= {"seconds": round(time.perf_counter() - start, 1), "commit": self.commit}
        self.content[kind].append(row)
        lines = [f' "{name}": [\n  ' + ",\n  ".join(map(json.dumps, self.content[name])) + "\n ]" for name in KINDS]
        text = "{\n" + ",\n".join([f' "pulls": {self.content["pulls"]}', *lines]) + "\n}\n"
        write_atomically(self.path, text.encode())
        tqdm.write(f"{kind} {method} {seed} {settings}: {row['total']} in {row['seconds']} s")
        return row


KINDS = ("tuning", "runs")


def tuned(record: Record, method: str, half: data.ImageSet) -> Row:
    """The settings of the most rewards in a few pulls of digits that no run sees."""
    grid = GRIDS.get(method, {})
    cells = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if len(cells) == 1:
        return cells[0]

    def bandit() -> Bandit:
        return Bandit(half.images, half.labels, TUNING_SEED, TUNING_PULLS)

    rows = [record.run("tuning", bandit, method, TUNING_SEED, settings) for settings in cells]
    return dict(max(rows, key=lambda row: row["total"])["settings"])


LINES = {
    "tagi-greedy": ("TAGI, greedy", "#1f5fa8", 2.4),
    "tagi-thompson": ("TAGI, Thompson", "#e08a3c", 2.4),
    "adam-greedy": ("Adam, ε-greedy", "#666666", 1.2),
    "dropout-thompson": ("MC-dropout, Thompson", "#7a9a4e", 1.2),
    "neural-linear": ("neural-linear, Thompson", "#a884b8", 1.2),
}


def draw(content: Row, path: Path) -> None:
    """The mean reward of each block, a line a method."""
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for method, (label, colour, width) in LINES.items():
        runs = [row["rewards"] for row in content["runs"] if row["method"] == method]
        if not runs:
            continue
        means = [statistics.fmean(block) / BLOCK for block in zip(*runs, strict=True)]
        total = statistics.fmean(map(sum, runs))
        pulls = [BLOCK * (block + 0.5) for block in range(len(means))]
        axes.plot(pulls, means, color=colour, linewidth=width, label=f"{label}: {total:,.0f}", zorder=width)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set(xlim=(0, content["pulls"]), ylim=(0.5, 1), xlabel="pulls", ylabel="mean reward per pull")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(frameon=False, title=f"rewards in {content['pulls']:,} pulls", alignment="left", loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pulls", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "bandit.json")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "figures" / "bandit.png")
    options = parser.parse_args()
    torch.set_num_threads(1)
    halves = data.load_train_test("mnist")
    train, test = halves.train, halves.test
    std = train.images.std()
    for half in (train, test):
        half.images.div_(std)
    record = Record(options.out, options.pulls)
    for seed, method in itertools.product(range(options.seeds), options.methods):

        def bandit(seed: int = seed) -> Bandit:
            return Bandit(train.images, train.labels, seed, options.pulls)

        record.run("runs", bandit, method, seed, tuned(record, method, test))
    draw(record.content, options.figure)
    for method in options.methods:
        totals = [row["total"] for row in record.content["runs"] if row["method"] == method]
        print(f"{method:>17}: {statistics.fmean(totals):,.0f} rewards, {len(totals)} seeds")


if __name__ == "__main__":
    main()
