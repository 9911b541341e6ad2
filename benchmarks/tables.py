"""Write docs/measurements.md from the logs in results/: python benchmarks/tables.py"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

ROOT = Path(__file__).parent.parent


def step_table() -> list[str]:
    rows = json.loads((ROOT / "results" / "step.json").read_text())
    lines = [
        "## A step against Adam's",
        "",
        "`python benchmarks/step.py`, two cores of an AMD EPYC, torch 2.13 CPU. Both take turns in one run; the",
        "best time of each counts. The step is that of `tagi.condition`, the batch taken as one chunk; *by",
        "autograd* is the ratio of the same with `likelihood(net(x), y).backward()` and `update.step()`. Memory",
        "is the peak of a step, parameters and optimizer state included. Matrix products alone would make a time",
        "ratio of 7/3.",
        "",
        "| network | batch | TAGI ms | Adam ms | time ratio | by autograd | memory ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['network']} | {row['batch']} | {row['tagi_ms']:.2f} | {row['adam_ms']:.2f} "
            f"| {row['ratio']:.2f} | {row['autograd_ratio']:.2f} | {row['memory_ratio']:.2f} |"
        )
    return lines


def grid_tables() -> list[str]:
    lines = [
        "## The grid",
        "",
        "`python benchmarks/grid.py`: default rule, a noise σ_V that is given, 10,000 training samples (2,000 at",
        "batch 1), 2,000 test images, two seeds. Mean error in %, the worse seed in brackets. In chunks of 16,",
        "the default, batch 64 or 256 learns what batch 16 learns; whole, it is one step. (Recorded with the",
        "prior as it was calibrated before `calibrate_prior`.)",
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
    return "\n".join(["# Measurements", "", *step_table(), "", *grid_tables(), ""])


if __name__ == "__main__":
    (ROOT / "docs" / "measurements.md").write_text(page())
