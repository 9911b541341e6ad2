"""Run folders: all that is known about one training.

    config.json             what was asked for, and the versions that did it
    metrics.jsonl           one line an epoch
    checkpoint.safetensors  the posterior and the position in the data: where to go on from
    evaluation.json, plots/, report.html    written by looking at it

Every file is replaced whole, so a run killed at any moment leaves a folder that can be read and continued. An
epoch's metrics are written before its checkpoint: if the run dies between the two, the line belongs to an epoch
that will be learned again, and `keep` drops it.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from torchtagi.checkpoint import write_atomically

CONFIG, METRICS, CHECKPOINT = "config.json", "metrics.jsonl", "checkpoint.safetensors"
COMPARISON, SWEEP = "comparison.json", "sweep.json"  # of studies, folders of runs
EVALUATION, PLOTS, REPORT = "evaluation.json", "plots", "report.html"
IDENTITY = ("task", "network", "setting", "seed")

Row = dict[str, Any]


class RunError(ValueError):
    """A folder that is not a run, or not one that can do what was asked."""


class BusyError(RunError):
    """A folder that another process holds."""


class Stopped(Exception):
    """A stop was asked for; what was learned or measured is in the folder."""


@dataclass(frozen=True)
class Run:
    """A run folder with its configuration."""

    folder: Path
    config: Row

    @classmethod
    def create(cls, folder: str | Path, config: Row, overwrite: bool = False) -> Run:
        """A new run in `folder`; an existing one is replaced only with `overwrite`, other files never."""
        folder = Path(folder)
        check_free(folder, overwrite)
        for name in (CHECKPOINT, METRICS, EVALUATION, REPORT):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / PLOTS, ignore_errors=True)
        run = cls(folder, config)
        run.write_json(CONFIG, config)
        run.write_metrics([])
        return run

    @property
    def method(self) -> str:
        """Who learned: TAGI unless the configuration names another."""
        return str(self.config.get("method", "tagi"))

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """An existing run, its configuration checked for what every reader needs."""
        folder = Path(folder)
        if not folder.is_dir():
            raise RunError(f"there is no run folder {folder}")
        if not (folder / CONFIG).is_file():
            raise RunError(f"{folder} is not a run: it has no {CONFIG}")
        config = read_json(folder / CONFIG)
        kinds = dict.fromkeys(IDENTITY, str) | {"seed": int}
        wrong = [name for name, kind in kinds.items() if not isinstance(config.get(name), kind)]
        if wrong:
            raise RunError(
                f"{folder / CONFIG} does not say its {', '.join(wrong)} (seed as a number, others as text)"
            )
        return cls(folder, config)

    # ---- metrics -----------------------------------------------------------------------------------------

    def metrics(self) -> list[Row]:
        """One row an epoch, in order."""
        path, rows = self.folder / METRICS, []
        if not path.is_file():
            return []
        for number, line in enumerate(read_text(path).splitlines(), 1):
            try:
                row = json.loads(line)
                if not isinstance(row, dict) or not isinstance(row["epoch"], int):
                    raise TypeError
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise RunError(f"{path}, line {number} is not a row of metrics: {line[:60]!r}") from error
            wrong = [key for key, value in row.items() if isinstance(value, str | dict) and key != "judge"]
            if wrong:
                raise RunError(f"{path}, line {number}: {wrong[0]} must be a number, got {row[wrong[0]]!r}")
            rows.append(row)
        return rows

    def add_metrics(self, row: Row) -> None:
        self.write_metrics([*self.metrics(), row])

    def keep_metrics(self, epochs: int) -> None:
        """Forget what was measured after the first `epochs` epochs."""
        rows = self.metrics()
        kept = [row for row in rows if row["epoch"] <= epochs]
        if [row["epoch"] for row in kept] != list(range(1, epochs + 1)):
            raise RunError(f"{self.folder / METRICS} lacks some of the {epochs} epochs of the checkpoint")
        if len(kept) != len(rows):
            self.write_metrics(kept)

    def write_metrics(self, rows: Iterable[Row]) -> None:
        text = "".join(json.dumps(without_nan(row)) + "\n" for row in rows)
        write_atomically(self.folder / METRICS, text.encode())

    # ---- checkpoint --------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        return self.folder / CHECKPOINT

    def require_checkpoint(self) -> None:
        if not self.checkpoint.is_file():
            raise RunError(f"{self.folder} has no {CHECKPOINT}: only its configuration and metrics were kept")

    # ---- other files -------------------------------------------------------------------------------------

    def write_json(self, name: str, content: Row) -> None:
        write_json(self.folder / name, content)

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        write_atomically(path, content)
        return path

    def evaluation(self) -> Row | None:
        """What the last `evaluate` found, if there was one."""
        path = self.folder / EVALUATION
        return read_json(path) if path.is_file() else None

    def clear_leftovers(self) -> None:
        """Remove the temporary files of writes that were killed (`write_atomically` names them)."""
        for leftover in self.folder.rglob(".*.*.*"):
            leftover.unlink(missing_ok=True)

    def record(self, results: str | Path) -> Path:
        """Copy what is worth keeping for ever into a folder of recorded runs: configuration, metrics and, if it was
        made after the last epoch, the evaluation."""
        rows = self.metrics()
        if not rows:
            raise RunError(f"{self.folder} has not finished an epoch yet: nothing to record")
        target = Path(results) / "{task}-{network}-{setting}-seed{seed}".format(**self.config)
        current = (self.evaluation() or {}).get("epochs") == len(rows)
        for name in (CONFIG, METRICS, *([EVALUATION] if current else [])):
            write_atomically(target / name, (self.folder / name).read_bytes())
        if not current:
            (target / EVALUATION).unlink(missing_ok=True)
        return target


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder alone, whether it exists yet or not. The system drops the lock of a process that dies."""
    whole = folder.resolve()
    whole.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(whole.parent / f".{whole.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BusyError(
            f"another process is at work in {folder}: wait until it ends, or choose another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def check_free(folder: Path, overwrite: bool = False) -> None:
    """Raise unless a new run may go to `folder`."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file, not a folder")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder} is not empty and is not a run; choose another folder")
    if not overwrite:
        raise RunError(f"{folder} holds a run already; --resume continues it, --overwrite replaces it")


def recorded(results: str | Path) -> list[Run]:
    """The runs below a folder, in the order of their names; other folders and files are passed over, and so are
    comparisons below it, whose tables have their runs."""
    results = Path(results)
    if not results.is_dir():
        raise RunError(f"there is no folder {results}")
    compared = {path.parent for path in results.glob(f"**/{COMPARISON}")} - {results}
    found = [path.parent for path in results.glob(f"**/{CONFIG}") if (path.parent / METRICS).is_file()]
    return [Run.open(folder) for folder in sorted(found) if compared.isdisjoint(folder.parents)]


def result_rows(runs: Iterable[Run]) -> list[Row]:
    """One flat row for each epoch of each run: what it was, then what was measured."""
    rows = []
    for run in runs:
        identity = {**{key: run.config[key] for key in IDENTITY}, "method": run.method}
        for row in run.metrics():
            rows.append({**identity, **{k: v for k, v in row.items() if not isinstance(v, list | dict)}})
    return rows


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What was changed by hand into something that cannot be read is told in one line."""
    try:
        yield
    except RunError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        why = f"{type(error).__name__}: {error}"
        raise RunError(f"{path} cannot be read ({why}); was it changed by hand?") from error


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is not text") from error


def read_json(path: Path) -> Row:
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise RunError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def write_json(path: Path, content: Row) -> None:
    write_atomically(path, (json.dumps(without_nan(content), indent=1) + "\n").encode())


def without_nan(value: Any) -> Any:
    """JSON has no NaN: a quantity that is not defined becomes null."""
    if isinstance(value, dict):
        return {key: without_nan(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
