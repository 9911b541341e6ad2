"""Small runs that several tests look at."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the tests' processes each has a core

import pytest
import torch

from small_runs import finished, small
from torchtagi.experiments import data
from torchtagi.experiments.runs.folder import Run


@pytest.fixture(scope="session")
def digits() -> data.TrainTest:
    return data.load_train_test("mnist")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, digits: data.TrainTest) -> Run:
    """Two epochs of 480 digits; tests that write to a run make a copy."""
    return finished(tmp_path_factory.mktemp("runs") / "trained", small(), digits)


@pytest.fixture
def colours() -> data.TrainTest:
    """64 + 32 random pictures in CIFAR-10's shape: enough to see if a run repeats itself."""
    generator = torch.Generator().manual_seed(5)

    def pictures(n: int) -> data.ImageSet:
        return data.ImageSet(
            name="cifar10",
            images=torch.randn(n, 3, 32, 32, generator=generator),
            labels=torch.randint(0, 10, (n,), generator=generator),
            classes=tuple("abcdefghij"),
            preprocessing=data.Preprocessing.centred(0.0, 0.0, 0.0),
        )

    return data.TrainTest(pictures(64), pictures(32))
