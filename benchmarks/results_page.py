"""Write docs/results.md from the runs recorded in results/: python benchmarks/results_page.py

The paper's tables, with our runs beside them. A number here is a row of some results/<name>/<seed>/metrics.jsonl,
or of the evaluation.json beside it; what was not run says so. Two figures in docs/figures are drawn from them.
"""

from __future__ import annotations

import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from torchtagi.experiments.runs.folder import Row, Run, recorded

ROOT = Path(__file__).parent.parent
RELIABILITY = "figures/reliability.png"
ERRORS = "figures/cifar10-errors.png"
DRAWN_FROM = 5  # epochs: a shorter run is no curve
FEW = 10  # images: a bin of fewer says nothing
NOT_RUN = "not run"

# task → network → rows of the paper's Tables 1, 2 and 3: method, E, error after one epoch and after E, NLL, ECE
PAPER: dict[str, dict[str, list[tuple]]] = {
    "mnist": {"cnn": [("TAGI", 50, 1.88, 0.64, None, None), ("backprop¹", 1000, None, 0.67, None, None)]},
    "cifar10": {
        "3conv": [("TAGI", 50, 44.3, 23.6, None, None), ("backprop¹", 150, None, 23.5, None, None)],
        "3conv-ln": [("TAGI", 50, 41.4, 22.6, None, None), ("backprop²", 100, None, 27.9, None, None)],
        "3conv-bn": [("TAGI", 50, 42.6, 22.0, None, None), ("backprop²", 100, None, 21.9, None, None)],
        "resnet18": [
            ("TAGI", 50, 65.9, 13.8, 0.588, 0.143),
            ("backprop³", 160, None, 14.0, 0.55, 0.082),
            ("MC-dropout³", 161, None, 17.2, 0.51, 0.166),
            ("VOGN³", 161, None, 15.7, 0.477, 0.04),
        ],
        "resnet18half": [("TAGI", 50, 65.9, 14.9, 0.541, 0.046)],
    },
}
HEADINGS = {"mnist": "MNIST (Table 1)", "cifar10": "CIFAR-10 (Tables 2 and 3)"}
EARLIER = "earlier"
"""Runs that do not name their commit."""
SETTINGS = {
    "paper": "ours, `--paper`",
    "default": "**ours, default**",
    EARLIER: "ours, classes in a tree",
}
INTRODUCTION = """
Written by `python benchmarks/results_page.py` from the logs in `results/`; `tagi results` lists them. Errors
are those on the test set, E is the number of epochs; of several seeds there are mean ± standard deviation
(seeds). Batches of 16. `--paper` is the paper's setting: its update rule, and σ_V from 1 by a factor of 0.975
an epoch. The default is that of `tagi.Classifier`, with images shifted, or cropped and mirrored, from the
second epoch on; the paper augments images for ResNet18 only. *Classes in a tree*: our default before each class was
observed against the rest ([maths.md](maths.md#noise-and-link)), with a prior that had settings for each task.
Those on CIFAR-10 were made with convolutions in bfloat16, on one core; configurations name their commit.
ResNet18half was to learn for 16 epochs and was stopped before their end. The runs of MNIST's CNN and of 3conv-bn by
default have no second form of the link yet ([maths.md](maths.md#noise-and-link)); 3conv with the first form had
16.47 %, NLL 0.530 and ECE 0.022.
[baselines.md](baselines.md) compares with other methods.
"""
QUOTED = "Quoted by the paper: ¹ Wan et al. 2013, ² Ren et al. 2016, ³ Osawa et al. 2019."
UNCERTAINTY = f"""
AUROC of telling misclassified test images from the others by the largest probability, and out-of-distribution (OOD)
images from test images by entropy and by epistemic variance. *False alarms*: share of the test images above the
entropy that 95 % of the OOD images exceed. The figure leaves out bins of fewer than {FEW} images.
"""
GANS = {
    "infogan-mnist": (
        "infoGAN, MNIST",
        """*Q*: accuracy of Qnet on real test digits, each code assigned to a digit. *Own code*: how many of the ten
        digits have a code of their own (the paper: 9). *Judge*: share of generated digits that an independent
        classifier does not read as their code's digit. *Slant, width*: largest correlation with a continuous code.
        *Fréchet*: distance of the judge's features.""",
        ("Q", "own code", "judge, %", "slant, width", "Fréchet"),
    ),
    "infogan-celeba": (
        "infoGAN, CelebA",
        """*Codes*: share of categorical codes that Qnet misclassifies in generated images. *P*: probability of
        "generated" that Pnet gives to generated and to real images. *Fréchet*: by the features of the GAN's own
        Dnet, which changes. Drawn and measured by the last networks, not by their average.""",
        ("codes", "P, generated", "P, real", "Fréchet"),
    ),
}
FIGURES = {
    "infogan-mnist": {
        "ten digits, slanted by one continuous code": "figures/infogan-digits.png",
        "ten digits, made thinner by the other": "figures/infogan-width.png",
    },
    "infogan-celeba": {"four faces, one categorical code varied": "figures/infogan-faces-code.png"},
}
COPIES = """
Evaluated by a classifier of CIFAR-10 (`3conv-bn`): Fréchet {frechet:.2f}. Generated images are
{neighbour_ratio:.2f} times as far from their nearest training image as held-out images are from theirs.
"""


