"""The name and the number format of everything that is measured, for pages and tables alike."""

from typing import Any, NamedTuple

from torchtagi.experiments.classify.tasks import TASKS
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.runs.folder import Row, Run


class Measure(NamedTuple):
    label: str = ""
    """On pages; what has none is not shown there."""
    head: str = ""
    """In a line about an epoch, of at most eight characters; what has none is not in it."""
    form: str = "{:.3f}"


EPOCH = Measure(head="epoch", form="{:,.0f}")
SPEED = {
    "samples_per_second": Measure("images learned a second", "img/s", "{:,.0f}"),
    "seconds": Measure(head="seconds", form="{:,.0f}"),
}
MEASURES = {
    "classifier": {
        "epoch": EPOCH,
        "error": Measure("test error", "error", "{:.2f} %"),
        "nll": Measure("negative log-likelihood", "NLL", "{:.4f}"),
        "ece": Measure("expected calibration error", "ECE", "{:.4f}"),
        "brier": Measure("Brier score", form="{:.4f}"),
        "auroc_ovr": Measure("AUROC, each class against the rest", form="{:.4f}"),
        "auroc_misclassification": Measure("AUROC, right answers over wrong ones", form="{:.4f}"),
        "train_error": Measure(head="training", form="{:.2f} %"),
        "noise_std": Measure(head="noise"),
        "alpha": Measure(head="α", form="{:.2f}"),
        **SPEED,
    },
    "gan": {
        "epoch": EPOCH,
        "accuracy": Measure("Qnet's accuracy on real test digits", "Qnet"),
        "own_codes": Measure("digits with a code of their own", "codes", "{:,.0f}"),
        "read_error": Measure("generated digits misclassified by the judge", "judge", "{:.1f} %"),
        "frechet": Measure("Fréchet distance to real images", "Fréchet"),
        "c1_slant": Measure("correlation of c1 with slant"),
        "c1_width": Measure("correlation of c1 with stroke width"),
        "c2_slant": Measure("correlation of c2 with slant"),
        "c2_width": Measure("correlation of c2 with stroke width"),
        "fake_as_fake": Measure("Pnet's P(generated) for generated images", "P, gen."),
        "real_as_fake": Measure("Pnet's P(generated) for real images", "P, real"),
        "neighbour_ratio": Measure("distance to the nearest training image, relative to real images'"),
        "neighbour_closest_share": Measure("share closer to a training image than 99 % of real ones"),
        "train_discriminator_alpha": Measure(head="α of D"),
        "train_generator_alpha": Measure(head="α of G"),
        **SPEED,
    },
}
FORMS = {name: measure.form for known in MEASURES.values() for name, measure in known.items()}
EPOCH_COLUMNS = {
    kind: {name: measure.head for name, measure in known.items() if measure.head}
    for kind, known in MEASURES.items()
}


def shown(name: str, value: Any) -> str:
    """A dash for what was not measured."""
    measured = isinstance(value, int | float) and value == value
    return FORMS.get(name, "{:.3f}").format(value) if measured else "–"


def kind_of(task: str) -> str:
    return "gan" if task in GAN_TASKS else "classifier"


def described(run: Run, row: Row) -> list[tuple[str, str]]:
    """What a row says of `run`, each measure by its name and as text, and what the paper has for the network."""
    known = MEASURES[kind_of(run.config["task"])]
    paper = {f"the paper's error after {epochs(epoch)}": value for epoch, value in paper_errors(run).items()}
    return [
        *(
            (measure.label, shown(name, row[name]))
            for name, measure in known.items()
            if measure.label and row.get(name) is not None
        ),
        *((label, shown("error", error)) for label, error in paper.items()),
    ]


def paper_errors(run: Run) -> dict[int, float]:
    """What the paper has for TAGI on the same network, by the number of epochs."""
    task = TASKS.get(run.config["task"])
    network = task.networks.get(run.config["network"]) if task and run.method == "tagi" else None
    return dict(network.paper_error) if network else {}


def epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"
