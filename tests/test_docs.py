"""The docs' pages of numbers are what the logs in results/ say today."""

import json
import runpy
import statistics
from pathlib import Path

import pytest

from torchtagi.experiments.runs.folder import Run, recorded

ROOT = Path(__file__).parent.parent


def test_the_results_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    runs = recorded(ROOT / "results")
    expected = script["page"](script["rows_of"](runs), script["evaluations_of"](runs), script["played_in"](runs))
    assert (ROOT / "docs" / "results.md").read_text() == expected, "run `make docs`"


def test_the_baselines_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "baselines_page.py"))
    text = (ROOT / "docs" / "baselines.md").read_text()
    assert text == script["page"](text, ROOT / "results"), "run `make docs`"


def test_the_measurements_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    assert (ROOT / "docs" / "measurements.md").read_text() == script["page"](), "run `make docs`"


def test_the_results_page_says_what_was_not_run_and_averages_seeds() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    assert script["page"]([], []).count("not run") == 2 * 6 + 5 + 2
    row = {"task": "mnist", "network": "cnn", "setting": "default", "nll": 0.1, "ece": 0.2}
    row |= {"auroc_ovr": 0.9, "auroc_misclassification": 0.8}
    rows = [row | {"seed": 0, "epoch": 1, "error": 1.0}, row | {"seed": 1, "epoch": 1, "error": 2.0}]
    text = script["page"]([*rows, row | {"seed": 0, "epoch": 7, "error": 0.5}], [])
    line = next(line for line in text.splitlines() if "ours, default" in line)
    assert line.startswith("| **ours, default** | 1.50 ± 0.71 (2 seeds) | 0.50 | 7 |")


def test_the_results_page_shows_games() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    row = {"task": "infogan-mnist", "network": "infogan", "setting": "default", "seed": 0, "method": "tagi"}
    rows = [row | {"epoch": epoch, "accuracy": epoch / 10, "frechet": 2.0} for epoch in range(1, 8)]
    found = {"epochs": 7, "judge": "a judge", "frechet": 1.5, "neighbour_ratio": 0.94}
    text = script["page"](rows, [], {"infogan-mnist-infogan-default-seed0": found})
    assert "Evaluated after 7 epochs by a judge: Fréchet 1.50. Generated images are 0.94 times as far" in text
    shown = [line for line in text.splitlines() if line.startswith("| default, seed 0 |")]
    assert shown == [f"| default, seed 0 | {epoch} | {epoch / 10:.3f} | 2.00 |" for epoch in (1, 5, 7)]
    assert "../results/infogan-mnist-infogan-default-seed0/samples.png" in text
    assert script["page"]([], []).count("is recorded") == 3


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


def test_the_results_page_shows_first_epochs_seed_by_seed() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    row = {"task": "cifar10", "network": "resnet18half", "setting": "default", "nll": 0.1, "ece": 0.2, "epoch": 1}
    row |= {"auroc_ovr": 0.9, "auroc_misclassification": 0.8, "error": 50.0}
    rows = [row | {"seed": seed, "train_curve": [[1680, 80.0 + seed], [50000, 55.0]]} for seed in (1, 0)]
    text = script["page"](rows, [])
    assert "| resnet18half | 0 | 80.0 | 80.0 | 80.0 | 80.0 | 55.0 | 55.0 | 55.0 |" in text
    assert "| resnet18half | 1 | 81.0 |" in text
    assert "| resnet18 | not run |" in text


def test_the_results_page_shows_foreign_images_of_the_longest_default_run(tmp_path) -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "results_page.py"))
    config = {"task": "cifar10", "network": "3conv", "seed": 0}
    detection = {"auroc": 0.75, "fpr_at_95_tpr": 0.5}
    summary = {
        **{"out_of_distribution_set": "tinyimagenet", "ece": 0.01},
        "out_of_distribution": dict.fromkeys(("entropy", "max_probability", "epistemic_variance"), detection),
        "reliability": [{"images": 10, "confidence": 0.4, "accuracy": 0.5}],
    }
    for name, setting, epochs in (("short", "default", 1), ("long", "default", 2), ("other", "paper", 3)):
        run = Run.create(tmp_path / name, {**config, "setting": setting})
        for epoch in range(1, epochs + 1):
            run.add_metrics({"epoch": epoch})
        run.write_json("evaluation.json", {**summary, "epochs": epochs})
    found = script["evaluations_of"](recorded(tmp_path))
    assert [row["epochs"] for row in found] == [2]
    line = "| cifar10 | 3conv | 0 | 2 | tinyimagenet | 0.7500 | 0.7500 | 0.7500 | 50.0 % |"
    assert line in script["page"]([], found).splitlines()
    script["draw_reliability"](found, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_readme_has_the_comparisons_errors() -> None:
    """The table of baselines says what results/ says."""
    names = {"Adam": "adam", "MC-dropout": "mc-dropout", "VOGN": "vogn", "TAGI": "tagi"}
    names |= {"last-layer Laplace": "laplace", "ensemble of five": "ensemble"}
    few = [f"compare-mnist-{epochs}ep-n{n}" for epochs, n in ((100, 100), (30, 1000), (5, 10000))]
    folders = [*few, "compare-mnist-5ep", "compare-mnist-5ep", "compare-cifar10-10ep"]
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| method | 100 |"))
    for line in lines[start + 2 : start + 2 + len(names)]:
        label, *cells, cost = (part.strip(" *") for part in line.strip("|").split("|"))
        for column, (folder, shown) in enumerate(zip(folders, cells, strict=True)):
            content = json.loads((ROOT / "results" / folder / "comparison.json").read_text())
            found = next(row for row in content["rows"] if row["entry"] == names[label])
            value = found["error"]
            if column == 3:
                runs = [run for key, run in content["runs"].items() if key.startswith(f"{names[label]}/seed")]
                value = statistics.fmean(run["epochs"][0]["error"] for run in runs)
            assert float(shown) == pytest.approx(value, abs=0.51 * 10.0 ** -len(shown.partition(".")[2]))
            if column == 4:
                assert float(cost) == pytest.approx(found["relative_cost"], abs=0.051)
