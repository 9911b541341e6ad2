"""`tagi gan`: train a GAN."""

from typing import Annotated

import typer

from torchtagi.experiments.cli import shared
from torchtagi.experiments.cli.progress import Kind, options_of
from torchtagi.experiments.gan.config import METHODS, GanConfig, configure_gan
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.gan.training import GanTraining
from torchtagi.experiments.report.measures import EPOCH_COLUMNS
from torchtagi.fitting import Step


def gan(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(GAN_TASKS)}.")],
    paper: Annotated[bool | None, typer.Option("--paper", help="The paper's setting and its 50 epochs.")] = None,
    method: Annotated[
        str | None, typer.Option(help=f"{' or '.join(METHODS)}, the same networks by backprop; tagi unless given.")
    ] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="The classifier that reads generated digits: a `tagi train mnist` run, `quick` or `none`."
        ),
    ] = None,
    epochs: shared.Epochs = None,
    batch_size: shared.BatchSize = None,
    seed: shared.Seed = None,
    samples: shared.Samples = None,
    test_samples: shared.TestSamples = None,
    device: shared.Device = None,
    threads: shared.Threads = None,
    precision: shared.Precision = None,
    out: shared.OutFolder = None,
    resume: shared.Resume = False,
    overwrite: shared.Overwrite = False,
    report: shared.ReportPage = True,
) -> None:
    """Train a GAN without labels; Ctrl-C stops it cleanly, --resume continues it exactly."""
    given = options_of(GanConfig, locals()) | ({"judge": None} if judge == "none" else {})
    config = configure_gan(task, **given)
    kind = Kind("gan", GanTraining, progress_state, EPOCH_COLUMNS["gan"])
    kind.run(config, config.kind.data, given, out, resume, overwrite, report)


def progress_state(step: Step) -> str:
    report = {name.removeprefix("train_"): value for name, value in step.report.items()}
    text = f"Pnet real {report['real']:+.2f} generated {report['fake']:+.2f}"
    if "generator_alpha" in report:
        text += f"  α {report['discriminator_alpha']:.2f} {report['generator_alpha']:.2f}"
    return text + f"  |pixel| ≤ {report['largest_pixel']:.1f}"
