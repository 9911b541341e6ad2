"""A whole training by TAGI beside the same loop by Adam: python benchmarks/end_to_end.py [--task mnist]

Both go through the same loop (`fitting.Fit`) with batches of 16, the same images and augmentation, and measure the
test set after each epoch. TAGI's time holds its average, its link and its noise. They take turns; the best turn of
each counts. Written to results/end_to_end.json, a row a network.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.baselines.methods import configure_baseline
from torchtagi.experiments.classify.config import configure
from torchtagi.experiments.classify.training import Training
from torchtagi.fitting import EpochEnd

FILE = Path(__file__).parents[1] / "results" / "end_to_end.json"
BATCH = 16


def trained(config: Any) -> tuple[float, float]:
    """Seconds of all epochs, test set included, and the error after the last."""
    training = Training(config)
    start = time.perf_counter()
    rows = [event.row for event in training.events() if isinstance(event, EpochEnd)]
    return time.perf_counter() - start, rows[-1]["error"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mnist")
    parser.add_argument("--arch")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    shared = {"epochs": options.epochs, "batch_size": BATCH, "threads": 1}
    tagi = configure(options.task, options.arch, **shared)
    configs = {"tagi": tagi, "adam": configure_baseline(options.task, "adam", tagi.network, **shared)}
    best: dict[str, tuple[float, float]] = {}
    for _ in range(options.rounds):
        for name, config in configs.items():
            found = trained(config)
            print(f"{name}: {found[0]:.1f} s, error {found[1]:.2f} %", flush=True)
            best[name] = min(best.get(name, found), found)
    row = {"task": options.task, "network": tagi.network, "epochs": options.epochs, "rounds": options.rounds}
    row |= {f"{name}_seconds": round(seconds, 2) for name, (seconds, _) in best.items()}
    row |= {"ratio": round(best["tagi"][0] / best["adam"][0], 3)}
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    rows = [other for other in rows if (other["task"], other["network"]) != (row["task"], row["network"])]
    write_atomically(options.out, (json.dumps([*rows, row], indent=1) + "\n").encode())
    print(json.dumps(row))


if __name__ == "__main__":
    main()
