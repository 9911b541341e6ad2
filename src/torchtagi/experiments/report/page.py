"""One HTML page about a run, complete in itself: pictures embedded, nothing fetched, for light and dark screens."""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchtagi.experiments import data
from torchtagi.experiments.baselines import METHODS
from torchtagi.experiments.classify.config import TrainConfig
from torchtagi.experiments.classify.evaluation import Evaluation, evaluate, load_model
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.report import plots
from torchtagi.experiments.runs.folder import PLOTS, REPORT, Row, Run, RunError

NAMES = {
    "error": "test error",
    "nll": "negative log-likelihood",
    "ece": "expected calibration error",
    "brier": "Brier score",
    "auroc_ovr": "AUROC, each class against the rest",
    "auroc_misclassification": "AUROC, right answers over wrong ones",
}
MEASURES = {
    "entropy": "entropy",
    "max_probability": "1 − largest probability",
    "epistemic_variance": "epistemic variance",
}
REPORTS = {"noise_std": "noise", "alpha": "α", "innovation": "r²/(v+R)", "loss": "loss"}
ALT = {
    "learning": "error, negative log-likelihood and calibration error by epoch",
    "reliability": "accuracy against confidence",
    "uncertain": "the test images with the most uncertain predictions",
    "wrong": "the wrong predictions with the highest confidence",
    "ood": "histograms of the predictions' entropy for test and out-of-distribution images",
    "weights": "histograms of weight means and standard deviations before and after",
}
STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #667085; --ground: #ffffff; --card: #f4f6f9;
  --line: #dde2ea; --main: #2563c9; --accent: #d4691e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ef; --soft: #98a2b3; --ground: #161a21; --card: #1f252f;
  --line: #313a48; --main: #7fb0ff; --accent: #ffab66; } }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.7rem; } h2 { margin: 2.8rem 0 .4rem; font-size: 1.2rem; }
p { margin: .4rem 0 .9rem; max-width: 46rem; } .soft { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .7rem;
  margin: 1.4rem 0; }
.card { background: var(--card); border-radius: .6rem; padding: .8rem 1rem; }
.card b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; color: var(--main); }
.card span { color: var(--soft); font-size: .82rem; line-height: 1.3; display: block; }
img { max-width: 100%; height: auto; } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .28rem .7rem; text-align: right; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); } td:first-child, th:first-child { text-align: left; }
.confusion td { text-align: center; min-width: 1.9rem; } .confusion th { text-align: center; }
"""


def write_report(run: Run, download: bool = False, progress: Callable[[str], None] | None = None) -> Path:
    """Evaluate `run`, draw its plots and write its page; returns the page's path."""
    plots.require_matplotlib()
    say = progress or (lambda message: None)
    rows = run.metrics()
    if not rows:
        raise RunError(f"{run.folder} has not finished an epoch yet: nothing to report")
    if run.config.get("fold") is not None:
        raise RunError(
            f"{run.folder} is of a tuning, measured on images held out at its end only: nothing to report"
        )
    evaluation = evaluate(run, download, say)
    paper_error = evaluation.task.network(run.config["network"]).paper_error if run.method == "tagi" else {}
    say("drawing")
    drawn: dict[str, Callable[[str], plots.Figure | None]] = {
        "learning": partial(plots.learning_curves, rows, paper_error),
        "reliability": partial(plots.reliability, evaluation),
        "uncertain": partial(plots.most_uncertain, evaluation),
        "wrong": partial(plots.confidently_wrong, evaluation),
        "ood": partial(plots.ood_entropies, evaluation),
    }
    if run.method == "tagi":
        drawn["weights"] = weight_plot(run)
    figures: dict[str, str] = {}
    for name, draw in drawn.items():
        figure, dark = draw("light"), draw("dark")
        if figure is not None and dark is not None:
            light = plots.as_png(figure)
            run.write(f"{PLOTS}/{name}.png", light)
            figures[name] = picture(ALT[name], round(96 * figure.get_figwidth()), light, plots.as_png(dark))
    return run.write(REPORT, page(run, rows, evaluation, dict(paper_error), figures).encode())


