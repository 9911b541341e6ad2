"""Mean passes against full passes alone, at the end of short trainings, and by how fast their gaps grow.

    python benchmarks/passes.py --runs mnist:1,mnist:5 --seeds 0,1,2 --longest 1,8

A run is TASK[/NETWORK]:EPOCHS. With --longest 1 all steps are full passes. Each run is a line of
results/ablation/passes.jsonl, and what the file holds is not run again. One thread.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.training import Training
from torchtagi.fitting import EpochEnd
from torchtagi.inference import passes

FILE = Path(__file__).parents[1] / "results" / "ablation" / "passes.jsonl"
KEPT = ("error", "nll", "ece", "seconds")


def trained(run: str, seed: int, longest: int, growth: int) -> dict[str, Any]:
    passes.LONGEST, passes.GROWTH = longest, growth
    name, _, epochs = run.partition(":")
    task, _, network = name.partition("/")
    training = Training(configure(task, network or None, epochs=int(epochs), seed=seed, threads=1))
    rows = [event.row for event in training.events() if isinstance(event, EpochEnd)]
    return {key: [round(row[key], 4) for row in rows] for key in KEPT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", required=True)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--longest", default=f"1,{passes.LONGEST}")
    parser.add_argument("--growth", type=int, default=passes.GROWTH)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    wanted = product(options.runs.split(","), options.seeds.split(","), options.longest.split(","))
    for run, seed, longest in wanted:
        what = {"run": run, "seed": int(seed), "longest": int(longest), "growth": options.growth}
        text = options.out.read_text() if options.out.exists() else ""
        if any(what.items() <= json.loads(line).items() for line in text.splitlines()):
            continue
        row = {**what, **trained(**what)}
        text = options.out.read_text() if options.out.exists() else ""
        write_atomically(options.out, (text + json.dumps(row) + "\n").encode())
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
