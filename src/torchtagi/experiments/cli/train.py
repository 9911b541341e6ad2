"""`tagi train`, a classifier of images, and `tagi gan`."""

from typing import Annotated

import typer

from torchtagi.experiments.classify.config import TrainConfig, configure
from torchtagi.experiments.classify.tasks import TASKS
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.cli import shared
from torchtagi.experiments.cli.progress import options_of, run_training
from torchtagi.experiments.gan.config import METHODS, GanConfig, configure_gan
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.gan.training import GanTraining

ARCHITECTURES = "; ".join(f"{task.name}: {', '.join(task.networks)}" for task in TASKS.values())


def train(
    task: Annotated[str, typer.Argument(help=f"One of {', '.join(TASKS)}.")],
    network: Annotated[str | None, typer.Option("--arch", help=f"The network. {ARCHITECTURES}.")] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="The paper's setting: its update, σ_V from 1 by 0.975 an epoch, 50 epochs."),
    ] = False,
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
    shard: Annotated[
        bool, typer.Option("--shard", help="Of several processes each keeps a part of the weights only.")
    ] = False,
) -> None:
    """Train a classifier; Ctrl-C stops it cleanly, --resume continues it exactly.

    On several processes: torchrun --nproc-per-node N -m torchtagi train …; a step takes a batch from each of them.

    From the second epoch on images are varied at random: digits are shifted, CIFAR-10 is cropped and mirrored. With
    --paper for ResNet18 only, from the first epoch on.
    """
    given = options_of(TrainConfig, locals())
    if task in GAN_TASKS:
        raise ValueError(f"{task} is a GAN: tagi gan {task}")
    config = configure(task, paper=paper, **given)
    run_training(Training, config, given, out, resume, overwrite, report, shard)


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
    run_training(GanTraining, config, given, out, resume, overwrite, report)
