"""Write docs/results.md from the runs recorded in results/: python benchmarks/results_page.py

The paper's tables, with our runs beside them. A number here is a row of some results/<name>/metrics.jsonl, or of
the evaluation.json beside it; what was not run says so. Two figures in docs/figures are drawn from the same files.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from torchtagi.experiments.report import plots
from torchtagi.experiments.runs.folder import IDENTITY, Row, Run, recorded

ROOT = Path(__file__).parent.parent
FIGURE = "figures/reliability.png"
ERRORS = "figures/cifar10-errors.png"
DRAWN_FROM = 5  # epochs: a shorter run is no curve
FEW = 10
NOT_RUN = "not run"
FIRST_EPOCH = (2_000, 5_000, 10_000, 20_000, 30_000, 40_000, 50_000)

# (network, heading, rows of the paper: method, error at e=1, error at e=E, E, B)
ERROR_TABLES = {
    "mnist": {
        "cnn": (
            "MNIST, CNN 32-64-150 (Table 1)",
            [("TAGI", 1.88, 0.64, 50, 16), ("backprop (Wan et al. 2013)", None, 0.67, 1000, 128)],
        )
    },
    "cifar10": {
        "3conv": (
            "CIFAR-10, three convolutions (Table 2)",
            [("TAGI", 44.3, 23.6, 50, 16), ("backprop (Wan et al. 2013)", None, 23.5, 150, 128)],
        ),
        "3conv-ln": (
            "CIFAR-10, three convolutions with layer norm (Table 2)",
            [("TAGI-LN", 41.4, 22.6, 50, 16), ("backprop-LN (Ren et al. 2016)", None, 27.9, 100, 100)],
        ),
        "3conv-bn": (
            "CIFAR-10, three convolutions with batch norm (Table 2)",
            [("TAGI-BN", 42.6, 22.0, 50, 16), ("backprop-BN (Ren et al. 2016)", None, 21.9, 100, 100)],
        ),
        "resnet18": (
            "CIFAR-10, ResNet18, augmented (Table 2)",
            [
                ("TAGI", 65.9, 13.8, 50, 16),
                ("backprop (Osawa et al. 2019)", None, 14.0, 160, 128),
                ("MC-dropout (Osawa et al. 2019)", None, 17.2, 161, 128),
                ("VOGN (Osawa et al. 2019)", None, 15.7, 161, 128),
            ],
        ),
        "resnet18half": (
            "CIFAR-10, ResNet18 with half the filters, augmented (Table 2)",
            [("TAGI", 65.9, 14.9, 50, 16)],
        ),
    },
}

# Table 3: method, NLL, ECE, AUROC, E
CALIBRATION = {
    "resnet18": [
        ("TAGI", 0.588, 0.143, 0.980, 50),
        ("backprop (Osawa et al. 2019)", 0.55, 0.082, 0.877, 160),
        ("MC-dropout (Osawa et al. 2019)", 0.51, 0.166, 0.768, 161),
        ("VOGN (Osawa et al. 2019)", 0.477, 0.04, 0.876, 161),
    ],
    "resnet18half": [("TAGI", 0.541, 0.046, 0.978, 50)],
}


class Curve:
    """The recorded runs of one network in one setting: seed → its rows by epoch."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.by_seed: dict[int, dict[int, Row]] = defaultdict(dict)
        for row in rows:
            self.by_seed[row["seed"]][row["epoch"]] = row

    @property
    def last(self) -> int:
        return max(max(epochs) for epochs in self.by_seed.values())

    def cell(self, epoch: int, name: str, digits: int) -> str:
        """The mean over the seeds that got so far, with their number and spread if there are several."""
        values = [epochs[epoch][name] for epochs in self.by_seed.values() if epoch in epochs]
        if not values:
            return NOT_RUN
        mean = f"{statistics.fmean(values):.{digits}f}"
        if len(values) == 1:
            return mean
        return f"{mean} ± {statistics.stdev(values):.{digits}f} ({len(values)} seeds)"


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def error_table(curves: dict[str, Curve], heading: str, paper: list[tuple]) -> list[str]:
    lines = [
        *(f"## {heading}", ""),
        "| | error % at e=1 | at e=E | E | batch | NLL at e=E | ECE | AUROC one-vs-rest | AUROC of mistakes |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for method, first, last, epochs, batch in paper:
        digits = 2 if last < 10 else 1
        cells = [number(first, digits), number(last, digits), str(epochs), str(batch), *"––––"]
        lines.append(f"| paper: {method} | {' | '.join(cells)} |")
    for setting in ("paper", "default"):
        name = {"paper": "ours, `--paper`", "default": "**ours, default**"}[setting]
        curve = curves.get(setting)
        lines.append(f"| {name} | {our_cells(curve)} |" if curve else f"| {name} |{' ' + NOT_RUN + ' |'}{' |' * 7}")
    others = sorted(set(curves) - {"paper", "default"})
    for setting in others:
        lines.append(f"| ours, {setting} | {our_cells(curves[setting])} |")
    return [*lines, ""]


def our_cells(curve: Curve) -> str:
    end = curve.last
    measures = [("nll", 4), ("ece", 4), ("auroc_ovr", 5), ("auroc_misclassification", 4)]
    cells = [curve.cell(1, "error", 2), curve.cell(end, "error", 2), str(end), "16"]
    return " | ".join(cells + [curve.cell(end, name, digits) for name, digits in measures])


def calibration_table(rows: dict[str, dict[str, Curve]]) -> list[str]:
    lines = [
        *("## Calibration on CIFAR-10 (Table 3)", ""),
        "AUROC here is one-vs-rest. The rivals' 0.77 to 0.88 beside TAGI's 0.98 look like another measure, that of",
        "telling right from wrong; ours of that kind is in the tables above.",
        "",
        "| network | method | NLL | ECE | AUROC one-vs-rest | E |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for network in ERROR_TABLES["cifar10"]:
        for method, nll, ece, auroc, epochs in CALIBRATION.get(network, []):
            lines.append(f"| {network} | paper: {method} | {nll} | {ece} | {auroc} | {epochs} |")
        curve = rows.get(network, {}).get("default")
        if curve is None:
            lines.append(f"| {network} | **ours, default** | {NOT_RUN} | | | |")
            continue
        cells = [curve.cell(curve.last, name, 4) for name in ("nll", "ece", "auroc_ovr")]
        lines.append(f"| {network} | **ours, default** | {' | '.join(cells)} | {curve.last} |")
    return [*lines, ""]


def first_epoch_table(networks: dict[str, dict[str, Curve]]) -> list[str]:
    """How the first epoch of the residual networks goes, seed by seed."""
    lines = [
        *("## The first epoch of the residual networks", ""),
        "Error in % of the training images before they were learned from, around the image of that number. (They",
        "are read by the network that learns, so runs with and without an average are alike here.)",
        "",
        "| network | seed | " + " | ".join(f"{images:,}" for images in FIRST_EPOCH) + " |",
        "|---|---:|" + "---:|" * len(FIRST_EPOCH),
    ]
    for network in ("resnet18", "resnet18half"):
        curves = [networks.get(network, {}).get(setting) for setting in ("default-noaverage", "default")]
        by_seed = {seed: rows[1] for curve in curves if curve for seed, rows in curve.by_seed.items()}
        seeds = sorted((seed, row["train_curve"]) for seed, row in by_seed.items())
        for seed, points in seeds:
            cells = [min(points, key=lambda point, at=at: abs(point[0] - at))[1] for at in FIRST_EPOCH]
            lines.append(f"| {network} | {seed} | " + " | ".join(f"{error:.1f}" for error in cells) + " |")
        if not seeds:
            lines.append(f"| {network} | {NOT_RUN} |" + " |" * len(FIRST_EPOCH))
    return [*lines, ""]


def foreign_table(evaluations: list[Row]) -> list[str]:
    """Whether uncertainty tells the task's images from those of another set."""
    lines = [
        *("## Foreign images and reliability", ""),
        "AUROC of telling foreign images from the test images by three measures of uncertainty, and the share of",
        "the test images that is taken for foreign where 95 % of the foreign ones are found, by entropy. The",
        f"figure leaves out bins of fewer than {FEW} images.",
        "",
        "| task | network | seed | E | foreign set | entropy | largest probability | epistemic variance | alarms |",
        "|---|---|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in evaluations:
        cells = [row["task"], row["network"], str(row["seed"]), str(row["epochs"]), row["out_of_distribution_set"]]
        found = row["out_of_distribution"]
        if found is None:
            cells += [NOT_RUN, "", "", ""]
        else:
            measures = ("entropy", "max_probability", "epistemic_variance")
            cells += [f"{found[measure]['auroc']:.4f}" for measure in measures]
            cells.append(f"{100 * found['entropy']['fpr_at_95_tpr']:.1f} %")
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", f"![Accuracy against confidence, one panel a network]({FIGURE})", ""] if evaluations else []


def draw_reliability(evaluations: list[Row], path: Path) -> None:
    """Accuracy against confidence, one panel a network; a bar is one standard error. Bins of a few images say
    nothing, and are left out."""
    columns = min(3, len(evaluations))
    lines = -(-len(evaluations) // columns)
    shared = {"sharex": True, "sharey": True}
    with plots.new_figure(3.2 * columns, 3.3 * lines, lines, columns, **shared) as (figure, panels):
        for panel in panels.flat[len(evaluations) :]:
            panel.axis("off")
        for panel, row in zip(panels.flat, evaluations, strict=False):
            bins = [entry for entry in row["reliability"] if entry["images"] >= FEW]
            confidence, accuracy = [[entry[key] for entry in bins] for key in ("confidence", "accuracy")]
            spread = [(entry["accuracy"] * (1 - entry["accuracy"]) / entry["images"]) ** 0.5 for entry in bins]
            panel.plot([0, 1], [0, 1], linewidth=1, color=plots.SOFT)
            panel.errorbar(confidence, accuracy, yerr=spread, marker="o", markersize=4, capsize=2)
            title = f"{row['task']} {row['network']}, E = {row['epochs']}\nECE {row['ece']:.4f}"
            panel.set_title(title, fontsize=9)
            panel.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="confidence", ylabel="accuracy")
            panel.label_outer()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(plots.as_png(figure))


def long_runs(networks: Mapping[str, Mapping[str, Curve]]) -> dict[str, Curve]:
    """Our default's runs on CIFAR-10 that are long enough to be drawn, in the order of the tables."""
    found = {
        name: networks[name]["default"] for name in ERROR_TABLES["cifar10"] if "default" in networks.get(name, {})
    }
    return {name: curve for name, curve in found.items() if curve.last >= DRAWN_FROM}


def draw_errors(long: Mapping[str, Curve], path: Path) -> None:
    """Test error against epochs of our default on CIFAR-10, the paper's two points beside each curve."""
    with plots.new_figure(7.0, 3.8) as (figure, ((panel,),)):
        for name, curve in long.items():
            rows = curve.by_seed[min(curve.by_seed)]
            (line,) = panel.plot(list(rows), [row["error"] for row in rows.values()], label=f"{name}, ours")
            _, first, last, epochs, _ = ERROR_TABLES["cifar10"][name][1][0]
            points = {"marker": "D", "linestyle": "none", "color": line.get_color(), "markersize": 6}
            panel.plot([1, epochs], [first, last], label=f"{name}, the paper", **points)
        panel.set(xlabel="epoch", ylabel="test error, %", xlim=(0, None))
        panel.legend(fontsize=8, ncols=2)
    path.write_bytes(plots.as_png(figure))


def rows_of(runs: Iterable[Run]) -> list[Row]:
    """Every epoch of every run, its lists too."""
    return [
        {**{key: run.config[key] for key in IDENTITY}, "method": run.method, **row}
        for run in runs
        for row in run.metrics()
    ]


def evaluations_of(runs: Iterable[Run]) -> list[Row]:
    """What is known of our default's runs after their last epoch: the longest run of each network."""
    longest: dict[tuple[str, str], Row] = {}
    for run in runs:
        found = run.evaluation()
        ours = run.method == "tagi" and run.config["setting"] == "default"
        if not ours or found is None or "reliability" not in found:
            continue
        key = (run.config["task"], run.config["network"])
        if key not in longest or found["epochs"] > longest[key]["epochs"]:
            longest[key] = {**{name: run.config[name] for name in IDENTITY}, **found}
    order = [(task, network) for task, networks in ERROR_TABLES.items() for network in networks]
    return [longest[key] for key in order if key in longest]


GAMES = {"infogan-mnist": "infoGAN, MNIST", "infogan-celeba": "infoGAN, CelebA", "gan-mnist": "GAN, MNIST"}
GAME_COLUMNS = {
    "accuracy": ("Q, real digits", ".3f"),
    "own_codes": ("digits with a code", ".0f"),
    "train_code_error": ("codes misread", ".3f"),
    "read_error": ("judge misreads, %", ".1f"),
    "frechet": ("Fréchet", ".2f"),
    "c1_slant": ("c₁, slant", ".2f"),
    "c1_width": ("c₁, width", ".2f"),
    "c2_slant": ("c₂, slant", ".2f"),
    "c2_width": ("c₂, width", ".2f"),
    "fake_as_fake": ("P, generated", ".2f"),
    "real_as_fake": ("P, real", ".2f"),
}


def played_in(runs: Iterable[Run]) -> dict[str, Row]:
    """The evaluations of games, by run."""
    found = {run.folder.name: run.evaluation() or {} for run in runs}
    return {name: evaluation for name, evaluation in found.items() if "neighbour_ratio" in evaluation}


def copying_line(found: Row) -> str:
    """What the evaluation of a game says about copies, and whose eyes its Fréchet distance is by."""
    return (
        f"Evaluated after {found['epochs']} epochs by {found['judge']}: Fréchet {found['frechet']:.2f}. "
        f"Generated images are {found['neighbour_ratio']:.2f} times as far from their nearest training image as "
        "held-out images are from theirs."
    )


def games(rows: list[Row], evaluations: Mapping[str, Row]) -> list[str]:
    """The GANs: every run after its first, every fifth and its last epoch, and what it draws in the end.
    `evaluations` are by run."""
    lines = [
        "## GANs (section 4)",
        "",
        "*Q, real digits*: Qnet's accuracy on real test digits, each code given to a digit (Hungarian); *digits",
        "with a code*: how many of the ten are mostly read as one code that mostly means them (the paper: 9).",
        "*Codes misread*: by Qnet in generated images during the epoch. *Judge*: an independent classifier that",
        "does not read the code's digit.",
        '*Slant, width*: correlation with the continuous codes. *P*: Pnet\'s probability of "generated".',
        "*Fréchet*: of the judge's features, for faces of the game's own Dnet, so that only evaluations by one and",
        "the same classifier compare. Digits are judged by an epoch of `tagi train mnist`, in `noaverage` runs by",
        "another one than in the others; `runs/cifar-3conv-bn-until1` is fifteen of `tagi train cifar10 --arch",
        "3conv-bn`. `codenoisestd2.0` and `codeweight1.0`: Qnet learned the classes of generated digits as well,",
        "and excused what they had become (docs/design.md).",
        "",
    ]
    for task, heading in GAMES.items():
        of_task: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
        for row in rows:
            if row["task"] == task:
                of_task[row["network"], row["setting"], row["seed"]].append(row)
        lines += [f"### {heading}", ""]
        if not of_task:
            lines += ["No run is recorded.", ""]
            continue
        columns = {
            name: c for name, c in GAME_COLUMNS.items() if any(name in r for v in of_task.values() for r in v)
        }
        lines += ["| run | epoch | " + " | ".join(head for head, _ in columns.values()) + " |"]
        lines += ["|---|" + "---:|" * (len(columns) + 1)]
        for (_, setting, seed), found in of_task.items():
            for row in found:
                if row["epoch"] == 1 or row["epoch"] % 5 == 0 or row is found[-1]:
                    cells = [format(row[name], form) if name in row else "–" for name, (_, form) in columns.items()]
                    lines.append(f"| {setting}, seed {seed} | {row['epoch']} | {' | '.join(cells)} |")
        lines.append("")
        for network, setting, seed in of_task:
            name = f"{task}-{network}-{setting}-seed{seed}"
            lines += [
                f"Drawn by {setting}, seed {seed}, a category a row where there is one:"
                if task == "infogan-mnist"
                else f"Drawn by {setting}, seed {seed}:",
                "",
                f"![drawn by {name}](../results/{name}/samples.png)",
                "",
            ]
            if name in evaluations:
                lines += [copying_line(evaluations[name]), ""]
    return lines


def curves_of(rows: Iterable[Row]) -> dict[str, dict[str, dict[str, Curve]]]:
    """TAGI's runs by task, network and setting; rivals have a page of their own."""
    found: dict[str, dict[str, dict[str, list[Row]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in rows:
        if row.get("method", "tagi") == "tagi":
            found[row["task"]][row["network"]][row["setting"]].append(row)
    return {
        task: {
            network: {name: Curve(of_setting) for name, of_setting in settings.items()}
            for network, settings in networks.items()
        }
        for task, networks in found.items()
    }


def page(
    rows: list[Row],
    evaluations: list[Row],
    played: Mapping[str, Row] | None = None,
) -> str:
    """`played` are evaluations of games by run."""
    grouped = curves_of(rows)
    lines = [
        "# Results",
        "",
        "Written by `python benchmarks/results_page.py` from the logs in `results/`; `tagi results` lists them.",
        "Errors on the test set in %. `--paper` is the paper's setting (rule paper, σ_V from 1 by 0.975 an epoch).",
        "The default learns its noise, uses the coherent rule, and varies images from the second epoch on; the",
        "paper varies them for ResNet18 only. Other settings are named after what differs from the default:",
        "`nosharing` does not count that convolutions share their weights, `sharingalways` counts it in every",
        "epoch and without the two bounds that it has now (docs/design.md), the default in the first epoch only;",
        "`spread0.0` leaves hidden prior means at He's scale; `noaverage` predicts with the last posterior, the",
        "default with the mean of about 500, which is all that differs: learning knows nothing of it. The runs on",
        "CIFAR-10 with an average were made with convolutions in bfloat16 on one core.",
        "",
    ]
    for task, networks in ERROR_TABLES.items():
        for network, (heading, paper) in networks.items():
            lines += error_table(grouped.get(task, {}).get(network, {}), heading, paper)
    if long_runs(grouped.get("cifar10", {})):
        lines += [f"![Test error against epochs on CIFAR-10]({ERRORS})", ""]
    lines += calibration_table(grouped.get("cifar10", {}))
    lines += foreign_table(evaluations)
    lines += first_epoch_table(grouped.get("cifar10", {}))
    lines += games(rows, played or {})
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    runs = recorded(ROOT / "results")
    evaluations = evaluations_of(runs)
    played = played_in(runs)
    (ROOT / "docs" / "results.md").write_text(page(rows_of(runs), evaluations, played))
    if evaluations:
        draw_reliability(evaluations, ROOT / "docs" / FIGURE)
    if long := long_runs(curves_of(rows_of(runs)).get("cifar10", {})):
        draw_errors(long, ROOT / "docs" / ERRORS)
