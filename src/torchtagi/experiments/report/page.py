"""One HTML page about a run, a classifier's or a GAN's (the paper's Figures 3 to 5)."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path

import torch
from torch import Tensor

from torchtagi.experiments import data
from torchtagi.experiments.baselines.methods import METHODS
from torchtagi.experiments.classify.config import TrainConfig
from torchtagi.experiments.classify.evaluation import Evaluation, evaluate, load_model
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.gan.config import open_gan
from torchtagi.experiments.gan.drawing import STRIP, as_png, sample_sheet_latents, sheet
from torchtagi.experiments.gan.latent import Latents
from torchtagi.experiments.gan.request import code_of_digit, latent_grid
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.report import elements as html
from torchtagi.experiments.report import measures, plots
from torchtagi.experiments.runs.folder import PLOTS, REPORT, Row, Run, RunError

GALLERY = 24
MANY_EPOCHS = 12
SWEEP = torch.linspace(-1, 1, 9).tolist()
REPORT_SEED = 3

Say = Callable[[str], None]


def write_report(run: Run, download: bool = False, progress: Say | None = None) -> Path:
    """Measure `run`, draw its plots and write its page; returns the page's path."""
    rows, config = run.metrics(), run.config
    if not rows:
        raise RunError(f"{run.folder} has not finished an epoch yet: nothing to report")
    if config.get("fold") is not None:
        raise RunError(f"{run.folder} is of a tuning, measured on held-out images: nothing to report")
    say = progress or (lambda message: None)
    parts = gan_parts(run, rows) if config["task"] in GAN_TASKS else classifier_parts(run, rows, download, say)
    title = f"{config['task']} · {config['network']} · {config['setting']} · seed {config['seed']}"
    configuration = html.section("Configuration", "", config_table(config))
    return run.write(REPORT, html.document(title, [*parts, configuration]).encode())


def classifier_parts(run: Run, rows: list[Row], download: bool, say: Say) -> Iterable[str]:
    evaluation = evaluate(run, download, say)
    say("drawing")
    task, test, labels, prediction, _, found = evaluation
    last, thing, by_tagi = rows[-1], task.thing, run.method == "tagi"
    weights = run.config.get("parameters")
    how = "closed-form Gaussian inference (TAGI)" if by_tagi else METHODS[run.method].title
    yield lead(
        f"{measures.epochs(len(rows))} of {how}, {f'{weights:,}' if isinstance(weights, int) else '–'} weights"
        f"{', each with a mean and a variance' * by_tagi}; measured on {len(test):,} test {thing}s."
    )
    yield html.cards(measures.described(run, {**found, "samples_per_second": last.get("samples_per_second")}))
    text = "The training error is that on each batch before it was learned. "
    text += (
        "There is no learning rate; α is the mean fraction of the messages applied."
        if by_tagi
        else f"The mean training loss of the last epoch was {measures.shown('loss', last.get('loss'))}."
    )
    curves = plots.learning_curves(rows, measures.paper_errors(run))
    yield learned(run, rows, text, curves)
    yield html.section(
        "Can its probabilities be trusted?",
        "On the diagonal, of the answers given with 80 % confidence 80 % are right. "
        "Bars show one standard error: they are long where images are few.",
        drawn(run, "reliability", "accuracy against confidence", plots.reliability(found["reliability"])),
    )
    yield html.section(
        f"The most uncertain {thing}s",
        "With the truth and the two likeliest answers; in orange where the first is wrong.",
        gallery(evaluation, prediction.entropy),
    )
    wrong = prediction.labels != labels
    yield html.section(
        "Confidently wrong",
        "The errors made with most confidence; some of them may be the label's.",
        gallery(evaluation, prediction.confidence, wrong) if wrong.any() else "<p>There is not a single error.</p>",
    )
    confusion = html.confusion_table(test.classes, found["confusion"])
    yield html.section("What is taken for what", "Rows: the truth. Columns: the answer.", confusion)
    yield detection_section(run, evaluation)
    if by_tagi:
        yield html.section(
            "From prior to posterior",
            "Above, the weights' means before and after. Below, how far each weight's standard deviation has "
            "shrunk: at 1 the data said nothing about it; dotted is the median.",
            drawn(run, "weights", "histograms of weight means and standard deviations", weight_plot(run)),
        )


def gan_parts(run: Run, rows: list[Row]) -> Iterable[str]:
    gan, pixels = open_gan(run)
    space, by_tagi = gan.space, run.method == "tagi"
    how = "closed-form Gaussian inference (TAGI)" if by_tagi else "backprop with Adam"
    weights = sum(parameter.numel() for parameter in gan.networks.parameters()) // (2 if by_tagi else 1)
    yield lead(
        f"{measures.epochs(len(rows))} of {how}: a generator draws, a discriminator tells its images from real ones"
        f"{' and reads the codes back from them' * space.has_codes}. {weights:,} weights."
    )
    yield html.cards(measures.described(run, {**rows[-1], **(run.evaluation() or {})}))

    def drawings(title: str, text: str, latents: Latents, columns: int) -> str:
        png = as_png(sheet(pixels.to_uint8(gan.draw(latents)), columns))
        run.write(f"{PLOTS}/{title.lower().replace(' ', '-')}.png", png)
        return html.section(title, text, html.image(png, title))

    if GAN_TASKS[run.config["task"]].has_digits and space.categories:
        codes = code_of_digit(run)
        latents, _ = latent_grid(space, {}, {0: codes}, samples=10, seed=REPORT_SEED)
        by_row = latents[torch.arange(100).view(10, 10).t().flatten()]  # a grid has the codes along its columns
        text = "One digit a row, by the code that real digits assign to it; every column has its own noise."
        yield drawings("Reference digits", text, by_row, 10)
        for place in range(space.continuous):
            code = f"c{place + 1}"
            slant, width = (measures.shown("", rows[-1].get(f"{code}_{effect}")) for effect in ("slant", "width"))
            text = f"From −1 to 1; correlation with measured slant {slant}, with stroke width {width}."
            grid = latent_grid(space, {place: SWEEP}, {0: codes}, seed=REPORT_SEED)
            yield drawings(f"Code {code} varied", text, *grid)
    else:
        text = "Random noise, the first code a row where there are codes."
        yield drawings("Samples", text, sample_sheet_latents(space), 10)
        for place, classes in enumerate(space.categories):
            text = "One class a column, all else alike within a row."
            grid = latent_grid(space, {}, {place: range(classes)}, samples=4, seed=REPORT_SEED)
            yield drawings(f"Category {place + 1}", text, *grid)
    strip = run.folder / STRIP
    film = html.image(strip.read_bytes(), "the filmstrip") if strip.is_file() else "<p>Not drawn.</p>"
    yield html.section("Over the training", "The same latent points, an epoch a column.", film)
    yield learned(run, rows, "", plots.gan_curves(rows))


