"""Write docs/measurements.md and docs/uci.md from the logs in results/: python benchmarks/tables.py"""

from __future__ import annotations

import itertools
import json
import textwrap
from pathlib import Path
from statistics import fmean
from typing import Any

from torchtagi.experiments.jobs import read_rows
from torchtagi.experiments.uci.runner import IDENTITY, SPLITS, current
from torchtagi.experiments.uci.table import means_of, tables, verdicts
from torchtagi.inference.passes import LONGEST

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def read(name: str) -> list[dict[str, Any]]:
    """A log of rows, JSON or a line each; none if it is not there."""
    path = RESULTS / name
    if not path.is_file():
        return []
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


def prose(text: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), 110, break_long_words=False, break_on_hyphens=False)


def step_table() -> list[str]:
    rows = read("step.json")
    lines = [
        "## A step against Adam's",
        "",
        *prose(
            f"""`python benchmarks/step.py`, two cores of an AMD EPYC, torch 2.13 CPU. Both take turns in one run;
            the best turn of each counts. A step is that of `tagi.condition`, the batch taken as one chunk: the
            mean over a cycle of one full pass and {LONGEST - 1} mean passes (small networks make full passes
            alone). *Full* is the ratio of full passes alone, *by autograd* that of `likelihood(net(x),
            y).backward()` and `update.step()`. Memory is the peak of a step, parameters and optimizer state
            included."""
        ),
        "",
        "| network | batch | TAGI ms | Adam ms | time ratio | full, by autograd | memory ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['network']} | {row['batch']} | {row['tagi_ms']:.2f} | {row['adam_ms']:.2f} "
            f"| {row['ratio']:.2f} | {row['full_ratio']:.2f}, {row['autograd_ratio']:.2f} "
            f"| {row['memory_ratio']:.2f} |"
        )
    return lines


