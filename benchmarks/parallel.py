"""Two processes against one: images a second, bytes a step, and what a cost model makes of it for accelerators.

    python benchmarks/parallel.py [--networks mnist-cnn] [--seconds 60]
    python benchmarks/parallel.py --equality [--networks mnist-cnn] [--steps 50]
    python benchmarks/parallel.py --page          # writes the tables of docs/distributed.md

One process of one thread and two of one thread each, a core for each, take turns within one run; each learns 16
images at a time in cycles of a full pass and seven mean passes, and the best turn counts. `ordinary` is what the
ordinary network of the same shape takes for a forward and a backward pass, alone; with DistributedDataParallel,
which sends while it goes back; and with all gradients in one tensor behind it.

The model of costs is compute + Σ (latency + 2 (N − 1)/N · bytes/bandwidth) over the collectives of a step. Latency
and bandwidth are measured here, and the model is compared with what two processes took. For accelerators all but
the products and the bytes is assumed (`ACCELERATOR`), and nothing was measured.

`--equality` compares the posterior that two processes learn from 8 images each with that of one and 16, after so
many steps, in double precision, as full passes and with mean passes, with whole weights and sharded.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

import torchtagi as tagi
from torchtagi import distributed
from torchtagi.checkpoint import whole, write_atomically
from torchtagi.experiments import networks
from torchtagi.experiments.cli.memory import keep_freed_memory
from torchtagi.fitting import Batches, Fit
from torchtagi.inference import passes

ROOT = Path(__file__).parent.parent
PAGE, MARK = ROOT / "docs" / "distributed.md", "<!-- written by benchmarks/parallel.py from here on -->"
BATCH, CYCLE = 16, passes.LONGEST
NETWORKS: dict[str, tuple[Callable[..., nn.Module], tuple[int, int, int]]] = {
    "mnist-cnn": (networks.mnist_cnn, (1, 28, 28)),
    "3conv": (networks.cifar_3conv, (3, 32, 32)),
    "3conv-ln": (partial(networks.cifar_3conv, norm="layer"), (3, 32, 32)),
    "3conv-bn": (partial(networks.cifar_3conv, norm="batch"), (3, 32, 32)),
    "resnet18half": (partial(networks.resnet18, width=32), (3, 32, 32)),
    "resnet18": (networks.resnet18, (3, 32, 32)),
}
TIMED = ("mnist-cnn", "3conv-bn", "resnet18half")
ACCELERATOR = {
    "flop_per_second": 50e12,
    "seconds_a_kernel": 5e-6,
    "bytes_per_second": {8: 150e9, 64: 25e9},  # in one machine, and among machines
    "latency": {8: 20e-6, 64: 40e-6},
}
KERNELS_A_LAYER = {"full": 40, "mean": 15}  # forward, backward and update, counted by hand for a convolution

Row = dict[str, Any]


def data(name: str, samples: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    few = torch.randn(512, *NETWORKS[name][1], generator=generator, dtype=dtype)
    labels = torch.randint(10, (512,), generator=generator)
    rows = torch.arange(samples) % 512
    return few[rows].contiguous(memory_format=torch.channels_last), labels[rows]


def model_of(name: str, dtype: torch.dtype = torch.float32) -> tagi.Classifier:
    torch.manual_seed(0)
    return tagi.Classifier(NETWORKS[name][0](10).to(dtype), 10)


# ---- one process or two --------------------------------------------------------------------------------------


class Counted:
    """The collectives of a step, and the bytes that a process hands to them."""

    def __init__(self) -> None:
        self.calls, self.bytes = 0, 0
        for kind in ("sum_", "stacked"):
            setattr(distributed.Group, kind, self.noted(getattr(distributed.Group, kind)))

    def noted(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: distributed.Group, *tensors: Tensor) -> Any:
            self.calls += 1
            self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            return collective(group, *tensors)

        return call


def steps(name: str, group: distributed.Group | None, count: int) -> Iterator[Any]:
    """Steps of a fit that has come to the longest gaps between full passes."""
    model = model_of(name)
    size = 1 if group is None else group.size
    fit = Fit(model, Batches(data(name, count * BATCH * size), BATCH, 0), 1, group=group)
    events = fit.events()
    yield next(events)
    schedule = model.posterior.passes
    schedule.steps = schedule.next_full = passes.GROWTH * CYCLE
    yield from events


def cycle(events: Iterator[Any]) -> float:
    """Milliseconds a step."""
    start = time.perf_counter()
    for _ in range(CYCLE):
        next(events)
    return (time.perf_counter() - start) * 1e3 / CYCLE


def ordinary(name: str, way: str) -> Callable[[], None]:
    """A forward and a backward pass of the network in torch's own layers, its gradients summed."""
    torch.manual_seed(0)
    build: Callable[..., nn.Module] = NETWORKS[name][0]
    net = build(10, layers=torch.nn).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, _ = data(name, BATCH)
    parameters = list(net.parameters())
    called = DistributedDataParallel(net) if way == "ddp" else net
    flat = torch.empty(sum(parameter.numel() for parameter in parameters))

    def step() -> None:
        z = called(x)
        z.backward(torch.ones_like(z))
        if way == "flat":
            pieces = flat.split([parameter.numel() for parameter in parameters])
            gradients = [parameter.grad for parameter in parameters]
            views = [p.as_strided(g.shape, g.stride(), p.storage_offset()) for p, g in zip(pieces, gradients)]  # noqa: B905
            torch._foreach_copy_(views, gradients)
            dist.all_reduce(flat)
        net.zero_grad()

    return step


