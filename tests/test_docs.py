"""The docs' pages of numbers are what the logs in results/ say today."""

import importlib
import json
import re
import runpy
import statistics
from pathlib import Path

import pytest

from torchtagi.experiments.runs.folder import Run, recorded

ROOT = Path(__file__).parent.parent


def test_the_results_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    expected = script["page"](recorded(ROOT / "results"), ROOT / "results")
    assert (ROOT / "docs" / "results.md").read_text() == expected, "run `make docs`"


def test_the_baselines_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "baselines_page.py"))
    text = (ROOT / "docs" / "baselines.md").read_text()
    assert text == script["page"](text, ROOT / "results"), "run `make docs`"


def test_the_measurements_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    assert (ROOT / "docs" / "measurements.md").read_text() == script["page"](), "run `make docs`"


def test_the_page_on_several_processes_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "parallel.py"))
    text = (ROOT / "docs" / "distributed.md").read_text()
    saved = json.loads((ROOT / "results" / "parallel.json").read_text())
    assert text == script["page"](text, saved), "run `make docs`"
    assert saved["accelerators"]["rows"] == script["predictions"]()


DEFAULT = {"task": "mnist", "network": "cnn", "setting": "default", "seed": 0, "versions": {"commit": "0"}}


def recorded_run(folder: Path, rows: list[dict], evaluation: dict | None = None, **identity: object) -> Run:
    run = Run.create(folder, {**DEFAULT, **identity})
    for row in rows:
        run.add_metrics(row)
    if evaluation is not None:
        run.write_json("evaluation.json", evaluation)
    return run


