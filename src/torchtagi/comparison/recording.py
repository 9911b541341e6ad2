"""Keeping a comparison or a sweep for ever: its outcome and pictures, and the metrics of the rivals' runs."""

from __future__ import annotations

from pathlib import Path

from torchtagi.checkpoint import write_atomically
from torchtagi.comparison.compare import RESULT, STUDY, TABLE
from torchtagi.comparison.sweep import SWEEP
from torchtagi.runs import CONFIG, METRICS, Run, RunError


def record_folder(folder: Path, results: str | Path) -> Path:
    """Copy what is worth keeping to `results`, under the folder's own name.

    TAGI's runs are left out: those of the paper's tables are recorded on their own, and would count twice.
    """
    target = Path(results) / folder.resolve().name
    if not (folder / RESULT).is_file() and not (folder / SWEEP).is_file():
        raise RunError(f"{folder} has no {RESULT} yet: nothing to record")
    pictures = [str(path.relative_to(folder)) for path in sorted((folder / "plots").glob("*.png"))]
    for name in (STUDY, RESULT, TABLE, SWEEP, *pictures):
        if (folder / name).is_file():
            write_atomically(target / name, (folder / name).read_bytes())
    if (folder / STUDY).is_file():
        for path in sorted(folder.glob(f"*/seed*/{CONFIG}")):
            if Run.open(path.parent).method != "tagi":
                for name in (CONFIG, METRICS):
                    place = (path.parent / name).relative_to(folder)
                    write_atomically(target / place, (folder / place).read_bytes())
    return target