def timed(step: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) * 1e3 / count


def measure(name: str, seconds: float) -> Row:
    """On two processes, the first of which also learns alone."""
    group = distributed.start()
    assert group is not None
    together_ = group.sum_
    counted, count = Counted(), 2000
    weights = sum(parameter.numel() for parameter in NETWORKS[name][0](10, layers=torch.nn).parameters())
    alone = steps(name, None, count) if group.first else None
    together = steps(name, group, count)
    twins = {way: ordinary(name, way) for way in ("alone", "ddp", "flat")}
    message, number = torch.zeros(weights), torch.zeros(4)
    kinds = {"message": lambda: together_(message), "number": lambda: together_(number)}
    kinds |= {"gloo_message": lambda: dist.all_reduce(message), "gloo_number": lambda: dist.all_reduce(number)}
    best: dict[str, float] = {}

    def note(kind: str, milliseconds: float) -> None:
        best[kind] = min(best.get(kind, milliseconds), milliseconds)

    for _ in range(2):  # warms up
        if alone is not None:
            cycle(alone)
        cycle(together)
    calls, sent = counted.calls, counted.bytes
    end, turns = time.monotonic() + seconds, 0
    while group.of_first(lambda: time.monotonic() < end) or turns < 3:
        before = counted.calls, counted.bytes
        dist.barrier()
        if alone is not None:
            note("one", cycle(alone))
            note("ordinary_alone", timed(twins["alone"], 4))
        dist.barrier()
        note("two", cycle(together))
        calls, sent = counted.calls - before[0], counted.bytes - before[1]
        for way in ("ddp", "flat"):
            dist.barrier()
            note(f"ordinary_{way}", timed(twins[way], 4))
        for kind, step in kinds.items():
            dist.barrier()
            note(kind, timed(step, 10))
        turns += 1
    row: Row = {"network": name, "weights": weights, "batch": BATCH, "turns": turns}
    row |= {f"{kind}_ms": round(value, 3) for kind, value in best.items()}
    if not group.first:
        return row
    row["images_per_second"] = [round(BATCH * 1e3 / best["one"], 1), round(2 * BATCH * 1e3 / best["two"], 1)]
    row["speedup"] = round(2 * best["one"] / best["two"], 3)
    row |= {"collectives_a_step": calls / CYCLE, "bytes_a_step": sent / CYCLE}
    row["bytes_against_adam"] = round(sent / CYCLE / (4 * weights), 4)
    latency = best["number"]
    rate = max(best["message"] - latency, 1e-6) / (4 * weights)  # ms a byte
    predicted = best["one"] + calls / CYCLE * latency + sent / CYCLE * rate
    row |= {"predicted_two_ms": round(predicted, 3), "predicted_speedup": round(2 * best["one"] / predicted, 3)}
    return row