def weight_plot(run: Run) -> Callable[[str], plots.Figure]:
    """A TAGI network's weights before and after, as a function of the theme."""
    config = dataclasses.replace(TrainConfig.from_json(run.config), device="cpu")
    with torch.random.fork_rng(devices=[]):  # the prior is what seed and data say, so no file has to keep it
        prior = Training(config, sets=data.load_train_test(config.task)).learner.net
    return partial(plots.weights, prior, load_model(run).predicting)


def page(run: Run, rows: list[Row], evaluation: Evaluation, paper_error: dict[int, float], figures: Any) -> str:
    config, thing = run.config, evaluation.task.thing
    title = f"{config['task']} · {config['network']} · {config['setting']} · seed {config['seed']}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f'<p class="soft">{len(rows)} {plural("epoch", len(rows))} of {how_it_learned(run)}; measured on '
        f"{len(evaluation.labels):,} test {thing}s.</p>",
        cards(evaluation, rows, paper_error),
        section("How it learned", learning_text(run, rows[-1]), figures["learning"], epoch_table(rows)),
        section(
            "Can its probabilities be trusted?",
            "On the diagonal, of the answers given with 80 % confidence 80 % are right. "
            "Bars show one standard error; below, how many images are behind each point.",
            figures["reliability"],
        ),
        section(
            f"The most uncertain {thing}s",
            "With the truth and the two likeliest answers; in orange where the first is wrong.",
            figures["uncertain"],
        ),
        section(
            "Confidently wrong",
            "The errors made with most confidence; some of them may be the label's.",
            figures.get("wrong", "<p>There is not a single error.</p>"),
        ),
        section("What is taken for what", "Rows: the truth. Columns: the answer.", confusion_table(evaluation)),
        detection_section(evaluation, figures),
    ]
    if "weights" in figures:
        text = (
            "Above, the weights' means before and after. Below, how far each weight's standard deviation has "
            "shrunk: at 1 the data said nothing about it; dotted is the median."
        )
        parts.append(section("From prior to posterior", text, figures["weights"]))
    return document(title, [*parts, section("Configuration", "", config_table(config))])


