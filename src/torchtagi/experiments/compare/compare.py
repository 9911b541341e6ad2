"""A comparison in a folder, made in one go or in pieces.

    study.json               what is compared, and the hyperparameters of each entry with how they were found
    tuning/<entry>/<cell>/   a run a cell of an entry's grid
    <entry>/seed<k>/         the runs that are compared, each an ordinary run folder with its summary.json
    comparison.json, table.md, plots/     written anew from the above after each piece

Whatever is finished is never done again; the table holds all that the folder has. Several processes with the same
command share the work.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import torchtagi
from torchtagi.checkpoint import write_atomically
from torchtagi.experiments import data
from torchtagi.experiments.baselines import METHODS, find_method
from torchtagi.experiments.baselines.methods import Hyperparameters
from torchtagi.experiments.compare.running import Watch, complete, is_complete, is_diverged, is_foreign, share
from torchtagi.experiments.compare.speed import seconds_per_image
from torchtagi.experiments.compare.study import Entry, Study
from torchtagi.experiments.compare.summary import summarise
from torchtagi.experiments.compare.table import Member, entry_row, markdown
from torchtagi.experiments.compare.tuning import tune
from torchtagi.experiments.runs.folder import CONFIG, STUDY, Row, Run, RunError, read_json, without_nan
from torchtagi.experiments.runs.locking import exclusive

RESULT, TABLE, LOCK = "comparison.json", "table.md", ".study.lock"
FORMAT = 2  # since VOGN's and IVON's rates are in SGD's units, and the seed draws the images
EPOCH_KEYS = ("epoch", "error", "nll", "ece", "train_error", "seconds")


@dataclass(frozen=True)
class Comparison:
    """What a folder holds: `rows` is the table, `members` the runs behind each of its lines."""

    folder: Path
    study: Study
    entries: dict[str, Row]
    members: dict[str, list[Member]]
    rows: list[Row]

    @property
    def epoch_keys(self) -> tuple[str, ...]:
        """A stream's one epoch has its course; an epoch that was not measured has no scores."""
        return (*EPOCH_KEYS, "train_curve") if self.study.stream else EPOCH_KEYS

    def as_json(self) -> Row:
        return {
            "study": self.study.as_json(),
            "rows": self.rows,
            "entries": self.entries,
            "runs": {
                name: [
                    {
                        "seed": member.seed,
                        "diverged": member.diverged,
                        "epochs": [{key: row.get(key) for key in self.epoch_keys} for row in member.rows],
                        "summary": member.summary,
                    }
                    for member in members
                ]
                for name, members in self.members.items()
            },
            "versions": {"torchtagi": torchtagi.__version__, "torch": str(torch.__version__)},
        }


