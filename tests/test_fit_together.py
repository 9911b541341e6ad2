"""Processes that fit one model together, and one process that fits it alone, end with the same model."""

import itertools
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import torchtagi as tagi
from several_processes import TIMEOUT, run_on
from torchtagi import classifier, distributed
from torchtagi.checkpoint import whole
from torchtagi.experiments.classify.paper import PaperClassifier
from torchtagi.fitting import Batches, EpochEnd, Fit, epoch_order
from torchtagi.inference import passes

JOINT_BATCH = 16
SAMPLES = 4 * JOINT_BATCH + 1  # the last step of an epoch has a sample more than the others
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


def classify(net: str, data: Any = None, fit_options: dict[str, Any] | None = None) -> Result:
    model = tagi.Classifier(NETS[net]().double(), 3)
    data, held_out = images() if data is None else data, images(1, 31)
    history = model.fit(data, epochs=3, batch_size=share(), validation=held_out, seed=3, **(fit_options or {}))
    return state_of(model, history)


def regress(fit_options: dict[str, Any] | None = None, **options: Any) -> Result:
    net = nn.Sequential(tagi.nn.Linear(4, 8), tagi.nn.Tanh(), tagi.nn.Linear(8, 2)).double()
    model = tagi.Regressor(net, **options)
    return state_of(model, model.fit(rows(), epochs=3, batch_size=share(), seed=3, **(fit_options or {})))


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
    tensors = {
        f"{name}.{key}": whole(t).clone() for name, part in parts.items() for key, t in part.state_dict().items()
    }
    timing = ("seconds", "samples_per_second", "train_curve")
    kept = [{name: value for name, value in row.items() if name not in timing} for row in history]
    return {"tensors": tensors, "history": kept, "json": model.as_json(), "curve": history[-1]["train_curve"]}


def outcome(name: str) -> Result:
    """Of a case, with a generator of this process's own: only what the first process draws may count."""
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    return CASES[name]()


# ---- sharded -------------------------------------------------------------------------------------------------

SHARDED: dict[str, Callable[..., Result]] = {
    **{net: partial(classify, net) for net in ("layer norm", "batch norm", "residual")},
    "learned noise": partial(regress, covariance="diagonal"),
    "a horizon": partial(regress, covariance="diagonal", horizon=200),
}


def shard(name: str) -> Result:
    torch.manual_seed(dist.get_rank() if dist.is_initialized() else 0)
    return SHARDED[name](**({"fit_options": {"shard": True}} if dist.is_initialized() else {}))


# ---- what is refused, and how the others end -----------------------------------------------------------------


def fit(data: Any, **options: Any) -> Any:
    return tagi.Classifier(NETS["no norm"]().double(), 3).fit(data, seed=3, batch_size=share(), **options)


def spoiled(rank: int, value: float) -> tuple[Tensor, Tensor]:
    """One process's copy of the data holds what cannot be learned, in the fourth row of its second batch."""
    x, y = images()
    if dist.get_rank() == rank:
        x[epoch_order(SAMPLES, 3, 0)[JOINT_BATCH + rank * share() + 3], 0, 1, 2] = value
    return x, y


def mislabelled() -> tuple[Tensor, Tensor]:
    x, y = images()
    if dist.get_rank() == 1:
        y[-40:] = 7
    return x, y


def stop_at_once() -> list[dict[str, Any]]:
    """What the first process says counts."""
    return fit(images(), epochs=5, stop=lambda row: not dist.get_rank())


REFUSALS: dict[str, Callable[[], Any]] = {
    "nan": lambda: fit(spoiled(1, math.nan)),
    "inf on the first": lambda: fit(spoiled(0, math.inf)),
    "a label": lambda: fit(mislabelled()),
    "a number": lambda: fit(spoiled(1, 1e300)),
    "other data": lambda: fit(images(samples=50 + dist.get_rank())),
    "its own part": lambda: fit(images(seed=dist.get_rank())),
    "a loader": lambda: fit(DataLoader(TensorDataset(*images()), 8, shuffle=True)),
    "another network": lambda: tagi.Classifier(NETS[("no norm", "residual")[dist.get_rank()]](), 3).fit(images()),
}


def refusal(name: str) -> str:
    try:
        REFUSALS[name]()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# ---- loaders -------------------------------------------------------------------------------------------------


