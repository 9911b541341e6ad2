"""The name and the number format of everything that is measured, for pages and tables alike."""

from typing import Any

from torchtagi.experiments.classify.tasks import TASKS
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.runs.folder import Row, Run

MEASURES = {
    "classifier": {
        "error": "test error",
        "nll": "negative log-likelihood",
        "ece": "expected calibration error",
        "brier": "Brier score",
        "auroc_ovr": "AUROC, each class against the rest",
        "auroc_misclassification": "AUROC, right answers over wrong ones",
        "samples_per_second": "images learned a second",
    },
    "gan": {
        "accuracy": "Qnet's accuracy on real test digits",
        "own_codes": "digits with a code of their own",
        "read_error": "generated digits misclassified by the judge",
        "frechet": "Fréchet distance to real images",
        "c1_slant": "correlation of c1 with slant",
        "c1_width": "correlation of c1 with stroke width",
        "c2_slant": "correlation of c2 with slant",
        "c2_width": "correlation of c2 with stroke width",
        "fake_as_fake": "Pnet's P(generated) for generated images",
        "real_as_fake": "Pnet's P(generated) for real images",
        "neighbour_ratio": "distance to the nearest training image, relative to real images'",
        "neighbour_closest_share": "share closer to a training image than 99 % of real ones",
        "samples_per_second": "images learned a second",
    },
}
EPOCH_COLUMNS = {
    "classifier": {
        "epoch": "epoch",
        "error": "error",
        "nll": "NLL",
        "ece": "ECE",
        "train_error": "training",
        "noise_std": "noise",
        "alpha": "α",
        "samples_per_second": "img/s",
        "seconds": "seconds",
    },
    "gan": {
        "epoch": "epoch",
        "accuracy": "Qnet",
        "own_codes": "codes",
        "read_error": "judge",
        "frechet": "Fréchet",
        "fake_as_fake": "P, gen.",
        "real_as_fake": "P, real",
        "train_discriminator_alpha": "α of D",
        "train_generator_alpha": "α of G",
        "samples_per_second": "img/s",
        "seconds": "seconds",
    },
}
"""What a line about an epoch says, in at most eight characters each."""
FORMATS = {
    **dict.fromkeys(("epoch", "own_codes", "samples_per_second", "seconds"), "{:,.0f}"),
    **dict.fromkeys(("error", "train_error"), "{:.2f} %"),
    **dict.fromkeys(("nll", "ece", "brier", "auroc_ovr", "auroc_misclassification"), "{:.4f}"),
    **{"read_error": "{:.1f} %", "alpha": "{:.2f}"},
}


def shown(name: str, value: Any) -> str:
    """A dash for what was not measured."""
    measured = isinstance(value, int | float) and value == value
    return FORMATS.get(name, "{:.3f}").format(value) if measured else "–"


def kind_of(task: str) -> str:
    return "gan" if task in GAN_TASKS else "classifier"


def described(run: Run, row: Row) -> list[tuple[str, str]]:
    """What a row says of `run`, each measure by its name and as text, and what the paper has for the network."""
    known = MEASURES[kind_of(run.config["task"])]
    paper = {f"the paper's error after {epochs(epoch)}": value for epoch, value in paper_errors(run).items()}
    return [
        *((label, shown(name, row[name])) for name, label in known.items() if row.get(name) is not None),
        *((label, shown("error", error)) for label, error in paper.items()),
    ]


def paper_errors(run: Run) -> dict[int, float]:
    """What the paper has for TAGI on the same network, by the number of epochs."""
    task = TASKS.get(run.config["task"])
    network = task.networks.get(run.config["network"]) if task and run.method == "tagi" else None
    return dict(network.paper_error) if network else {}


def epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"