def compare(
    study: Study,
    methods: list[str],
    seeds: list[int],
    folder: str | Path,
    threads: int = 1,
    given: dict[str, Hyperparameters] | None = None,
    tuned: bool = True,
    watch: Watch = lambda name, event: False,
    say: Callable[[str], None] = lambda message: None,
    download: bool = False,
) -> Comparison:
    """Do what is missing for `methods` and `seeds`, then collect. `Stopped` if `watch` asks for it.

    `given` hyperparameters of a method take the place of its tuning; without `tuned`, defaults do. An entry is
    tuned right before its first run; one that diverges in every cell is written down as such, and the others go on.
    """
    folder, given = Path(folder), given or {}
    entries = study.entries(methods)
    for method, values in given.items():
        if method not in methods:
            raise ValueError(f"hyperparameters are given for {method}, which is not compared")
        if method == "tagi":
            raise ValueError("tagi has no hyperparameters to set: its noise is learned")
        find_method(method).hyperparameters(values)
    content = open_folder(folder, study)
    loaded: list[data.TrainTest] = []

    def sets() -> data.TrainTest:
        if not loaded:
            say(f"loading {study.task}")
            loaded.append(data.load_train_test(study.task))
        return loaded[0]

    for entry in entries:
        known = content["entries"].get(entry.name)
        if known is None or entry.method not in given or known["hyperparameters"] == given[entry.method]:
            continue
        if not is_lost(known):
            raise RunError(
                f"{folder} has {entry.name} with {known['hyperparameters']}, not {given[entry.method]}; "
                "choose another folder"
            )
        with changing(folder) as latest:
            latest["entries"].pop(entry.name, None)
    members = {run_folder(folder, entry.name, seed): (entry, seed) for seed in seeds for entry in entries}

    def work(place: Path) -> None:
        entry, seed = members[place]
        known = read_json(folder / STUDY)["entries"].get(entry.name)
        if known is None:
            known = choose(study, entry, folder, sets, threads, given, tuned, watch)
            with changing(folder) as latest:
                latest["entries"][entry.name] = known
        if is_lost(known):
            say(f"{entry.name} is left out: it {known['chosen_by']}; --set gives it hyperparameters")
        elif complete(place, study.config(entry, seed, known["hyperparameters"], threads), sets, watch):
            say(f"measuring {entry.name}, seed {seed}")
            summarise(Run.open(place), download)

    share(members, work, watch)
    with exclusive(folder / ".timing.lock"):
        time_side_by_side(folder, study, sets, threads, say)
    return collect(folder)


def choose(
    study: Study,
    entry: Entry,
    folder: Path,
    sets: Callable[[], data.TrainTest],
    threads: int,
    given: dict[str, Hyperparameters],
    tuned: bool,
    watch: Watch,
) -> Row:
    """An entry's hyperparameters, and where they come from."""
    row: Row = {"method": entry.method, "batch_size": study.batch_size(entry), "hyperparameters": {}}
    if entry.method == "tagi":
        return {**row, "chosen_by": "nothing to choose"}
    if entry.method in given:
        return {**row, "hyperparameters": given[entry.method], "chosen_by": "given"}
    if not tuned:
        return {**row, "chosen_by": "defaults"}
    found = tune(study, entry, folder / "tuning", sets, threads, watch)
    chosen_by = "diverged in every cell of its tuning" if found.chosen is None else "tuning"
    return {**row, "hyperparameters": found.chosen, "chosen_by": chosen_by, "tuning": found.as_json()}


def time_side_by_side(
    folder: Path, study: Study, sets: Callable[[], data.TrainTest], threads: int, say: Callable[[str], None]
) -> None:
    """What steps cost, once for all entries that the folder has."""
    content = read_json(folder / STUDY)
    trainable = {name: known for name, known in content["entries"].items() if not is_lost(known)}
    if trainable.keys() <= content["seconds_per_image"].keys():
        return
    say("timing the methods side by side")
    configs = {
        name: study.config(entry_of(study, known), 0, known["hyperparameters"], threads)
        for name, known in trainable.items()
    }
    costs = seconds_per_image(configs, sets().train)
    with changing(folder) as latest:
        latest["seconds_per_image"] = {name: costs.get(name) for name in configs}


@contextmanager
def changing(folder: Path) -> Iterator[Row]:
    """study.json as it is now, for other processes may have added to it; written at the end of the block."""
    with exclusive(folder / LOCK):
        content = read_json(folder / STUDY)
        yield content
        write_json(folder / STUDY, content)


def is_lost(known: Row) -> bool:
    """Whether an entry's tuning found nothing that it can be trained with."""
    return known["hyperparameters"] is None


