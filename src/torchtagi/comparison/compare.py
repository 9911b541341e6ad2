"""A comparison in a folder, made in one go or in pieces.

    study.json               what is compared, and the hyperparameters of each entry with how they were found
    tuning/<entry>/<cell>/   a run a cell of an entry's grid
    <entry>/seed<k>/         the runs that are compared, each an ordinary run folder with its summary.json
    comparison.json, table.md, plots/     written anew from the above after each piece

Whatever is finished is never done again; the table holds all that the folder has.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import torchtagi
from torchtagi import data
from torchtagi.baselines import find_method
from torchtagi.baselines.methods import Hyperparameters
from torchtagi.checkpoint import write_atomically
from torchtagi.comparison.running import Watch, complete, is_complete, is_diverged
from torchtagi.comparison.speed import seconds_per_image
from torchtagi.comparison.study import Entry, Study
from torchtagi.comparison.summary import summarise
from torchtagi.comparison.table import Member, entry_row, markdown
from torchtagi.comparison.tuning import tune
from torchtagi.runs import CONFIG, Row, Run, RunError, read_json, without_nan

STUDY, RESULT, TABLE = "study.json", "comparison.json", "table.md"


@dataclass(frozen=True)
class Comparison:
    """What a folder holds: `rows` is the table, `members` the runs behind each of its lines."""

    folder: Path
    study: Study
    entries: dict[str, Row]
    members: dict[str, list[Member]]
    rows: list[Row]

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
                        "epochs": [
                            {key: row[key] for key in ("epoch", "error", "nll", "ece", "train_error", "seconds")}
                            for row in member.rows
                        ],
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

    `given` hyperparameters of a method take the place of its tuning; without `tuned`, defaults do.
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
        if known is None:
            known = choose(study, entry, folder, sets, threads, given, tuned, watch)
            content["entries"][entry.name] = known
            write_json(folder / STUDY, content)
        elif entry.method in given and known["hyperparameters"] != given[entry.method]:
            raise RunError(
                f"{folder} has {entry.name} with {known['hyperparameters']}, not {given[entry.method]}; "
                "choose another folder"
            )
    for seed in seeds:
        for entry in entries:
            config = study.config(entry, seed, content["entries"][entry.name]["hyperparameters"], threads)
            place = run_folder(folder, entry.name, seed)
            if complete(place, config, sets, watch):
                say(f"measuring {entry.name}, seed {seed}")
                summarise(Run.open(place), download)
    if costs_missing(content, entries):
        say("timing the methods side by side")
        configs = {
            name: study.config(entry_of(known), 0, known["hyperparameters"], threads)
            for name, known in content["entries"].items()
        }
        content["seconds_per_image"] = seconds_per_image(configs, sets())
        write_json(folder / STUDY, content)
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
    row: Row = {"method": entry.method, "batch_size": entry.batch_size, "hyperparameters": {}}
    if entry.method == "tagi":
        return {**row, "chosen_by": "nothing to choose"}
    if entry.method in given:
        return {**row, "hyperparameters": given[entry.method], "chosen_by": "given"}
    if not tuned:
        return {**row, "chosen_by": "defaults"}
    found = tune(study, entry, folder / "tuning", sets, threads, watch)
    return {**row, "hyperparameters": found.chosen, "chosen_by": "tuning", "tuning": found.as_json()}


def open_folder(folder: Path, study: Study) -> Row:
    """What the folder's study.json holds; a new one if there is none."""
    if (folder / STUDY).is_file():
        content = read_json(folder / STUDY)
        before = read_study(folder, content)
        for name, value in before.as_json().items():
            asked = getattr(study, name)
            if asked != value:
                raise RunError(f"{folder} compares with {name.replace('_', ' ')} {value}, not {asked}")
        return content
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} is not empty and is not a comparison; choose another folder")
    content = {"study": study.as_json(), "entries": {}, "seconds_per_image": {}}
    write_json(folder / STUDY, content)
    return content


def read_study(folder: Path, content: Row) -> Study:
    try:
        if not isinstance(content["entries"], dict):
            raise TypeError("entries")
        return Study(**content["study"])
    except (KeyError, TypeError) as error:
        raise RunError(f"{folder / STUDY} is not a comparison's: {error}") from error


def collect(folder: str | Path) -> Comparison:
    """All that is finished below `folder`; writes comparison.json and table.md."""
    folder = Path(folder)
    if not (folder / STUDY).is_file():
        raise RunError(f"{folder} is not a comparison: it has no {STUDY}")
    content = read_json(folder / STUDY)
    study = read_study(folder, content)
    members = {name: members_of(folder / name, study.epochs) for name in content["entries"]}
    costs: dict[str, float] = content.get("seconds_per_image", {})
    rows = [
        {
            **entry_row(name, members[name], study.target_error, relative_cost(name, known, costs)),
            "method": known["method"],
            "batch_size": known["batch_size"],
            "hyperparameters": known["hyperparameters"],
            "chosen_by": known["chosen_by"],
        }
        for name, known in content["entries"].items()
    ]
    found = Comparison(folder, study, content["entries"], members, rows)
    write_json(folder / RESULT, found.as_json())
    write_atomically(folder / TABLE, markdown(rows).encode())
    return found


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


def relative_cost(name: str, known: Row, costs: dict[str, float]) -> float | None:
    """A step's seconds an image in Adam's, of the same batch size in a stream."""
    adam = Entry("adam", known["batch_size"]).name
    return costs[name] / costs[adam] if name in costs and adam in costs else None


def costs_missing(content: Row, entries: list[Entry]) -> bool:
    return any(entry.name not in content.get("seconds_per_image", {}) for entry in entries)


def entry_of(known: Row) -> Entry:
    return Entry(known["method"], known["batch_size"])


def run_folder(folder: Path, entry: str, seed: int) -> Path:
    return folder / entry / f"seed{seed}"


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(without_nan(content), indent=1) + "\n").encode())
