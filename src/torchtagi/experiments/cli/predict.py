"""`tagi predict`: the class of an image file, with its uncertainty."""

import bisect
from pathlib import Path
from typing import Annotated

import torch
import typer

from torchtagi.experiments.classify import evaluation
from torchtagi.experiments.classify.tasks import find_task
from torchtagi.experiments.cli.shared import AsJson, RunFolder, console, new_table, print_json
from torchtagi.experiments.data.picture import Picture, read_picture
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.runs.folder import EVALUATION, Row, Run, RunError
from torchtagi.prediction import ClassPrediction

BAR = 24


def predict(
    run: RunFolder,
    images: Annotated[list[Path], typer.Argument(help="Image files of any size, colour or polarity.")],
    as_json: AsJson = False,
) -> None:
    """Class probabilities for image files, with their uncertainty."""
    opened = Run.open(run)
    if opened.config["task"] in GAN_TASKS:
        raise RunError(f"{run} is a GAN, which draws images and does not name them: tagi generate {run}")
    task = find_task(opened.config["task"])
    predictor = evaluation.load_predictor(opened)
    channels, side, _ = task.image_shape
    quantiles = entropy_quantiles(opened)
    answers = []
    for path in images:
        picture = read_picture(path, channels, side)
        x = task.preprocessing.apply(picture.image)
        prediction = predictor.predict(x.to(memory_format=torch.channels_last))
        rank = bisect.bisect_left(quantiles, float(prediction.entropy[0])) if quantiles else None
        answers.append(describe(path, picture, prediction, task.classes, rank))
        if not as_json:
            show(answers[-1], task.thing)
    if as_json:
        print_json(answers)


def entropy_quantiles(run: Run) -> list[float]:
    """Of the test set, as `tagi evaluate` left them; empty before it has."""
    found = (run.evaluation() or {}).get("entropy_quantiles") or []
    if not isinstance(found, list) or not all(isinstance(value, int | float) for value in found):
        raise RunError(
            f"{run.folder / EVALUATION}: entropy_quantiles must be numbers; tagi evaluate writes it anew"
        )
    return found


def describe(
    path: Path, picture: Picture, prediction: ClassPrediction, classes: tuple[str, ...], rank: int | None
) -> Row:
    """One image's answer as JSON; a standard deviation is that of a class's probability over the posterior."""
    parts = {
        "probability": prediction.probs[0],
        "std": prediction.epistemic[0].sqrt(),
        "epistemic": prediction.epistemic[0],
        "aleatoric": prediction.aleatoric[0],
    }
    return {
        "file": str(path),
        "prepared": picture.steps,
        "answer": classes[int(prediction.labels[0])],
        "probability": float(prediction.confidence[0]),
        "entropy": float(prediction.entropy[0]),
        "more_uncertain_than_percent_of_test_set": rank,
        "classes": {
            name: {part: float(values[c]) for part, values in parts.items()} for c, name in enumerate(classes)
        },
    }


def show(answer: Row, thing: str) -> None:
    console.print(answer["file"], style="bold")
    for step in answer["prepared"] or ["taken as it is"]:
        console.print(f"  {step}")
    table = new_table("class", "probability", "± std", "")
    table.columns[-1].justify = "left"
    ranked = sorted(answer["classes"].items(), key=lambda entry: -entry[1]["probability"])
    for position, (name, value) in enumerate(ranked):
        numbers = (f"{100 * value[part]:.2f} %" for part in ("probability", "std"))
        style = "bold" if position == 0 else "" if value["probability"] >= 0.01 else "dim"
        table.add_row(name, *numbers, "█" * round(BAR * value["probability"]), style=style)
    console.print(table)
    line = f"answer: {answer['answer']}, entropy {answer['entropy']:.3f} nats"
    rank = answer["more_uncertain_than_percent_of_test_set"]
    if rank is not None:
        line += f", more uncertain than {min(rank, 100)} % of the test {thing}s"
    console.print(line)
