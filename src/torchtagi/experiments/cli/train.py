"""`tagi train`: a classifier of images."""

from typing import Annotated

import typer

from torchtagi.experiments.classify.config import TrainConfig, configure
from torchtagi.experiments.classify.tasks import TASKS
from torchtagi.experiments.classify.training import Training
from torchtagi.experiments.cli import shared
from torchtagi.experiments.cli.progress import Kind, options_of
from torchtagi.experiments.gan.tasks import GAN_TASKS
from torchtagi.experiments.report.measures import EPOCH_COLUMNS
from torchtagi.fitting import Step

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
    kind = Kind("train", Training, progress_state, EPOCH_COLUMNS["classifier"])
    kind.run(config, task, given, out, resume, overwrite, report, shard)


def progress_state(step: Step) -> str:
    return f"error {step.error:.2f} %  α {step.report['alpha']:.2f}"