def lead(text: str) -> str:
    return f'<p class="soft">{escape(text)}</p>'


def drawn(run: Run, name: str, alt: str, figure: plots.Figure) -> str:
    """A figure, kept as a file too."""
    png = plots.as_png(figure)
    run.write(f"{PLOTS}/{name}.png", png)
    return html.image(png, alt, chart=True)


def learned(run: Run, rows: list[Row], text: str, curves: plots.Figure) -> str:
    figure = drawn(run, "learning", "measures by epoch", curves)
    table = epoch_table(rows, measures.EPOCH_COLUMNS[measures.kind_of(run.config["task"])])
    return html.section("How it learned", text, figure, table)


def epoch_table(rows: list[Row], columns: Mapping[str, str]) -> str:
    """All measured epochs of a short run; of a long one the first, the last and some between."""
    rows = [row for row in rows if row.get("error", row.get("frechet")) is not None]
    if len(rows) > MANY_EPOCHS:
        rows = [row for row in rows if row["epoch"] in (1, 2, 5) or row["epoch"] % 10 == 0 or row is rows[-1]]
    names = [name for name in columns if any(row.get(name) is not None for row in rows)]
    body = [[measures.shown(name, row.get(name)) for name in names] for row in rows]
    return html.table([columns[name] for name in names], body)


def gallery(evaluation: Evaluation, order: Tensor, among: Tensor | None = None) -> str:
    """The images that are first by `order`, each with the truth and the two likeliest answers."""
    names, parts = evaluation.test.classes, []
    ranked = order.argsort(descending=True).tolist()
    for i in [i for i in ranked if among is None or among[i]][:GALLERY]:
        best, truth = evaluation.prediction.probs[i].topk(2), int(evaluation.labels[i])
        guesses = [f"{names[c]}: {100 * p:.0f} %" for p, c in zip(*map(Tensor.tolist, best), strict=True)]
        wrong = ' class="wrong"' if int(best.indices[0]) != truth else ""
        picture = html.address(as_png(evaluation.test.to_uint8(evaluation.test.images[i : i + 1])[0], scale=1))
        caption = f"is {escape(names[truth])}<br>{'<br>'.join(map(escape, guesses))}"
        parts.append(f'<figure{wrong}><img src="{picture}" alt="">{caption}</figure>')
    return f'<div class="gallery">{"".join(parts)}</div>'


def detection_section(run: Run, evaluation: Evaluation) -> str:
    title, task = "Does it notice what it has never seen?", evaluation.task
    if evaluation.ood is None:
        # `note` names the address to fetch it from, which has no place in a page that needs no network
        return html.section(
            title,
            f"Not measured: {task.ood} is not on this machine. With it, `tagi report` compares how uncertain the "
            "network is about its images and about the test set.",
        )
    figure = plots.ood_entropies((task.name, task.ood), (evaluation.prediction.entropy, evaluation.ood.entropy))
    flagged = f"test {task.thing}s flagged when 95 % of out-of-distribution images are"
    return html.section(
        title,
        f"Images of {task.ood}, which are out of its distribution, against its own test set: by which measure of "
        "uncertainty can they be told apart, and how well?",
        drawn(run, "ood", "histograms of the predictions' entropy", figure),
        html.table(["measure", "AUROC", flagged], detection_rows(evaluation.found["out_of_distribution"])),
    )


def detection_rows(detection: Mapping[str, Row]) -> list[tuple[str, str, str]]:
    """By each measure of uncertainty: the AUROC, and the false alarms when 95 % are found."""
    return [
        (name.replace("_", " "), f"{found['auroc']:.4f}", f"{100 * found['fpr_at_95_tpr']:.1f} %")
        for name, found in detection.items()
    ]


def weight_plot(run: Run) -> plots.Figure:
    """A TAGI network's weights before and after. The prior is what seed and data say, so no file has to keep it."""
    config = dataclasses.replace(TrainConfig.from_json(run.config), device="cpu")
    with torch.random.fork_rng(devices=[]):
        prior = Training(config, sets=data.load_train_test(config.task)).learner.net
    return plots.weights(prior, load_model(run).predicting)


def config_table(config: Row) -> str:
    flat = {key: value for key, value in config.items() if not isinstance(value, dict)}
    versions = config.get("versions")
    flat |= {f"{name} version": v for name, v in versions.items()} if isinstance(versions, dict) else {}
    return html.table(["", ""], [[key.replace("_", " "), "–" if v is None else str(v)] for key, v in flat.items()])