class Curve:
    """The recorded runs of one network in one setting: seed → its rows by epoch."""

    def __init__(self) -> None:
        self.by_seed: dict[int, dict[int, Row]] = {}

    @property
    def last(self) -> int:
        return max(max(rows) for rows in self.by_seed.values())

    def cell(self, epoch: int, name: str, digits: int) -> str:
        """The mean over the seeds that got so far, with their number and spread if there are several."""
        values = [rows[epoch][name] for rows in self.by_seed.values() if epoch in rows]
        mean = f"{statistics.fmean(values):.{digits}f}"
        return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f} ({len(values)})"


Curves = dict[str, dict[str, Curve]]


def setting_of(run: Run) -> str:
    setting = str(run.config["setting"])
    return EARLIER if setting == "default" and "commit" not in run.config["versions"] else setting


def curves_of(runs: Iterable[Run], task: str) -> Curves:
    """TAGI's runs of a task by network and setting."""
    found: Curves = defaultdict(lambda: defaultdict(Curve))
    for run in runs:
        if run.config["task"] == task and run.method == "tagi":
            rows = {row["epoch"]: row for row in run.metrics()}
            found[run.config["network"]][setting_of(run)].by_seed[run.config["seed"]] = rows
    return found


def table(head: Iterable[str], rows: Iterable[Iterable[str]], texts: int = 1) -> list[str]:
    """Markdown; the first `texts` columns are words, the others numbers."""
    head = list(head)
    rule = "|" + "---|" * texts + "---:|" * (len(head) - texts)
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows), ""]


def prose(text: str) -> list[str]:
    return [*textwrap.wrap(" ".join(text.split()), 118, break_on_hyphens=False), ""]


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def error_section(task: str, curves: Curves) -> list[str]:
    rows = []
    for network, of_paper in PAPER[task].items():
        for method, epochs, first, last, nll, ece in of_paper:
            digits = 2 if last < 10 else 1
            cells = [number(first, digits), number(last, digits), number(nll, 3), number(ece, 3)]
            rows.append([network, f"paper: {method}", str(epochs), *cells])
        settings = curves.get(network, {})
        for setting in ("default", *sorted(settings.keys() - {"default"})):
            name = SETTINGS.get(setting, f"ours, {setting}")
            rows.append([network, name, *(our_cells(settings[setting]) if setting in settings else not_run())])
    head = ("network", "method", "E", "error % after 1", "after E", "NLL", "ECE")
    return [f"## {HEADINGS[task]}", "", *table(head, rows, texts=2)]


def our_cells(curve: Curve) -> list[str]:
    end = curve.last
    return [
        *(str(end), curve.cell(1, "error", 2), curve.cell(end, "error", 2)),
        *(curve.cell(end, "nll", 4), curve.cell(end, "ece", 4)),
    ]


def not_run() -> list[str]:
    return [NOT_RUN, *[""] * 4]


def evaluations_of(runs: Iterable[Run]) -> list[Row]:
    """What is known of our default's runs after their last epoch: the longest run of each network."""
    longest: dict[tuple[str, str], Row] = {}
    for run in runs:
        found = run.evaluation()
        key = (run.config["task"], run.config["network"])
        if run.method != "tagi" or run.config["setting"] != "default" or not found or "reliability" not in found:
            continue
        if key not in longest or found["epochs"] > longest[key]["epochs"]:
            note = " (tree)" if setting_of(run) == EARLIER else ""
            longest[key] = {"task": key[0], "network": key[1], "note": note, **found}
    order = [(task, network) for task, networks in PAPER.items() for network in networks]
    return [longest[key] for key in order if key in longest]