def end_to_end_table() -> list[str]:
    lines = [
        "## A training against Adam's",
        "",
        *prose(
            """`python benchmarks/end_to_end.py`: whole trainings in turns in one run, best turn of each, by the
            same loop in batches of 16, one thread; images are augmented and the test set is measured after each
            epoch. TAGI's average, noise and link included."""
        ),
        "",
        "| network | epochs | TAGI s | Adam s | time ratio |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in read("end_to_end.json"):
        numbers = f"{row['tagi_seconds']:.1f} | {row['adam_seconds']:.1f} | {row['ratio']:.2f}"
        lines.append(f"| {row['task']} {row['network']} | {row['epochs']} | {numbers} |")
    return lines


def passes_table() -> list[str]:
    """Final scores of runs with mean passes beside those without, by run."""
    rows = read("ablation/passes.jsonl")
    lines = [
        "## Mean passes against full passes alone",
        "",
        *prose(
            """`python benchmarks/passes.py`, one thread, the defaults. Scores on the test set after the last
            epoch, means over the seeds that both have."""
        ),
        "",
        "| run | seeds | error %, full | error %, default | NLL, full | NLL, default |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for run in dict.fromkeys(row["run"] for row in rows):
        found = {(row["longest"], row["seed"]): row for row in rows if row["run"] == run}
        seeds = [seed for longest, seed in found if longest == 1 and (LONGEST, seed) in found]
        if not seeds:
            continue
        cells = [
            f"{fmean(found[longest, seed][measure][-1] for seed in seeds):.{digits}f}"
            for measure, digits in (("error", 2), ("nll", 4))
            for longest in (1, LONGEST)
        ]
        task, _, epochs = run.partition(":")
        name = f"{task}, {epochs} epoch{'s' if epochs != '1' else ''}"
        lines.append(f"| {name} | {len(seeds)} | {' | '.join(cells)} |")
    return lines


def large_batch_table() -> list[str]:
    rows = read("ablation/large_batches.jsonl")
    lines = [
        "## Large batches",
        "",
        *prose(
            """`python benchmarks/large_batches.py`: the MNIST CNN after one pass through so many digits in batches
            of 256, learned in chunks of 16 (the default), or whole: by the line search, by a joint solve with
            so many iterations of conjugate gradients, by Adam at the best of four learning rates. Products are
            those of a batch, which an Adam step has three of; seconds are of one thread of a machine that was
            not idle."""
        ),
        "",
        "| method | digits | error % | products a step | seconds |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = (
            row["method"],
            f"{row['digits']:,}",
            f"{row['error']:.2f}",
            row["products"],
            f"{row['seconds']:.0f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def growth_part() -> list[str]:
    found = json.loads((RESULTS / "growth.json").read_text())
    kinds = [name for name in next(iter(steps_of(found["profile"]).values())) if name not in ("ms", "core")]
    lines = [
        "## How cost grows",
        "",
        *prose(
            """`python benchmarks/growth.py`, one thread: a stack of 3×3 convolutions, one of its sizes varied at a
            time. Numbers at the points are TAGI's cost in Adam's."""
        ),
        "",
        "![time and memory of a step against width, depth, batch and image size](figures/growth.png)",
        "",
        *prose(
            f"""Where the time of a ResNet18 step goes, batch {found["profile"]["batch"]}, in % of the step
            (`--profile`):"""
        ),
        "",
        f"| step | ms | {' | '.join(kinds)} |",
        f"|---|---:|{'---:|' * len(kinds)}",
    ]
    for name, part in steps_of(found["profile"]).items():
        lines.append(f"| {name} | {part['ms']:.0f} | {' | '.join(f'{part[kind]:.0f}' for kind in kinds)} |")
    return lines


def steps_of(profile: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {name: part for name, part in profile.items() if isinstance(part, dict)}


def grid_tables() -> list[str]:
    lines = [
        "## The grid",
        "",
        *prose(
            """`python benchmarks/grid.py`: default rule, a noise σ_V that is given, 10,000 training samples (2,000
            at batch 1), 2,000 test images, two seeds. Mean error in %, the worse seed in brackets. In chunks of
            16, the default, batch 64 or 256 learns what batch 16 learns; whole, it is one step. (Recorded with
            the prior as it was calibrated before `calibrate_prior`.)"""
        ),
    ]
    for path in sorted((ROOT / "results" / "grid").glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        noises = sorted({row["noise_std"] for row in rows})
        collapsed = [row for row in rows if row["collapsed"]]
        lines += ["", f"### {path.stem}", "", "| batch | " + " | ".join(f"σ_V = {n}" for n in noises) + " |"]
        lines.append("|---|" + "---:|" * len(noises))
        for batch, taken in itertools.product(sorted({row["batch"] for row in rows}), ("chunks", "whole")):
            cells = []
            for noise in noises:
                key = (batch, taken, noise)
                errors = [r["error"] for r in rows if (r["batch"], r["taken"], r["noise_std"]) == key]
                cells.append(f"{sum(errors) / len(errors):.1f} ({max(errors):.1f})" if errors else "not run")
            if set(cells) != {"not run"}:
                name = f"{batch}, {taken}" if batch > 16 else str(batch)
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines += [
            "",
            f"{len(rows)} cells; no value was ever not finite, the smallest variance was "
            f"{min(row['smallest_var'] for row in rows):.1e}. Collapsed: {len(collapsed) or 'none'}"
            + "".join(
                f" (σ_V = {r['noise_std']}, batch {r['batch']} {r['taken']}, seed {r['seed']}: {r['error']} %)"
                for r in collapsed
            )
            + ".",
        ]
    return lines


def page() -> str:
    parts = (step_table(), end_to_end_table(), passes_table(), growth_part(), large_batch_table(), grid_tables())
    return "\n".join(["# Measurements", "", *itertools.chain.from_iterable([*part, ""] for part in parts)])


def uci_page() -> str:
    """The benchmark's tables."""
    means = means_of(current(read_rows(RESULTS / "uci" / SPLITS, IDENTITY)))
    lines = [
        "# UCI regression",
        "",
        *prose(
            """`tagi uci`: nine sets on their standard splits, 20 and of protein 5; a perceptron with one hidden
            layer of 50 units (protein 100), and one setting for all sets: 40 epochs in batches of 64, the
            defaults otherwise. A number of splits is given in brackets where it is not all of them. `±` is a
            standard error over splits. No choice was made by test parts: settings were compared on fifths of
            training parts (`benchmarks/uci_choice.py`, `results/uci/choice.jsonl`). Seconds are of one core of
            a machine that was not idle."""
        ),
        "",
        *prose(
            """Published columns are from their authors' papers. *TAGI* and *TAGI-V* are the authors' own results;
            MC-dropout is the one that was trained for long."""
        ),
    ]
    for table in tables(means):
        lines += ["", f"## {table.title[0].upper()}{table.title[1:]}", "", *table.markdown()]
    lines += ["", "## Where it is ahead", "", *(f"- {line}" for line in verdicts(means)), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    (ROOT / "docs" / "measurements.md").write_text(page())
    (ROOT / "docs" / "uci.md").write_text(uci_page())
