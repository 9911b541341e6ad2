"""The price of uncertainty: a TAGI step against an Adam step of the same network.

    python benchmarks/step.py [--networks mnist-cnn,mlp] [--seconds 4] [--json]

Both networks are built by the same function, see the same batch, and take turns within one run; a time is that of
the best turn, so that a busy machine disturbs the ratio as little as it can. `memory_ratio` compares what a step
needs above the bare process: parameters, optimizer state, activations and messages at their peak.

A TAGI step is `tagi.condition` with the batch as one chunk, which is how `tagi train` learns: the mean over a whole
cycle, one full pass and K − 1 mean passes (`inference.passes`); small networks make full passes alone.
`full_ratio` is a full pass alone. An Adam step is the usual three lines. `autograd_ratio` is what the same three
lines take with TAGI: `likelihood(net(x), y).backward()`, `update.step()`, `update.zero_grad()`.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

import torch

import torchtagi as tagi
from torchtagi.experiments import networks
from torchtagi.inference.passes import LONGEST

Step = Callable[[], object]
COLUMNS = (
    ("batch", 6),
    ("tagi ms", 10),
    ("adam ms", 10),
    ("ratio", 7),
    ("full", 7),
    ("autograd", 10),
    ("memory", 8),
)
NEVER = 10**9  # steps to the next full pass
FEWEST_TURNS = 3  # of steps that take longer than they are given; one of them warms up
IMAGES = {"mnist-cnn": (1, 28, 28), "mlp": (13,)}
NETWORKS: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "mnist-cnn": (networks.mnist_cnn, (16, 128)),
    "cifar-3conv": (networks.cifar_3conv, (16, 128)),
    "cifar-3conv-ln": (lambda *a, **k: networks.cifar_3conv(*a, "layer", **k), (16, 128)),
    "cifar-3conv-bn": (lambda *a, **k: networks.cifar_3conv(*a, "batch", **k), (16, 128)),
    "resnet18": (networks.resnet18, (16, 128)),
    "mlp": (
        lambda outputs, layers=tagi.nn: layers.Sequential(
            layers.Linear(13, 50), layers.ReLU(), layers.Linear(50, 1)
        ),
        (1, 10),
    ),
}


def batch_of(network: str, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(batch, *IMAGES.get(network, (3, 32, 32)))
    if x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    y = torch.randn(batch, 1) if network == "mlp" else torch.randint(10, (batch,))
    return x, y


def tagi_parts(network: str, batch: int) -> tuple[Any, ...]:
    torch.manual_seed(0)
    net = NETWORKS[network][0](11)
    if network != "mlp":
        net = net.to(memory_format=torch.channels_last)
    likelihood = tagi.Regression(0.1) if network == "mlp" else tagi.HierarchicalClassification(10)
    return net, likelihood, tagi.Update(net), *batch_of(network, batch)


def tagi_passes(network: str, batch: int) -> tuple[Step, Step, tagi.Update]:
    """A step by a full pass, one by a mean pass, and the update that both are of."""
    parts = tagi_parts(network, batch)
    update = parts[2]

    def one_step(next_full: int) -> None:
        update.passes.next_full = next_full
        tagi.condition(*parts, chunk=batch)

    return partial(one_step, 0), partial(one_step, NEVER), update


def tagi_step(network: str, batch: int) -> Step:
    """The steps of a cycle in turn."""
    full_pass, mean_pass, _ = tagi_passes(network, batch)
    turns = cycle([full_pass, *[mean_pass] * (LONGEST - 1)])
    return lambda: next(turns)()


def full_step(network: str, batch: int) -> Step:
    return tagi_passes(network, batch)[0]


def autograd_step(network: str, batch: int) -> Step:
    net, likelihood, update, x, y = tagi_parts(network, batch)

    def step() -> None:
        likelihood(net(x), y).backward()
        update.step()
        update.zero_grad()

    return step


def adam_step(network: str, batch: int) -> Step:
    torch.manual_seed(0)
    net = NETWORKS[network][0](10, layers=torch.nn)
    if network != "mlp":
        net = net.to(memory_format=torch.channels_last)
    loss = torch.nn.MSELoss() if network == "mlp" else torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters())
    x, y = batch_of(network, batch)

    def step() -> None:
        loss(net(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


STEPS = {"tagi": tagi_step, "adam": adam_step, "full": full_step, "autograd": autograd_step}


def times(network: str, batch: int, seconds: float) -> dict[str, float]:
    """Milliseconds a step of each kind: the mean of the best turn, turns taken for about `seconds`. A turn is a
    whole cycle; of steps that are all alike it is shorter where they take long."""
    steps = {kind: make(network, batch) for kind, make in STEPS.items()}
    lengths = dict.fromkeys(steps, 40 if network == "mlp" else LONGEST)
    if network == "resnet18":
        lengths |= {"full": 1, "autograd": 1}
    best = dict.fromkeys(steps, float("inf"))
    gc.disable()
    turn, end = 0, time.perf_counter() + seconds
    while turn < FEWEST_TURNS or time.perf_counter() < end:
        for kind, step in steps.items():
            start = time.perf_counter()
            for _ in range(lengths[kind]):
                step()
            taken = (time.perf_counter() - start) / lengths[kind]
            if turn:  # the first warms up
                best[kind] = min(best[kind], taken)
        turn += 1
    gc.enable()
    return {kind: value * 1e3 for kind, value in best.items()}


def peak_memory(kind: str, network: str, batch: int) -> float:
    """Bytes that a fresh process allocates for steps of this kind at the peak, by torch's own count."""
    code = f"import step; print(step.measure_peak({kind!r}, {network!r}, {batch}))"
    folder = __file__.rpartition("/")[0] or "."
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return float(done.stdout)


def measure_peak(kind: str, network: str, batch: int) -> int:
    """The highest sum of live allocations over two steps (of a cycle a full and a mean pass), network and state
    included, from the profiler's log."""
    events = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[events.CPU], profile_memory=True) as profile:
        step = STEPS[kind](network, batch)
        step()
        step()
    live = highest = 0
    for event in sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            highest = max(highest, live)
    return highest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS), help="comma-separated; default: all")
    parser.add_argument("--seconds", type=float, default=6.0, help="time for each row's turns")
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of a table")
    options = parser.parse_args()
    names = options.networks.split(",")
    unknown = [name for name in names if name not in NETWORKS]
    if unknown:
        parser.error(f"unknown network {unknown[0]!r}; there are {', '.join(NETWORKS)}")
    rows = []
    if not options.json:
        print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}")
        heads = "".join(f"{name:>{width}}" for name, width in COLUMNS)
        print(f"{'network':<16}{heads}")
    for network in names:
        for batch in NETWORKS[network][1]:
            best = times(network, batch, options.seconds)
            memory = peak_memory("tagi", network, batch) / peak_memory("adam", network, batch)
            row = {
                "network": network,
                "batch": batch,
                "ratio": round(best["tagi"] / best["adam"], 3),
                "full_ratio": round(best["full"] / best["adam"], 3),
                "autograd_ratio": round(best["autograd"] / best["adam"], 3),
                "tagi_ms": round(best["tagi"], 4),
                "adam_ms": round(best["adam"], 4),
                "memory_ratio": round(memory, 3),
            }
            rows.append(row)
            if not options.json:
                print(
                    f"{network:<16}{batch:>6}{row['tagi_ms']:>10.3f}{row['adam_ms']:>10.3f}"
                    f"{row['ratio']:>7.2f}{row['full_ratio']:>7.2f}{row['autograd_ratio']:>10.2f}{memory:>8.2f}",
                    flush=True,
                )
    if options.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