class Named(Dataset):
    """Whose inputs are their own numbers."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.full((4,), float(row)), row % 2


def uneven() -> int:
    """A loader of six batches on one process, of four on the other; how many observations were learned."""
    rank = dist.get_rank()
    loader = DataLoader(Named(24 if rank else 16), 4, sampler=Own(24 if rank else 16))
    model = tagi.Classifier(nn.Sequential(tagi.nn.Linear(4, 3), tagi.nn.Linear(3, 2)), 2)
    model.fit(loader)
    return model.observations


class Own(torch.utils.data.Sampler):
    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.samples))

    def __len__(self) -> int:
        return self.samples


def sampled() -> list[list[float]]:
    """What a DistributedSampler shows this process in each of two epochs."""
    data = Named(24)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data, dist.get_world_size(), dist.get_rank(), seed=1))
    shown: list[list[float]] = []

    def note(x: Tensor) -> Tensor:
        shown[-1] += x[:, 0].tolist()
        return x

    model = tagi.Classifier(nn.Sequential(tagi.nn.Linear(4, 3), tagi.nn.Linear(3, 2)), 2)
    start, model.start_epoch = model.start_epoch, lambda *place: (shown.append([]), start(*place), True)[-1]
    model.fit(loader, epochs=2, augment=note)
    return shown


def varied() -> list[Tensor]:
    """What this process draws for its inputs, batch after batch."""
    torch.manual_seed(0)
    drawn: list[Tensor] = []

    def vary(x: Tensor) -> Tensor:
        drawn.append(torch.rand(3))
        return x

    fit(images(samples=40), epochs=2, augment=vary)
    return drawn


def known_labels() -> Tensor:
    """The scores of a link whose labels were learned before, half of whose outputs are surer than the others."""
    mean, labels = torch.linspace(-1, 1, 24).reshape(8, 3), torch.arange(8) % 3
    var = torch.where(torch.arange(8) < 4, 1e-4, 0.2)[:, None].expand(8, 3)
    likelihood, group = tagi.OneVsRest(3, 0.01, learn_noise=True), distributed.everybody()
    own = slice(None) if group is None else slice(4 * group.rank, 4 * group.rank + 4)
    with distributed.joined(group):
        likelihood.score_link(tagi.Gaussian(mean[own], var[own]), labels[own], new=False)
    return likelihood.link_scores


def first_outcomes() -> dict[str, Any]:
    with soon():
        found: dict[str, Any] = {name: outcome(name) for name in CASES}
        found["sharded"] = {name: shard(name) for name in SHARDED}
    found["refusals"] = {name: refusal(name) for name in REFUSALS}
    found["stopped"] = len(stop_at_once())
    found["uneven"], found["sampled"], found["varied"] = uneven(), sampled(), varied()
    found["known"] = known_labels()
    return found


KEEPING = {"KEPT_BACK": 0.1, "LEAST_KEPT": 2, "SCORE_EVERY": 3}


class soon:
    """Mean passes in small networks and after few steps; a few samples kept back."""

    def __enter__(self) -> None:
        self.patch = pytest.MonkeyPatch()
        for module, names in ((passes, {"SMALL": 0, "GROWTH": 4}), (classifier, KEEPING)):
            for name, value in names.items():
                self.patch.setattr(module, name, value)

    def __exit__(self, *error: object) -> None:
        self.patch.undo()


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_on(2, first_outcomes, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("name", CASES)
def test_two_processes_learn_what_one_learns(name: str, of_two: list[dict[str, Any]]) -> None:
    with soon():
        alone = outcome(name)
    for together in (result[name] for result in of_two):
        assert_same(together, alone)


@pytest.mark.parametrize("name", SHARDED)
def test_two_processes_with_half_the_weights_each_learn_what_one_learns(
    name: str, of_two: list[dict[str, Any]]
) -> None:
    with soon():
        alone = shard(name)
    for together in (result["sharded"][name] for result in of_two):
        assert_same(together, alone)


def test_processes_judge_labels_that_come_again_alike(of_two: list[dict[str, Any]]) -> None:
    for together in of_two:
        torch.testing.assert_close(together["known"], known_labels())


def assert_same(found: Result, expected: Result) -> None:
    assert found["tensors"].keys() == expected["tensors"].keys()
    for key, value in expected["tensors"].items():
        torch.testing.assert_close(
            found["tensors"][key], value, rtol=1e-7, atol=1e-9, msg=lambda m, k=key: f"{k}: {m}"
        )
    assert_close(found["history"], expected["history"][-len(found["history"]) :])
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


MESSAGES = {
    "nan": (1, r"ValueError: rank 1, epoch 1, batch 2: x must be finite; got nan at index \[3, 0, 1, 2\]"),
    "inf on the first": (
        0,
        r"ValueError: rank 0, epoch 1, batch 2: x must be finite; got inf at index \[3, 0, 1, 2\]",
    ),
    "a label": (1, r"ValueError: rank 1, epoch 1, batch \d: labels must lie in 0..2, got 7 at row \d"),
    "a number": (0, r"FloatingPointError: rank 0, epoch 1, batch 2: the messages are not finite, .*"),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_process_that_fails_says_where_and_stops_the_others(name: str, of_two: list[dict[str, Any]]) -> None:
    failing, message = MESSAGES[name]
    said = [result["refusals"][name] for result in of_two]
    assert re.fullmatch(message, said[failing], re.DOTALL), said
    assert said[1 - failing] == f"ElsewhereError: rank {1 - failing}: stopped, because rank {failing} did"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("other data", "samples and batch_size are 50 and 8, 51 and 8"),
        ("its own part", "their first targets differ"),
        ("a loader", "give it a DistributedSampler"),
        ("another network", "their networks or likelihoods differ"),
    ],
)
def test_what_cannot_be_learned_together_is_refused(name: str, message: str, of_two: list[dict[str, Any]]) -> None:
    for result in of_two:
        assert re.match("ValueError: ", result["refusals"][name])
        assert re.search(message, result["refusals"][name])


def test_the_first_process_stops_all(of_two: list[dict[str, Any]]) -> None:
    assert [result["stopped"] for result in of_two] == [1, 1]


def test_a_process_whose_loader_has_ended_waits_for_the_others(of_two: list[dict[str, Any]]) -> None:
    assert [result["uneven"] for result in of_two] == [40, 40]


def test_a_distributed_sampler_is_told_the_epoch(of_two: list[dict[str, Any]]) -> None:
    epochs = list(zip(*(result["sampled"] for result in of_two), strict=True))
    assert len(epochs) == 2
    for parts in epochs:
        assert sorted(itertools.chain(*parts)) == list(range(24))
    assert epochs[0] != epochs[1]


def test_no_two_processes_draw_alike(of_two: list[dict[str, Any]]) -> None:
    drawn = [tuple(draw.tolist()) for result in of_two for draw in result["varied"]]
    assert len(drawn) == 2 * 3  # the second epoch's batches
    assert len(set(drawn)) == len(drawn)


# ---- going on with another number of processes ---------------------------------------------------------------

WORLDS = [(1, 2), (2, 1), (2, 3), (3, 2), (2, 2)]
STOPS = {
    1: 12,
    2: 13,
    3: 12,
}  # events after which so many processes stop: an epoch has seven, in whose last step one of three has no sample


def part_of_a_fit(group: distributed.Group | None, path: Path, part: str, augment: Any = None) -> Result:
    """The beginning of a fit, what follows, or the whole of it."""
    size = 1 if group is None else group.size
    first = group is None or group.first
    torch.manual_seed(0)
    model = tagi.Classifier(NETS["batch norm"]().double(), 3)
    run = Fit(model, Batches(images(samples=62), 12 // size, 3), 3, augment, group=group)
    if part == "rest" and first:
        model.resume(run, path)
    history = []
    for number, event in enumerate(run.events(), 1):
        if isinstance(event, EpochEnd):
            history.append(event.row)
        if part == "beginning" and number == STOPS[size]:
            if first:
                model.save(path, fit=run.position(), history=history)
            return {}
    return state_of(model, history)


def jitter(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, dtype=x.dtype)


def continued(folder: Path) -> dict[Any, Result]:
    """Fits that began with some processes and went on with others; and one that did not stop."""
    found: dict[Any, Result] = {}
    rank = dist.get_rank()
    handles = {size: dist.new_group(list(range(size))) for size in (2, 3)}

    def learn(size: int, name: Any, part: str, augment: Any = None) -> None:
        if rank < size:
            group = None if size == 1 else distributed.Group(handles[size], rank, size, torch.device("cpu"))
            found[name] = part_of_a_fit(group, folder / f"{name}.safetensors", part, augment)
        dist.barrier()

    with soon():
        for worlds in WORLDS:
            learn(worlds[0], worlds, "beginning")
            learn(worlds[1], worlds, "rest")
        learn(2, "varied", "beginning", jitter)
        learn(2, "varied", "rest", jitter)
        learn(2, "at once", "whole", jitter)
    return found


@pytest.fixture(scope="module")
def of_three(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Result]]:
    folder = tmp_path_factory.mktemp("three")
    return run_on(3, continued, folder, folder)


@pytest.mark.parametrize("worlds", WORLDS, ids=str)
def test_a_fit_goes_on_with_more_processes_or_fewer(
    worlds: tuple[int, int], of_three: list[dict[Any, Result]]
) -> None:
    with soon():
        alone = part_of_a_fit(None, Path(), "whole")
    for rank in range(worlds[1]):
        assert_same(of_three[rank][worlds], alone)


def test_with_as_many_it_goes_on_to_the_bit(of_three: list[dict[Any, Result]]) -> None:
    for found in of_three[:2]:
        resumed, whole = found["varied"]["tensors"], found["at once"]["tensors"]
        assert all(torch.equal(resumed[key], whole[key]) for key in whole)


# ---- a process that dies -------------------------------------------------------------------------------------


def die_or_wait(folder: Path) -> str:
    """The first batch is learned by both and saved, the next by one."""
    model = tagi.Classifier(NETS["no norm"]().double(), 3)

    def vary(x: Tensor) -> Tensor:
        if dist.get_rank():
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    try:
        model.fit(images(), epochs=2, batch_size=8, augment=vary, checkpoint=folder / "model.safetensors")
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_a_process_that_dies_leaves_the_others_a_line_and_a_whole_checkpoint(tmp_path: Path) -> None:
    start = time.monotonic()
    (said,) = run_on(2, die_or_wait, tmp_path, tmp_path, survivors=1)
    assert said == "LostError: rank 0: stopped, because another process has ended or cannot be reached"
    assert time.monotonic() - start < TIMEOUT / 2
    model = tagi.load(tmp_path / "model.safetensors", NETS["no norm"]().double())
    assert model.epochs == 1
