"""Keeping a comparison or a sweep for ever: its outcome and pictures, and what a comparison's runs measured.

A comparison's copy is a comparison: brought back from the results, it goes on with other methods or more seeds.
"""

from __future__ import annotations

from pathlib import Path

from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.compare.compare import RESULT, TABLE
from torchtagi.experiments.compare.running import DIVERGED, SUMMARY
from torchtagi.experiments.compare.sweep import SWEEP
from torchtagi.experiments.runs.folder import CONFIG, METRICS, STUDY, RunError


def record_folder(folder: Path, results: str | Path) -> Path:
    """Copy what is worth keeping to `results`, under the folder's own name."""
    target = Path(results) / folder.resolve().name
    if not (folder / RESULT).is_file() and not (folder / SWEEP).is_file():
        raise RunError(f"{folder} has no {RESULT} yet: nothing to record")
    pictures = sorted((folder / "plots").glob("*.png"))
    for path in (*(folder / name for name in (STUDY, RESULT, TABLE, SWEEP)), *pictures, *ended_runs(folder)):
        if path.is_file():
            write_atomically(target / path.relative_to(folder), path.read_bytes())
    return target


def ended_runs(folder: Path) -> list[Path]:
    """The small files of a comparison's runs that were measured or diverged; what is under way cannot go on without
    its checkpoint."""
    places = {path.parent for name in (SUMMARY, DIVERGED) for path in folder.glob(f"*/seed*/{name}")}
    return [place / name for place in sorted(places) for name in (CONFIG, METRICS, SUMMARY, DIVERGED)]
