"""Write the numbers of docs/baselines.md from the comparisons and sweeps in results/.

    python benchmarks/baselines_page.py

The page's reading, above the mark, is written by hand and kept. Everything below it, and the figure of few data,
comes from results/compare-*/comparison.json and results/sweep-*/sweep.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from torchtagi.experiments.baselines.methods import METHODS
from torchtagi.experiments.compare.sweep import AXES
from torchtagi.experiments.compare.table import COLUMNS, COSTS, SCORES, cell, chosen_text
from torchtagi.experiments.report import plots
from torchtagi.experiments.report.comparison_plots import colour_of
from torchtagi.experiments.runs.folder import Row, read_json

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "baselines.md"
MARK = "<!-- written by benchmarks/baselines_page.py from here on -->"
FEW_DATA = "figures/few-data.png"
FEW_COLUMNS = ("error", "nll", "ece", "ood_auroc")
ALL_DIGITS = 60_000
PICTURES = {
    "error": "test error against epochs and against time",
    "reliability": "accuracy against confidence",
}


def comparisons_in(results: Path) -> dict[str, Row]:
    """What `tagi record` kept of comparisons, by name, large sets first."""
    found = {path.parent.name: read_json(path) for path in results.glob("compare-*/comparison.json")}
    return dict(sorted(found.items(), key=lambda item: (order_of(item[1]), item[0])))


def order_of(content: Row) -> tuple[bool, bool, int, bool]:
    """Streams last, MNIST first, all images before few, tuned before not tuned."""
    study = content["study"]
    return study["stream"], study["task"] != "mnist", study["samples"] or 0, not is_tuned(content)


def is_tuned(content: Row) -> bool:
    """Whether grids chose for the baselines, rather than `--set` or their defaults."""
    return all(row["chosen_by"] not in ("given", "defaults") for row in content["rows"])


def heading(study: Row) -> str:
    """`MNIST, cnn, 1,000 images, 30 epochs`."""
    parts = [{"mnist": "MNIST", "cifar10": "CIFAR-10"}[study["task"]], study["network"]]
    if study["samples"] is not None:
        parts.append(f"{study['samples']:,} images")
    length = "1 epoch" if study["epochs"] == 1 else f"{study['epochs']} epochs"
    parts.append("a stream: each image once" if study["stream"] else length)
    if study["test_samples"] is not None:
        parts.append(f"tested on {study['test_samples']:,}")
    return ", ".join(parts)


def tuning_of(content: Row) -> str:
    """What a heading says of it: nothing where runs as long as the compared ones chose."""
    if not is_tuned(content):
        return ", not tuned"
    epochs = content["study"]["tune_epochs"]
    return "" if epochs == content["study"]["epochs"] else f", tuned by {epochs} epochs"


def tuned_on(study: Row) -> str:
    images = study["tune_samples"] if study["samples"] is None else min(study["samples"], study["tune_samples"])
    epochs = "1 epoch" if study["tune_epochs"] == 1 else f"{study['tune_epochs']} epochs"
    return f"Baselines tuned on {images:,} training images, {epochs} a run."


def few_data(comparisons: Mapping[str, Row]) -> dict[int, list[Row]]:
    """The rows of the comparisons on MNIST by the number of images, all of them included; of several with as many
    images the first one's."""
    found: dict[int, list[Row]] = {}
    for content in comparisons.values():
        study = content["study"]
        if study["task"] == "mnist" and not study["stream"] and is_tuned(content):
            found.setdefault(study["samples"] or ALL_DIGITS, content["rows"])
    return dict(sorted(found.items()))


def methods_in(sizes: Mapping[int, list[Row]]) -> list[str]:
    """All that some comparison has, in every table's order."""
    found = {row["entry"] for rows in sizes.values() for row in rows}
    return [method for method in ("tagi", *METHODS) if method in found]


def few_data_section(sizes: Mapping[int, list[Row]]) -> list[str]:
    """One small table a measure: methods by numbers of images."""
    if len(sizes) < 2:
        return []
    lines = [
        "## Few data: MNIST by the number of training images",
        "",
        f"![few data: error and NLL relative to TAGI's; below 1 is better than TAGI]({FEW_DATA})",
        "",
    ]
    methods = methods_in(sizes)
    for column in FEW_COLUMNS:
        lines += [f"| {COLUMNS[column]} | " + " | ".join(f"{size:,}" for size in sizes) + " |"]
        lines += ["|---|" + "---:|" * len(sizes)]
        for method in methods:
            rows = [next((row for row in found if row["entry"] == method), {}) for found in sizes.values()]
            lines.append(f"| {method} | " + " | ".join(cell(row, column) for row in rows) + " |")
        lines.append("")
    return lines


