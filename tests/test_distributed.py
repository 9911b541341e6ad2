"""Two real processes learn what one process learns from their batches put together."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torchtagi as tagi

UPDATES: dict[str, dict[str, Any]] = {
    **{rule: {"rule": rule} for rule in ("paper", "capped", "coherent")},
    "coherent with a horizon": {"horizon": 1000},
}
STEPS = 3
Result = dict[str, Any]


def fully_connected() -> nn.Module:
    return nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.ReLU(), tagi.nn.Linear(8, 2))


def one_output() -> nn.Module:
    """The second process gets no row of the last layer."""
    return nn.Sequential(tagi.nn.Linear(3, 8), tagi.nn.Tanh(), tagi.nn.Linear(8, 1))


def one_unit() -> nn.Module:
    """The second process gets no weight at all."""
    return nn.Sequential(tagi.nn.Linear(3, 1))


def wide() -> nn.Module:
    """Too many weights for one flat tensor."""
    return nn.Sequential(tagi.nn.Linear(3, 3000), tagi.nn.Tanh(), tagi.nn.Linear(3000, 16), tagi.nn.Linear(16, 1))


def convolutional() -> nn.Module:
    return nn.Sequential(
        tagi.nn.Unflatten(1, (1, 6, 6)),
        tagi.nn.Conv2d(1, 4, 3, padding=1),
        tagi.nn.ReLU(),
        tagi.nn.AvgPool2d(2, 2),
        tagi.nn.Flatten(),
        tagi.nn.Linear(36, 2),
    )


def one_kernel() -> nn.Module:
    """Its convolution's weight has no second shard."""
    return nn.Sequential(
        tagi.nn.Unflatten(1, (1, 6, 6)),
        tagi.nn.Conv2d(1, 1, 3),
        tagi.nn.ReLU(),
        tagi.nn.Flatten(),
        tagi.nn.Linear(16, 2),
    )


def batch_normed(differentiate_statistics: bool = False) -> nn.Module:
    """Both shapes a synchronised norm meets: images, and units. Where messages know that its statistics move, a
    bias before it gets none, and is left out."""
    bias = not differentiate_statistics
    return nn.Sequential(
        tagi.nn.Unflatten(1, (1, 6, 6)),
        tagi.nn.Conv2d(1, 4, 3, padding=1, bias=bias),
        tagi.nn.BatchNorm2d(4, sync=True, correction=1, differentiate_statistics=differentiate_statistics),
        tagi.nn.ReLU(),
        tagi.nn.Flatten(),
        tagi.nn.Linear(144, 5, bias=bias),
        tagi.nn.BatchNorm1d(5, sync=True, differentiate_statistics=differentiate_statistics),
        tagi.nn.Linear(5, 2),
    )


def batch_normed_differentiated() -> nn.Module:
    """Messages too are summed over the processes."""
    return batch_normed(differentiate_statistics=True)


NETS: dict[str, Callable[[], nn.Module]] = {
    build.__name__: build
    for build in (
        *(fully_connected, one_output, one_unit, wide, convolutional, one_kernel),
        *(batch_normed, batch_normed_differentiated),
    )
}


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name]().double()