def evaluation_section(evaluations: list[Row]) -> list[str]:
    """Whether uncertainty tells errors, and images of another set, from the rest."""
    rows = []
    for row in evaluations:
        found = row["out_of_distribution"]
        measures = ("entropy", "epistemic_variance")
        outside = [f"{found[measure]['auroc']:.4f}" for measure in measures] if found else [NOT_RUN, ""]
        alarms = f"{100 * found['entropy']['fpr_at_95_tpr']:.1f} %" if found else ""
        errors = f"{row['auroc_misclassification']:.4f}"
        name = f"{row['task']} {row['network']}{row['note']}"
        rows.append([name, str(row["epochs"]), errors, row["out_of_distribution_set"], *outside, alarms])
    head = ("network", "E", "errors", "OOD set", "OOD, entropy", "OOD, epistemic", "false alarms")
    return [
        "## What uncertainty tells",
        "",
        *prose(UNCERTAINTY),
        *table(head, rows),
        f"![Accuracy against confidence, one panel a network]({RELIABILITY})",
        "",
    ]


def gan_cells(task: str, row: Row) -> list[str]:
    if task == "infogan-celeba":
        shares = [f"{row[name]:.2f}" for name in ("train_code_error", "fake_as_fake", "real_as_fake")]
        return [*shares, f"{row['frechet']:.2f}"]
    strongest = [max(abs(row[f"{code}_{what}"]) for code in ("c1", "c2")) for what in ("slant", "width")]
    return [
        *(f"{row['accuracy']:.3f}", str(row["own_codes"]), f"{row['read_error']:.1f}"),
        *(f"{strongest[0]:.2f}, {strongest[1]:.2f}", f"{row['frechet']:.2f}"),
    ]


def gan_section(task: str, runs: Iterable[Run], results: Path) -> list[str]:
    """Every run after its first, every fifth and its last epoch, and what it draws in the end."""
    of_task = [run for run in runs if run.config["task"] == task]
    if not of_task:
        return []
    heading, legend, head = GANS[task]
    rows = []
    drawn = []
    for run in of_task:
        metrics = run.metrics()
        name = {"tagi": "TAGI", "adam": "Adam"}[run.method]
        shown = [row for row in metrics if row["epoch"] == 1 or row["epoch"] % 5 == 0 or row is metrics[-1]]
        rows += [[name, str(row["epoch"]), *gan_cells(task, row)] for row in shown]
        picture = run.folder.relative_to(results) / "samples.png"
        drawn += [f"Drawn by {name} after {len(metrics)} epochs:", "", f"![{picture}](../results/{picture})", ""]
        found = run.evaluation()
        if found is not None:
            drawn += prose(COPIES.format(**found))
    for text, figure in FIGURES[task].items():
        drawn += [f"TAGI, {text}:", "", f"![{text}]({figure})", ""]
    return [f"## {heading} (section 4)", "", *prose(legend), *table(("method", "epoch", *head), rows), *drawn]


def draw_reliability(evaluations: list[Row], path: Path) -> None:
    """Accuracy against confidence, one panel a network; a bar is one standard error."""
    from torchtagi.experiments.report import plots  # which needs matplotlib; the text does not

    columns = min(3, len(evaluations))
    lines, shared = -(-len(evaluations) // columns), {"sharex": True, "sharey": True}
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
    path.write_bytes(plots.as_png(figure))


def draw_errors(curves: Curves, path: Path) -> None:
    """Test error against epochs of our default on CIFAR-10, the paper's two points beside each curve."""
    from torchtagi.experiments.report import plots  # which needs matplotlib; the text does not

    with plots.new_figure(7.0, 3.8) as (figure, ((panel,),)):
        for name, of_paper in PAPER["cifar10"].items():
            curve = curves.get(name, {}).get("default")
            if curve is None or curve.last < DRAWN_FROM:
                continue
            rows = curve.by_seed[min(curve.by_seed)]
            (line,) = panel.plot(list(rows), [row["error"] for row in rows.values()], label=f"{name}, ours")
            _, epochs, first, last, *_ = of_paper[0]
            points = {"marker": "D", "linestyle": "none", "color": line.get_color(), "markersize": 6}
            panel.plot([1, epochs], [first, last], label=f"{name}, the paper", **points)
        panel.set(xlabel="epoch", ylabel="test error, %", xlim=(0, None))
        panel.legend(fontsize=8, ncols=2)
    path.write_bytes(plots.as_png(figure))


def page(runs: list[Run], results: Path) -> str:
    lines = ["# Results", "", *prose(INTRODUCTION), *prose(QUOTED)]
    for task in PAPER:
        lines += error_section(task, curves_of(runs, task))
    lines += [f"![Test error against epochs on CIFAR-10]({ERRORS})", ""]
    lines += evaluation_section(evaluations_of(runs))
    for task in GANS:
        lines += gan_section(task, runs, results)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    results = ROOT / "results"
    runs = recorded(results)
    (ROOT / "docs" / "results.md").write_text(page(runs, results))
    draw_reliability(evaluations_of(runs), ROOT / "docs" / RELIABILITY)
    draw_errors(curves_of(runs, "cifar10"), ROOT / "docs" / ERRORS)


if __name__ == "__main__":
    main()