def draw_few_data(sizes: Mapping[int, list[Row]], path: Path) -> None:
    """Test error and NLL relative to TAGI's by the number of images, with the standard deviation over seeds."""
    ours = {size: row for size, rows in sizes.items() for row in rows if row["entry"] == "tagi"}
    with plots.new_figure(10, 4, 1, 2) as (figure, (panels,)):
        methods = methods_in(sizes)
        for panel, column, label in zip(panels, ("error", "nll"), ("test error", "NLL"), strict=True):
            for index, method in enumerate(methods):
                rows = {size: row for size, found in sizes.items() for row in found if row["entry"] == method}
                points = {size: row for size, row in rows.items() if row[column] is not None and size in ours}
                panel.errorbar(
                    [size * 1.04**index for size in points],  # side by side
                    [row[column] / ours[size][column] for size, row in points.items()],
                    yerr=[(row[f"{column}_std"] or 0.0) / ours[size][column] for size, row in points.items()],
                    **{"marker": "o", "markersize": 4, "capsize": 2, "color": colour_of(method), "label": method},
                )
            panel.set(xlabel="training images", ylabel=f"{label} / TAGI's", xscale="log", yscale="log")
            plots.write_plainly(panel.xaxis)
            plots.write_plainly(panel.yaxis)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(plots.as_png(figure))


def sweeps_in(results: Path) -> dict[str, Row]:
    return {path.parent.name: read_json(path) for path in sorted(results.glob("sweep-*/sweep.json"))}


def sweep_section(name: str, content: Row) -> list[str]:
    """An axis a column: `value: final error`."""
    asked, rows = heading({**content["study"], "stream": False}), content["rows"]
    seeds = max(row["seeds"] + row["diverged"] for row in rows)
    mean = "" if seeds == 1 else f", means of {seeds} seeds"
    axes = list(dict.fromkeys(row["axis"] for row in rows))
    columns = [[f"{row['value']}: {final_error(row)}" for row in rows if row["axis"] == axis] for axis in axes]
    return [
        f"## Sweep: {asked}",
        "",
        f"Each value and its final test error in %{mean}; *d*: every seed diverged.",
        "",
        f"![final error over learning rate and noise](../results/{name}/plots/sweep.png)",
        "",
        "| " + " | ".join(map(axis_label, axes)) + " |",
        "|" + "---|" * len(axes),
        *("| " + " | ".join(line) + " |" for line in zip_longest(*columns, fillvalue="")),
        "",
    ]


def axis_label(axis: str) -> str:
    """`adam, learning rate` of `adam-learning-rate`."""
    end = next(end for end in AXES if axis.endswith(f"-{end}"))
    return f"{axis.removesuffix(f'-{end}')}, {AXES[end]}"


def final_error(row: Row) -> str:
    return "d" if row["error"] is None else f"{row['error']:.2f}"


def comparison_tables(rows: Sequence[Row]) -> list[str]:
    """The scores, the costs, and below them what each entry was trained with."""
    lines = []
    for columns in (SCORES, COSTS):
        lines += ["| method | " + " | ".join(COLUMNS[column] for column in columns) + " |"]
        lines += ["|---|" + "---:|" * len(columns)]
        lines += ["| " + " | ".join([row["entry"], *(cell(row, name) for name in columns)]) + " |" for row in rows]
        lines.append("")
    return [*lines, *(f"- {chosen_text(row)}" for row in rows), ""]


def numbers(results: Path) -> str:
    """All below the mark."""
    comparisons = comparisons_in(results)
    lines: list[str] = []
    if not comparisons:
        lines += ["No comparison is recorded.", ""]
    lines += few_data_section(few_data(comparisons))
    for name, content in comparisons.items():
        lines += [f"## {heading(content['study'])}{tuning_of(content)}", "", *comparison_tables(content["rows"])]
        if is_tuned(content):
            lines += [tuned_on(content["study"]), ""]
        for picture, text in PICTURES.items():
            if (results / name / "plots" / f"{picture}.png").is_file():
                lines += [f"![{text}](../results/{name}/plots/{picture}.png)", ""]
    for name, content in sweeps_in(results).items():
        lines += sweep_section(name, content)
    return "\n".join(lines).rstrip() + "\n"


def page(kept: str, results: Path) -> str:
    """The reading of `kept`, and the numbers of today."""
    reading, mark, _ = kept.partition(MARK)
    if not mark:
        raise ValueError(f"docs/baselines.md has lost its mark: {MARK}")
    return f"{reading}{MARK}\n\n{numbers(results)}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), ROOT / "results"))
    if len(sizes := few_data(comparisons_in(ROOT / "results"))) > 1:
        draw_few_data(sizes, ROOT / "docs" / FEW_DATA)