def open_folder(folder: Path, study: Study) -> Row:
    """What the folder's study.json holds; a new one if there is none. The target may change: no run knows it."""
    if is_foreign(folder, STUDY):
        raise RunError(f"{folder} is not empty and is not a comparison; choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / LOCK):
        if (folder / STUDY).is_file():
            content = read_json(folder / STUDY)
            check_same(folder, content, study)
            content["study"] = study.as_json()
        else:
            content = {"format": FORMAT, "study": study.as_json(), "entries": {}, "seconds_per_image": {}}
        write_json(folder / STUDY, content)
    return content


def check_same(folder: Path, content: Row, study: Study) -> None:
    before = read_study(folder, content)
    check_format(folder, content)
    for name, value in before.as_json().items():
        asked = getattr(study, name)
        if asked != value and name != "target_error":
            raise RunError(f"{folder} compares with {name.replace('_', ' ')} {value}, not {asked}")


def check_format(folder: Path, content: Row) -> None:
    """An older folder can be shown, but what is added to it would not be comparable."""
    if content.get("format") != FORMAT:
        raise RunError(f"{folder} is of another version of torchtagi, whose runs differ; choose another folder")


def read_study(folder: Path, content: Row) -> Study:
    try:
        if not isinstance(content["entries"], dict):
            raise TypeError("entries")
        return Study(**content["study"])
    except (KeyError, TypeError) as error:
        raise RunError(f"{folder / STUDY} is not a comparison's: {error}") from error


def collect(folder: str | Path, target_error: float | None = None) -> Comparison:
    """All that is finished below `folder`; writes comparison.json and table.md. `target_error` replaces the study's
    from now on."""
    folder = Path(folder)
    if not (folder / STUDY).is_file():
        raise RunError(f"{folder} is not a comparison: it has no {STUDY}")
    content = read_json(folder / STUDY)
    study = read_study(folder, content)
    if target_error is not None:
        study = dataclasses.replace(study, target_error=target_error)
        write_json(folder / STUDY, {**content, "study": study.as_json()})
    entries = dict(sorted(content["entries"].items(), key=lambda item: place_in_table(item[1])))
    members = {name: members_of(folder / name, study.epochs) for name in entries}
    costs: dict[str, float | None] = content.get("seconds_per_image", {})
    rows = []
    for name, known in entries.items():
        drawn = known["method"] != "tagi" and find_method(known["method"]).learns_drawn
        row = entry_row(name, members[name], study.target_error, relative_cost(study, name, known, costs), drawn)
        tuning = known.get("tuning", {})
        rows.append(
            {
                **row,
                **{key: known[key] for key in ("method", "batch_size", "hyperparameters", "chosen_by")},
                "at_edge": tuning.get("at_edge", []),
                "near_chance": tuning.get("near_chance", False),
            }
        )
    found = Comparison(folder, study, entries, members, rows)
    write_json(folder / RESULT, found.as_json())
    write_atomically(folder / TABLE, markdown(rows, study.target_error).encode())
    return found


def place_in_table(known: Row) -> tuple[int, int]:
    """TAGI comes first, then its rivals as `METHODS` has them, whichever was finished first."""
    return ("tagi", *METHODS).index(known["method"]), known["batch_size"]


def members_of(place: Path, epochs: int) -> list[Member]:
    """The runs of an entry in the order of their seeds."""
    found = []
    for folder in place.glob("seed*"):
        if not (folder / CONFIG).is_file():
            continue
        run, diverged = Run.open(folder), is_diverged(folder)
        finished = not diverged and is_complete(folder, epochs)
        found.append(Member(run.config["seed"], run.metrics(), summarise(run) if finished else None, diverged))
    return sorted(found, key=lambda member: member.seed)


def relative_cost(study: Study, name: str, known: Row, costs: dict[str, float | None]) -> float | None:
    """A step's seconds an image in Adam's, of the same batch size in a stream."""
    own, adam = costs.get(name), costs.get(dataclasses.replace(entry_of(study, known), method="adam").name)
    return None if own is None or adam is None else own / adam


def entry_of(study: Study, known: Row) -> Entry:
    return Entry(known["method"], known["batch_size"] if study.stream else None)


def run_folder(folder: Path, entry: str, seed: int) -> Path:
    return folder / entry / f"seed{seed}"


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(without_nan(content), indent=1) + "\n").encode())
