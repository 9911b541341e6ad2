"""Processes that fit one model together, and one process that fits it alone, end with the same model."""

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from several_processes import run_on
from torch import Tensor, distributed as dist, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import torchtagi as tagi
from torchtagi import classifier, distributed
from torchtagi.experiments.classify.paper import PaperClassifier
from torchtagi.fitting import Batches, EpochEnd, Fit
from torchtagi.inference import passes

JOINT_BATCH = 16
SAMPLES = 7 * JOINT_BATCH + 1  # in the last step of an epoch all but one process are without a sample
IMAGE = (1, 6, 6)
Result = dict[str, Any]


def images(seed: int = 0, samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (samples,), generator=generator)
    return torch.randn(samples, *IMAGE, generator=generator, dtype=torch.float64) + y.view(-1, 1, 1, 1), y


def rows(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = 5 + 3 * torch.randn(samples, 4, generator=generator, dtype=torch.float64)
    y = torch.stack([x[:, 0].sin(), x[:, 1] * x[:, 2]], 1)
    y[::7, 1] = math.nan
    return x, y + 0.1 * torch.randn(samples, 2, generator=generator, dtype=torch.float64)


def with_norm(norm: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(
        *(tagi.nn.Conv2d(1, 4, 3, padding=1), tagi.nn.ReLU(), norm(), tagi.nn.AvgPool2d(2)),
        *(tagi.nn.Flatten(), tagi.nn.Linear(36, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 3)),
    )


def residual() -> nn.Module:
    body = nn.Sequential(
        tagi.nn.Conv2d(4, 4, 3, padding=1, bias=False), tagi.nn.ReLU(), tagi.nn.BatchNorm2d(4, affine=False)
    )
    stem = tagi.nn.Conv2d(1, 4, 3, padding=1, bias=False), tagi.nn.BatchNorm2d(4, momentum=None)
    return nn.Sequential(*stem, tagi.nn.Residual(body), tagi.nn.Flatten(), tagi.nn.Linear(144, 3))


NETS: dict[str, Callable[[], nn.Module]] = {
    "no norm": lambda: with_norm(tagi.nn.Identity),
    "layer norm": lambda: with_norm(lambda: tagi.nn.LayerNorm((4, 6, 6))),
    "batch norm": lambda: with_norm(lambda: tagi.nn.BatchNorm2d(4, correction=1)),
    "running batch norm": lambda: with_norm(lambda: tagi.nn.BatchNorm2d(4, use_running=True)),
    "residual": residual,
}


class Pairs(Dataset):
    """A data set whose samples come one by one."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.x[row], int(self.y[row])


def classify(net: str, data: Any = None, **options: Any) -> Result:
    model = tagi.Classifier(NETS[net]().double(), 3)
    history = model.fit(
        images() if data is None else data, epochs=3, batch_size=share(), validation=images(1, 31), seed=3, **options
    )
    return state_of(model, history)


def regress(**options: Any) -> Result:
    net = nn.Sequential(tagi.nn.Linear(4, 8), tagi.nn.Tanh(), tagi.nn.Linear(8, 2)).double()
    model = tagi.Regressor(net, **options)
    return state_of(model, model.fit(rows(), epochs=3, batch_size=share(), seed=3))


def weigh() -> Result:
    weights = torch.linspace(0.5, 1.5, SAMPLES, dtype=torch.float64)
    return classify("no norm", (*images(), weights))


def name_classes() -> Result:
    x, y = images()
    model = tagi.Classifier(NETS["no norm"]().double(), ["a", "b", "c"])
    return state_of(model, model.fit((x, ["abc"[label] for label in y]), batch_size=share(), seed=3))


def as_in_the_paper() -> Result:
    model = PaperClassifier(NETS["batch norm"]().double(), 3, noise=2.0)
    return state_of(model, model.fit(images(), epochs=2, batch_size=share(), seed=3))


CASES: dict[str, Callable[[], Result]] = {
    **{net: lambda net=net: classify(net) for net in NETS},
    "several chunks": lambda: classify("batch norm", images(samples=70)),  # of which the joint batch is one
    "a data set": lambda: classify("no norm", Pairs(*images())),
    "weights": weigh,
    "named classes": name_classes,
    "the paper's setting": as_in_the_paper,
    "learned noise": lambda: regress(covariance="diagonal"),
    "given noise": lambda: regress(covariance="diagonal", noise=0.2),
    "predicted noise": lambda: regress(noise="predicted"),
    "a horizon": lambda: regress(covariance="diagonal", horizon=200),
    "a joint covariance": lambda: regress(covariance="full"),
}


def share() -> int:
    return JOINT_BATCH // (dist.get_world_size() if dist.is_initialized() else 1)


def state_of(model: Any, history: list[dict[str, Any]]) -> Result:
    parts = {"predicting": model.predicting, "link": model.link, **model.learning_parts()}
    tensors = {f"{name}.{key}": t.clone() for name, part in parts.items() for key, t in part.state_dict().items()}
    timing = ("seconds", "samples_per_second", "train_curve")
    kept = [{name: value for name, value in row.items() if name not in timing} for row in history]
    return {"tensors": tensors, "history": kept, "json": model.as_json(), "curve": history[-1]["train_curve"]}


def outcome(name: str) -> Result:
    """Of a case, with a generator of this process's own: only what the first process draws may count."""
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    return CASES[name]()


def outcomes() -> dict[str, Result]:
    with soon():
        return {name: outcome(name) for name in CASES}


class soon:  # noqa: N801 - a context manager
    """Mean passes in small networks and after few steps; a few samples kept back."""

    def __enter__(self) -> None:
        self.before = passes.SMALL, passes.GROWTH, classifier.LEAST_KEPT, classifier.SCORE_EVERY
        passes.SMALL, passes.GROWTH, classifier.LEAST_KEPT, classifier.SCORE_EVERY = 0, 4, 2, 3

    def __exit__(self, *error: object) -> None:
        passes.SMALL, passes.GROWTH, classifier.LEAST_KEPT, classifier.SCORE_EVERY = self.before


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Result]]:
    return run_on(2, outcomes, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_learns(name: str, of_two: list[dict[str, Result]]) -> None:
    with soon():
        alone = outcome(name)
    for together in (result[name] for result in of_two):
        assert_same(together, alone)


def assert_same(found: Result, expected: Result) -> None:
    assert found["tensors"].keys() == expected["tensors"].keys()
    for key, value in expected["tensors"].items():
        torch.testing.assert_close(found["tensors"][key], value, rtol=1e-7, atol=1e-9, msg=lambda m, k=key: f"{k}: {m}")
    assert_close(found["history"], expected["history"])
    assert_close(found["json"], expected["json"])
    assert_close(found["curve"], expected["curve"])


def assert_close(found: Any, expected: Any) -> None:
    """JSON, its numbers up to rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_close(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_close(*pair)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9, nan_ok=True)
    else:
        assert found == expected