def document(title: str, parts: Iterable[str]) -> str:
    """The whole page around its parts."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def how_it_learned(run: Run) -> str:
    weights = f"{shown(run.config.get('parameters'), ',')} weights"
    if run.method == "tagi":
        return f"closed-form Gaussian inference (TAGI), {weights}, each with a mean and a variance"
    return f"{html.escape(METHODS[run.method].title)}, {weights}"


def learning_text(run: Run, last: Row) -> str:
    start = "The training error is that on each batch before it was learned. "
    if run.method == "tagi":
        return (
            f"{start}There is no learning rate; the mean fraction of the messages applied in the last epoch was "
            f"{shown(last.get('alpha'), '.2f')}, the observation noise it ended with "
            f"{shown(last.get('noise_std'), '.3f')}."
        )
    return f"{start}The mean training loss of the last epoch was {shown(last.get('loss'), '.4f')}."


def cards(evaluation: Evaluation, rows: list[Row], paper_error: dict[int, float]) -> str:
    values = [(format_score(name, evaluation.scores[name]), label) for name, label in NAMES.items()]
    values += [
        (f"{error:.2f} %", f"the paper's error after {epoch} {plural('epoch', epoch)}")
        for epoch, error in paper_error.items()
    ]
    return card_row([*values, (shown(rows[-1].get("samples_per_second"), ",.0f"), "images learned a second")])


def card_row(values: Iterable[tuple[str, str]]) -> str:
    """Large numbers, each with what it is."""
    body = "".join(
        f'<div class="card"><b>{value}</b><span>{html.escape(label)}</span></div>' for value, label in values
    )
    return f'<div class="cards">{body}</div>'


def detection_section(evaluation: Evaluation, figures: dict[str, str]) -> str:
    title, ood_set = "Does it notice what it has never seen?", evaluation.task.ood
    if evaluation.detection is None:
        # `note` names the address to fetch it from, which has no place in a page that needs no network
        return section(
            title,
            f"Not measured: {ood_set} is not on this machine. With it, `tagi report` compares how uncertain the "
            "network is about its images and about the test set.",
        )
    body = [
        [MEASURES[name], f"{found['auroc']:.4f}", f"{100 * found['fpr_at_95_tpr']:.1f} %"]
        for name, found in evaluation.detection.items()
    ]
    alarms = f"test {evaluation.task.thing}s flagged when 95 % of out-of-distribution images are"
    return section(
        title,
        f"Images of {ood_set}, which are out of its distribution, against its own test set: by which measure of "
        "uncertainty can they be told apart, and how well?",
        figures.get("ood", ""),
        table(["measure", "AUROC", alarms], body),
    )


def epoch_table(rows: list[Row]) -> str:
    """All measured epochs of a short run; of a long one the first, the last and some between."""
    rows = [row for row in rows if row.get("error") is not None]
    if len(rows) > 12:
        rows = [row for row in rows if row["epoch"] in (1, 2, 5) or row["epoch"] % 10 == 0 or row is rows[-1]]
    scores = {"error": "error", "nll": "NLL", "ece": "ECE", "brier": "Brier"}
    reports = {name: label for name, label in REPORTS.items() if rows and name in rows[-1]}
    heads = ["epoch", *scores.values(), "training error", *reports.values(), "img/s"]
    body = [
        [
            str(row["epoch"]),
            *(format_score(name, row.get(name)) for name in scores),
            format_score("error", row.get("train_error")),
            *(shown(row.get(name), ".3f") for name in reports),
            shown(row.get("images_per_second"), ",.0f"),
        ]
        for row in rows
    ]
    return table(heads, body)


def confusion_table(evaluation: Evaluation) -> str:
    names = evaluation.test.classes
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    lines = []
    for truth, counts in enumerate(evaluation.confusion.tolist()):
        total = max(sum(counts), 1)
        cells = []
        for answer, count in enumerate(counts):
            # Errors are few: their shade is stretched, a share of 5 % is already full.
            strength = 100 * count / total if answer == truth else min(100.0, 2000 * count / total)
            colour = "var(--main)" if answer == truth else "var(--accent)"
            shade = f"background: color-mix(in srgb, {colour} {0.45 * strength:.0f}%, transparent)"
            cells.append(f'<td style="{shade}">{count or "·"}</td>')
        lines.append(f"<tr><th>{html.escape(names[truth])}</th>{''.join(cells)}</tr>")
    return f'<div class="wide"><table class="confusion"><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'


def config_table(config: Row) -> str:
    flat = {key: value for key, value in config.items() if not isinstance(value, dict)}
    versions = config.get("versions")
    if isinstance(versions, dict):
        flat |= {f"{name} version": value for name, value in versions.items()}
    return table(["", ""], [[key.replace("_", " "), "all" if v is None else str(v)] for key, v in flat.items()])


def section(title: str, text: str, *content: str) -> str:
    paragraph = f"<p>{html.escape(text)}</p>" if text else ""
    return f"<section><h2>{html.escape(title)}</h2>{paragraph}{''.join(content)}</section>"


def table(heads: Iterable[str], body: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    lines = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body)
    return f'<div class="wide"><table><tr>{head}</tr>{lines}</table></div>'


def picture(alt: str, width: int, light: bytes, dark: bytes) -> str:
    def embedded(png: bytes) -> str:
        return f"data:image/png;base64,{base64.b64encode(png).decode()}"

    return (
        f'<picture><source srcset="{embedded(dark)}" media="(prefers-color-scheme: dark)">'
        f'<img src="{embedded(light)}" width="{width}" alt="{html.escape(alt)}"></picture>'
    )


def shown(value: Any, form: str) -> str:
    """A dash for what was not measured."""
    return format(value, form) if isinstance(value, int | float) and value == value else "–"


def format_score(name: str, value: float | None) -> str:
    text = shown(value, ".2f" if name == "error" else ".4f")
    return f"{text} %" if name == "error" and text != "–" else text


def plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