def with_two(target: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What it returns on each of two processes."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(one_of_two, (folder, target, arguments), nprocs=2)
        return [torch.load(f"{folder}/{rank}", weights_only=False) for rank in range(2)]


def one_of_two(rank: int, folder: str, target: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    if len(cores := sorted(os.sched_getaffinity(0))) > 1:
        os.sched_setaffinity(0, {cores[rank]})
    torch.set_num_threads(1)
    keep_freed_memory()
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.save(target(*arguments), f"{folder}/{rank}")
    gc.collect()  # DistributedDataParallel is in a cycle, and must not outlive the group
    dist.destroy_process_group()


# ---- equality ------------------------------------------------------------------------------------------------


def learned(name: str, way: str, count: int) -> dict[str, Tensor]:
    """The posterior, the noise and the link after so many joint steps of 16 images."""
    small = way == "mean passes"
    passes.GROWTH = 4 if small else 10**9
    model = model_of(name, torch.float64)
    group = distributed.start()
    images = data(name, count * BATCH, torch.float64)
    batch = BATCH if group is None else BATCH // group.size
    model.fit(images, batch_size=batch, seed=0, progress=False, shard=way == "sharded" and group is not None)
    state = {**model.net.state_dict(), **model.likelihood.state_dict(), **model.link.state_dict()}
    return {key: whole(tensor).double() for key, tensor in state.items() if tensor.is_floating_point()}


def equality(name: str, count: int) -> Row:
    """The largest difference, relative to the largest entry of its tensor."""
    row: Row = {"network": name, "steps": count}
    for way in ("full passes", "mean passes", "sharded"):
        alone = learned(name, way, count)
        row[way] = 0.0
        for together in with_two(learned, name, way, count):
            for key, tensor in alone.items():
                if tensor.numel():
                    scale = tensor.abs().max().clamp_min(1e-12)
                    row[way] = max(row[way], float((together[key] - tensor).abs().max() / scale))
    return row


# ---- accelerators --------------------------------------------------------------------------------------------


def resnet50(outputs: int, *, layers: ModuleType = nn) -> nn.Module:
    """Of 224 × 224 images: He et al. (2016)."""

    def convolved(inputs: int, channels: int, size: int, stride: int) -> list[nn.Module]:
        conv = layers.Conv2d(inputs, channels, size, stride, size // 2, bias=False)
        return [conv, layers.BatchNorm2d(channels), layers.ReLU()]

    parts, inputs = [*convolved(3, 64, 7, 2), layers.MaxPool2d(3, 2, 1)], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            body = [
                *convolved(inputs, width, 1, 1),
                *convolved(width, width, 3, stride),
                *convolved(width, 4 * width, 1, 1),
            ]
            shortcut = layers.Identity() if block else layers.Sequential(*convolved(inputs, 4 * width, 1, stride))
            parts.append(tagi.nn.Residual(layers.Sequential(*body), shortcut))
            inputs = 4 * width
    return layers.Sequential(*parts, layers.AvgPool2d(7), layers.Flatten(), layers.Linear(inputs, outputs))


def modelled(network: Row, images: int, size: int) -> float:
    """Seconds a step, in the mean over a cycle, of so many accelerators that take so many images each."""
    # a mean pass has 3 products of a forward pass's size, a full pass 7: 3 of means, 4 of variances
    full = 1 / CYCLE
    work = images * network["flop"] * (3 + 4 * full) / ACCELERATOR["flop_per_second"]
    kernels = KERNELS_A_LAYER["full"] * full + KERNELS_A_LAYER["mean"] * (1 - full)
    launches = (network["products"] + network["norms"]) * kernels * ACCELERATOR["seconds_a_kernel"]
    if size == 1:
        return max(work, launches)
    sent = 4 * network["weights"] * (1 + full) * 2 * (size - 1) / size / ACCELERATOR["bytes_per_second"][size]
    return max(work, launches) + sent + (4 + 2 * network["norms"]) * ACCELERATOR["latency"][size]


def predictions() -> list[Row]:
    """Images a second against one accelerator that takes 16 images a step, and against one that takes as many."""
    rows = []
    for name, build, shape in (
        ("ResNet18, 32 × 32", networks.resnet18, (3, 32, 32)),
        ("ResNet50, 224 × 224", resnet50, (3, 224, 224)),
    ):
        net = build(10, layers=nn).to("meta")
        with FlopCounterMode(display=False) as counter:
            net(torch.empty(1, *shape, device="meta"))
        network = {
            "weights": sum(parameter.numel() for parameter in net.parameters()),
            "norms": sum(isinstance(part, nn.BatchNorm2d) for part in net.modules()),
            "products": sum(isinstance(part, nn.Conv2d | nn.Linear) for part in net.modules()),
            "flop": counter.get_total_flops(),
        }
        for size, each in ((8, 2), (8, 8), (8, 16), (64, 1), (64, 4), (64, 16)):
            seconds, joint = modelled(network, each, size), size * each
            speedups = {
                "against_16": joint / seconds * modelled(network, BATCH, 1) / BATCH,
                "against_as_many": modelled(network, joint, 1) / seconds,
            }
            row = {"network": name, "accelerators": size, "images_each": each, "ms": round(seconds * 1e3, 2)}
            rows.append({**row, **{kind: round(value, 2) for kind, value in speedups.items()}})
    return rows


# ---- the page ------------------------------------------------------------------------------------------------


def table(columns: dict[str, str], rows: list[Row]) -> str:
    lines = [["network", *columns.values()], ["---", *["---:"] * len(columns)]]
    lines += [[row["network"], *(row[name] for name in columns)] for row in rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


NUMBERS = """
## Measured

`python benchmarks/parallel.py`: two processes of one thread, a core for each, against one; 16 images each, in
cycles of a full pass and seven mean passes. *Modelled* is what latency, bandwidth and the time of one process let
expect.

{rates}
A forward and a backward pass of the same network in torch's own layers, in ms:

{ways}
A sum over both processes, of as many numbers as the network has weights and of four, in ms:

{sums}
## Equal

`python benchmarks/parallel.py --equality`: two processes with 8 images each against one with 16, in double
precision. The largest difference of any weight, variance, statistic, noise or score, relative to the largest of its
tensor.

{equal}
## Modelled, not measured

What the model of costs says of accelerators. All but the products and the bytes is assumed: `ACCELERATOR` in the
script. Images a second against one accelerator that takes 16 images a step, and against one that takes as many as
all together.

{accelerators}"""


def page(kept: str, saved: Row) -> str:
    """The reading of `kept`, and the numbers of today."""
    reading, mark, _ = kept.partition(MARK)
    if not mark:
        raise ValueError(f"docs/distributed.md has lost its mark: {MARK}")
    timing = [
        {**row, "one": row["images_per_second"][0], "two": row["images_per_second"][1]}
        for row in saved.get("timing", [])
    ]
    kinds = {"full passes": "full passes", "mean passes": "mean passes", "sharded": "sharded"}
    equal = [{**row, **{kind: f"{row[kind]:.0e}" for kind in kinds}} for row in saved.get("equality", [])]
    rates = {"one": "images/s, one", "two": "two", "speedup": "times", "predicted_speedup": "modelled"}
    rates |= {"bytes_against_adam": "bytes, of Adam's", "collectives_a_step": "collectives a step"}
    ways = {"alone": "alone", "ddp": "DistributedDataParallel", "flat": "one tensor"}
    ways = {f"ordinary_{way}_ms": head for way, head in ways.items()}
    sums = {"gloo_message_ms": "gloo, message", "message_ms": "shared memory, message"}
    sums |= {"gloo_number_ms": "gloo, four numbers", "number_ms": "shared memory, four numbers"}
    accelerators = {"accelerators": "accelerators", "images_each": "images each", "ms": "ms a step"}
    accelerators |= {"against_16": "against 16", "against_as_many": "against as many"}
    numbers = NUMBERS.format(
        rates=table(rates, timing),
        ways=table(ways, timing),
        sums=table(sums, timing),
        equal=table({"steps": "steps", **kinds}, equal),
        accelerators=table(accelerators, saved["accelerators"]["rows"]),
    )
    return f"{reading}{MARK}\n{numbers}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", help="separated by commas")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each network")
    parser.add_argument("--equality", action="store_true")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "parallel.json")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page(PAGE.read_text(), json.loads(options.out.read_text())))
        return
    torch.set_num_threads(1)
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, capture_output=True, text=True, cwd=ROOT).stdout.strip()
    saved = json.loads(options.out.read_text()) if options.out.exists() else {}
    kind = "equality" if options.equality else "timing"
    for name in options.networks.split(",") if options.networks else NETWORKS if options.equality else TIMED:
        row = equality(name, options.steps) if options.equality else with_two(measure, name, options.seconds)[0]
        others = [other for other in saved.get(kind, []) if other["network"] != name]
        saved[kind] = [*others, {**row, "commit": commit}]
        print(json.dumps(row))
        saved["accelerators"] = {
            "assumed": {**ACCELERATOR, "kernels_a_layer": KERNELS_A_LAYER},
            "rows": predictions(),
        }
        write_atomically(options.out, (json.dumps(saved, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