def test_the_results_page_says_what_was_not_run_and_averages_seeds(tmp_path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    assert script["page"]([], tmp_path).count("not run") == 1 + 5, "one default a network"
    row = {"nll": 0.1, "ece": 0.2}
    first = recorded_run(tmp_path / "a", [row | {"epoch": 1, "error": 1.0}, row | {"epoch": 2, "error": 0.5}])
    second = recorded_run(tmp_path / "b", [row | {"epoch": 1, "error": 2.0}], seed=1)
    baseline = recorded_run(tmp_path / "c", [row | {"epoch": 1, "error": 9.0}], seed=2, method="adam")
    text = script["page"]([first, second, baseline], tmp_path)
    assert "| cnn | **ours, default** | 2 | 1.50 ± 0.71 (2) | 0.50 | 0.1000 | 0.2000 |" in text.splitlines()
    earlier = recorded_run(tmp_path / "d", [row | {"epoch": 1, "error": 4.0}], versions={})
    text = script["page"]([first, second, earlier], tmp_path)
    assert "| cnn | **ours, default** | 2 | 1.50 ± 0.71 (2) | 0.50 | 0.1000 | 0.2000 |" in text.splitlines()
    assert "| cnn | ours, classes in a tree | 1 | 4.00 | 4.00 | 0.1000 | 0.2000 |" in text.splitlines()


def test_the_results_page_shows_gans(tmp_path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    row = {"accuracy": 0.9, "own_codes": 9, "read_error": 1.25, "frechet": 2.0}
    row |= {"c1_slant": -0.75, "c1_width": 0.1, "c2_slant": 0.5, "c2_width": -0.25}
    found = {"frechet": 1.5, "neighbour_ratio": 0.94}
    rows = [row | {"epoch": epoch} for epoch in range(1, 8)]
    run = recorded_run(tmp_path / "gan" / "seed3", rows, found, task="infogan-mnist", network="infogan")
    text = script["page"]([run], tmp_path)
    shown = [line for line in text.splitlines() if line.startswith("| TAGI |")]
    assert shown == [f"| TAGI | {epoch} | 0.900 | 9 | 1.2 | 0.75, 0.25 | 2.00 |" for epoch in (1, 5, 7)]
    assert "(../results/gan/seed3/samples.png)" in text
    assert "Fréchet 1.50" in text
    assert "infoGAN, CelebA" not in text


def test_the_results_page_has_the_evaluation_of_the_longest_default_run(tmp_path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    detection = {"auroc": 0.75, "fpr_at_95_tpr": 0.5}
    summary = {
        **{"out_of_distribution_set": "tinyimagenet", "ece": 0.01, "auroc_misclassification": 0.8},
        "out_of_distribution": dict.fromkeys(("entropy", "epistemic_variance"), detection),
        "reliability": [{"images": 10, "confidence": 0.4, "accuracy": 0.5}],
    }
    runs = [
        recorded_run(
            tmp_path / name, [], summary | {"epochs": epochs}, task="cifar10", network="3conv", setting=setting
        )
        for name, setting, epochs in (("short", "default", 1), ("long", "default", 2), ("other", "paper", 3))
    ]
    assert [row["epochs"] for row in script["evaluations_of"](runs)] == [2]
    lines = script["evaluation_section"](script["evaluations_of"](runs))
    assert "| cifar10 3conv | 2 | 0.8000 | tinyimagenet | 0.7500 | 0.7500 | 50.0 % |" in lines
    script["draw_reliability"](script["evaluations_of"](runs), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


PAGES = ("guide.md", "tables.md", "pictures.md", "maths.md", "results.md", "measurements.md", "streams.md")


@pytest.mark.parametrize("page", PAGES)
def test_links_and_logs_exist_and_tables_are_narrow(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / "docs" / link).exists(), link
    for log in re.findall(r"`((?:results|tests|benchmarks)/[^`]*\.\w+)`", text):
        assert (ROOT / log).exists(), log
    for line in text.splitlines():
        assert line.startswith(("|", "!")) or len(line) <= 120, line
        assert not line.startswith("|") or line.count("|") <= 8, line


def test_every_name_in_the_table_of_equations_exists() -> None:
    table = (ROOT / "docs" / "maths.md").read_text().partition("## From equations to functions")[2]
    checked = 0
    for row in table.splitlines():
        module, cells = None, row.split(" | ")
        for name in re.findall(r"`([^`]+)`", cells[-1]) if row.startswith("|") else ():
            if name.endswith(".py"):
                module = importlib.import_module("torchtagi." + name.removesuffix(".py").replace("/", "."))
                continue
            found = module
            for part in name.split("."):
                found = getattr(found, part)
            checked += 1
    assert checked > 30


def test_every_ablation_log_is_quoted() -> None:
    """One that no sentence needs any more goes."""
    places = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", *(ROOT / "src").rglob("*.py")]
    text = "".join(path.read_text() for path in places)
    for log in (ROOT / "results" / "ablation").iterdir():
        assert f"results/ablation/{log.name}" in text, log.name


def compared(folder: Path, error: float, chosen_by: str = "tuning", **study: object) -> None:
    """A recorded comparison of one entry."""
    folder.mkdir(parents=True)
    study = {"task": "mnist", "network": "cnn", "epochs": 5, "samples": None, "stream": False, **study}
    study |= {"test_samples": None, "tune_samples": 20_000, "tune_epochs": 1 if study["stream"] else 5}
    row = {"entry": "tagi", "error": error, "error_std": 0.5, "nll": 0.1, "nll_std": None, "ece": None}
    row |= {
        "seeds": 2,
        "diverged": 0,
        "batch_size": 16,
        "hyperparameters": {},
        "at_edge": [],
        "chosen_by": chosen_by,
    }
    (folder / "comparison.json").write_text(json.dumps({"study": study, "rows": [row]}))


def test_the_baselines_page_keeps_its_reading_and_shows_comparisons_and_sweeps(tmp_path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "baselines_page.py"))
    kept = f"# A reading\n\n{script['MARK']}\n\nold numbers\n"
    empty = script["page"](kept, tmp_path)
    assert empty == f"# A reading\n\n{script['MARK']}\n\nNo comparison is recorded.\n"
    compared(tmp_path / "compare-few", 9.0, samples=1000, epochs=30)
    compared(tmp_path / "compare-few-again", 8.0, samples=1000, epochs=30)  # small tables: the first one
    compared(tmp_path / "compare-all", 0.6)
    compared(tmp_path / "compare-stream", 3.0, epochs=1, stream=True)
    compared(tmp_path / "compare-all-given", 0.7, chosen_by="given")
    row = {"axis": "adam-learning-rate", "value": "0.1", "error": None, "seeds": 0, "diverged": 2}
    asked = {"task": "mnist", "network": "cnn", "epochs": 1, "samples": 50, "test_samples": 20}
    (tmp_path / "sweep-mnist").mkdir()
    rows = [row, row | {"value": "0.001", "error": 2.0, "seeds": 2, "diverged": 0}]
    (tmp_path / "sweep-mnist" / "sweep.json").write_text(json.dumps({"study": asked, "rows": rows}))
    lines = script["page"](kept, tmp_path).splitlines()
    assert [line for line in lines if line.startswith("#")] == [
        "# A reading",
        "## Few data: MNIST by the number of training images",
        "## MNIST, cnn, 5 epochs",
        "## MNIST, cnn, 5 epochs, not tuned",
        "## MNIST, cnn, 1,000 images, 30 epochs, tuned by 5 epochs",
        "## MNIST, cnn, 1,000 images, 30 epochs, tuned by 5 epochs",
        "## MNIST, cnn, a stream: each image once",
        "## Sweep: MNIST, cnn, 50 images, 1 epoch, tested on 20",
    ]
    assert "| error % | 1,000 | 60,000 |" in lines
    assert "| tagi | 9.00 ± 0.50 | 0.60 ± 0.50 |" in lines
    assert "| tagi | – | – |" in lines  # no calibration error was measured
    assert "| tagi | 3.00 ± 0.50 | 0.1000 | – | – | – | – |" in lines
    assert "- tagi, 2 seeds: batch 16, no changes (given)" in lines
    assert {"| adam, learning rate |", "| 0.1: d |", "| 0.001: 2.00 |"} <= set(lines)
    assert "Each value and its final test error in %, means of 2 seeds; *d*: every seed diverged." in lines
    assert sum(line.startswith("Baselines tuned on") for line in lines) == 4
    assert "old numbers" not in lines
    script["draw_few_data"](script["few_data"](script["comparisons_in"](tmp_path)), tmp_path / "few.png")
    assert (tmp_path / "few.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="lost its mark"):
        script["page"]("# A reading\n", tmp_path)


def test_the_readme_has_the_comparisons_errors() -> None:
    """The table of baselines says what results/ says: TAGI's row what the benchmark of its defaults does."""
    names = {"Adam": "adam", "MC-dropout": "mc-dropout", "VOGN": "vogn", "last-layer Laplace": "laplace"}
    names |= {"ensemble of five": "ensemble"}
    few = [f"compare-mnist-{epochs}ep-n{n}" for epochs, n in ((100, 100), (30, 1000), (5, 10000))]
    folders = [*few, "compare-mnist-5ep", "compare-mnist-stream-n10000", "compare-cifar10-10ep"]
    own = ("100 digits", "1000 digits", "10000 digits", "all digits", "stream of 16", "3conv")
    recorded = json.loads((ROOT / "results" / "honesty.json").read_text())["rows"]
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| method | 100 |"))
    seen = set()
    for line in lines[start + 2 : start + 3 + len(names)]:
        label, *cells = (part.strip(" *") for part in line.strip("|").split("|"))
        seen.add(label)
        for folder, name, shown in zip(folders, own, cells, strict=True):
            if label == "TAGI":
                of_seeds = [row for case, row in recorded.items() if case.rpartition("/")[0] == name]
                errors = [statistics.fmean(next(iter(row.values()))["error"] for row in of_seeds)]
            else:
                content = json.loads((ROOT / "results" / folder / "comparison.json").read_text())
                entry = names[label] + ("-batch16" if "stream" in folder else "")
                errors = [row["error"] for row in content["rows"] if row["entry"] == entry]
            if shown == "–":
                assert not errors
            else:
                assert float(shown) == pytest.approx(errors[0], abs=0.51 * 10.0 ** -len(shown.partition(".")[2]))
    assert seen == {"TAGI", *names}