def batch(name: str, step: int, size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    features = 36 if name in ("convolutional", "one_kernel", "batch_normed", "batch_normed_differentiated") else 3
    outputs = 1 if name in ("one_output", "one_unit", "wide") else 2
    x = torch.randn(size, features, generator=generator, dtype=torch.float64)
    return x, 3 * torch.randn(size, outputs, generator=generator, dtype=torch.float64)


def learn(net: nn.Module, name: str, update: str, sizes: Sequence[int], rank: int | None) -> dict[str, float]:
    """Three steps on one process's share of each batch, or on all of it; the last step's report."""
    posterior, likelihood = tagi.Update(net, **UPDATES[update]), tagi.Regression(0.5).double()
    for step in range(STEPS):
        x, y = batch(name, step, sum(sizes))
        if rank is not None:
            x, y = x.split(list(sizes))[rank], y.split(list(sizes))[rank]
        likelihood(net(x), y).backward()
        posterior.step()
        posterior.zero_grad()
    return posterior.report


def whole(tensor: Tensor) -> Tensor:
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().clone()


def data_parallel(net: nn.Module) -> nn.Module:
    return DistributedDataParallel(net)


def data_parallel_with_search(net: nn.Module) -> nn.Module:
    """As needed where some parameters get no message."""
    return DistributedDataParallel(net, find_unused_parameters=True)


def sharded(net: nn.Module) -> nn.Module:
    return fully_shard(net, mesh=init_device_mesh("cpu", (2,)))


def sharded_by_layer(net: nn.Module) -> nn.Module:
    """The usual way: a layer's weights are gathered for its forward and again for its backward."""
    mesh = init_device_mesh("cpu", (2,))
    for part in net.children():
        if any(True for _ in part.parameters()):
            fully_shard(part, mesh=mesh)
    return fully_shard(net, mesh=mesh)


Wrap = Callable[[nn.Module], nn.Module]
Case = tuple[Wrap, str, tuple[int, int]]
# (150, 110) crosses the capped rule's 256 only when counted together
CASES: dict[str, list[Case]] = {
    "DistributedDataParallel": [
        (data_parallel, "fully_connected", (6, 6)),
        (data_parallel, "fully_connected", (9, 2)),
        (data_parallel, "convolutional", (150, 110)),
        (data_parallel, "batch_normed", (6, 6)),
        (data_parallel, "batch_normed", (5, 8)),
        (data_parallel, "batch_normed_differentiated", (5, 8)),
        (data_parallel_with_search, "fully_connected", (6, 6)),
    ],
    "fully_shard": [
        (sharded, "fully_connected", (6, 6)),
        (sharded_by_layer, "fully_connected", (6, 6)),
        (sharded_by_layer, "convolutional", (6, 6)),
        (sharded, "one_output", (4, 8)),
        (sharded_by_layer, "wide", (6, 6)),
        (sharded, "one_unit", (6, 6)),
        (sharded_by_layer, "one_kernel", (6, 6)),
    ],
}


def worker(rank: int, folder: str, way: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    for index, (wrap, name, sizes) in enumerate(CASES[way]):
        results: dict[str, Result] = {}
        for update in UPDATES:
            net = build(name)
            report = learn(wrap(net), name, update, sizes, rank)
            state = {key: whole(value) for key, value in net.state_dict().items()}
            results[update] = {"state": state, "report": report}
        torch.save(results, os.path.join(folder, f"{index}-{rank}.pt"))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """All cases of one way in one pair of processes; where they wrote, and what ended them early if anything."""
    written = {}
    for way in CASES:
        folder, ended = tmp_path_factory.mktemp(way), ""
        try:
            torch.multiprocessing.spawn(worker, (str(folder), way), nprocs=2, join=True)
        except Exception as error:
            ended = str(error).strip().splitlines()[-1]
        written[way] = (folder, ended)
    return written


@pytest.mark.parametrize(
    ("way", "index"),
    [(way, index) for way, cases in CASES.items() for index in range(len(cases))],
    ids=[f"{wrap.__name__}-{name}-{sizes}" for cases in CASES.values() for wrap, name, sizes in cases],
)
def test_two_processes_learn_what_one_learns_from_the_joint_batch(
    way: str, index: int, runs: dict[str, tuple[Path, str]]
) -> None:
    folder, ended = runs[way]
    _, name, sizes = CASES[way][index]
    files = [folder / f"{index}-{rank}.pt" for rank in range(2)]
    assert all(file.exists() for file in files), f"the processes ended before this case was done: {ended}"
    ranks = [torch.load(file) for file in files]
    for update in UPDATES:
        net = build(name)
        before = {key: value.clone() for key, value in net.state_dict().items()}
        report = learn(net, name, update, sizes, None)
        for result in ranks:
            for key, value in net.state_dict().items():
                torch.testing.assert_close(
                    result[update]["state"][key],
                    value,
                    rtol=1e-7,
                    atol=1e-7,
                    msg=lambda message, update=update, key=key: f"{update}, {key}: {message}",
                )
                assert not torch.equal(before[key], value), f"{update}: {key} did not learn"
            for field in ("alpha", "innovation"):
                assert result[update]["report"][field] == pytest.approx(report[field], rel=1e-9)
