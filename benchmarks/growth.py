"""How cost grows: a TAGI step against an Adam step of the same CNN, by width, depth, batch and image size.

    python benchmarks/growth.py             # points that results/growth.json has are not measured again
    python benchmarks/growth.py --profile   # where the time of a ResNet18 step goes, into the same file

The network is a stack of 3×3 convolutions with ReLU, all of one width and at full resolution, average pooling to
4×4 and a linear layer. One of its sizes is varied at a time around the base. A TAGI step is the mean of a whole
cycle, one full pass and K − 1 mean passes (`inference.passes`), each with the batch as one chunk. Adam makes as
many steps; both take turns within one run, and a time is that of the best turn. Memory is the peak of what a fresh
process allocates for such steps, parameters and state included. docs/figures/growth.png is drawn from it.

Freed memory stays with the process. Given back to the system, as the C library does at times, it costs page faults,
of one method or the other by chance and by the order of turns. Rows have the page faults of a step, which should be
few, and `core`, the share of a core that was had, near 1 with one thread.

In the profile, what a convolution calls is part of the product, and what the update calls is the update's;
"elementwise" are all other operations of torch (activations, pooling, squares, sums), "other" Python and autograd.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import multiprocessing
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

import step
import torchtagi as tagi
from torchtagi.checkpoint import write_atomically
from torchtagi.experiments.report import plots
from torchtagi.inference.passes import LONGEST

ROOT = Path(__file__).parents[1]
BASE = {"width": 32, "depth": 4, "batch": 16, "size": 32}
AXES = {"width": (16, 32, 64, 128), "depth": (2, 4, 8, 16), "batch": (4, 16, 64, 256), "size": (16, 32, 64)}
LABELS = {"width": "channels", "depth": "convolutions", "batch": "images a batch", "size": "pixels a side"}
METHODS = {"TAGI": {"color": plots.MAIN}, "Adam": {"color": plots.ACCENT}}
SETTINGS = {"cycle": LONGEST, "base": BASE}
FEWEST_TURNS = 3  # of points that take longer than they are given

# by parts of an operation's name, or of the nearest caller's that has a kind
KINDS = {
    "products": ("aten::conv", "aten::mkldnn_conv", "aten::linear", "aten::mm", "aten::addmm", "aten::matmul"),
    "norms": ("Norm", "batch_norm"),
    "update": ("apply_messages", "Optimizer.step", "aten::_foreach"),
}
ALL_KINDS = (*KINDS, "elementwise", "other")

Row = dict[str, Any]
Step = Callable[[], object]


def cnn(outputs: int, width: int, depth: int, size: int, *, layers: ModuleType = tagi.nn) -> torch.nn.Sequential:
    parts: list[torch.nn.Module] = []
    for channels in (3, *[width] * (depth - 1)):
        parts += [layers.Conv2d(channels, width, 3, padding=1), layers.ReLU()]
    parts += [layers.AvgPool2d(size // 4), layers.Flatten(), layers.Linear(16 * width, outputs)]
    return layers.Sequential(*parts)


def named(point: Row) -> str:
    """The name by which `step` knows the network of a point."""
    name = f"cnn-{point['width']}-{point['depth']}-{point['size']}"
    builder = partial(cnn, width=point["width"], depth=point["depth"], size=point["size"])
    step.NETWORKS[name], step.IMAGES[name] = (builder, (point["batch"],)), (3, point["size"], point["size"])
    return name


def keep_memory() -> None:
    """Let glibc neither trim its heap nor map large blocks one by one."""
    if sys.platform == "linux":
        trim_threshold, mmap_max = -1, -4  # malloc.h
        libc = ctypes.CDLL(None)
        if not (libc.mallopt(trim_threshold, 2**31 - 1) and libc.mallopt(mmap_max, 0)):
            raise RuntimeError("mallopt refused to keep memory")


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def times(point: Row, seconds: float) -> Row:
    """Milliseconds a step: the best cycles, taking turns for about `seconds`; and the best passes of each kind."""
    network, batch = named(point), point["batch"]
    full_pass, mean_pass, update = step.tagi_passes(network, batch)
    cycle = [("full", full_pass), *[("mean", mean_pass)] * (LONGEST - 1)]
    turns = {"tagi": cycle, "adam": [("adam step", step.adam_step(network, batch))] * LONGEST}
    best: dict[str, float] = {}
    faults = dict.fromkeys(turns, 0)
    gc.collect()
    gc.disable()
    turn, begin, cpu_begin = -1, time.perf_counter(), time.process_time()  # the first turn warms up
    while turn < FEWEST_TURNS or time.perf_counter() < begin + seconds:
        for method, steps in turns.items():
            before, total = page_faults(), 0.0
            for name, one_step in steps:
                start = time.perf_counter()
                one_step()
                taken = (time.perf_counter() - start) * 1e3
                total += taken
                if turn >= 0:
                    best[name] = min(best.get(name, math.inf), taken)
            if turn >= 0:
                best[method] = min(best.get(method, math.inf), total / LONGEST)
                faults[method] += page_faults() - before
        if update.passes.samples != (LONGEST - 1) * batch:
            raise RuntimeError(f"no mean passes in a network as small as {point}")
        turn += 1
    gc.enable()
    core = (time.process_time() - cpu_begin) / (time.perf_counter() - begin)
    row: Row = {f"{name}_ms": round(best[name], 3) for name in ("tagi", "full", "mean", "adam")}
    row |= {f"{method}_faults": round(count / turn / LONGEST) for method, count in faults.items()}
    return {**row, "turns": turn, "core": round(core, 3)}


def peak(kind: str, point: Row) -> int:
    return step.measure_peak(kind, named(point), point["batch"])


def measured(point: Row, seconds: float) -> Row:
    row = {**point, **times(point, seconds)}
    for name, kind in (("tagi", "tagi"), ("adam", "adam")):
        spawn, threads = multiprocessing.get_context("spawn"), torch.get_num_threads()
        with ProcessPoolExecutor(1, spawn, torch.set_num_threads, (threads,)) as fresh:
            row[f"{name}_mb"] = round(fresh.submit(peak, kind, point).result() / 1e6, 2)
    ratios = {"ratio": row["tagi_ms"] / row["adam_ms"], "memory_ratio": row["tagi_mb"] / row["adam_mb"]}
    return {**row, **{name: round(value, 3) for name, value in ratios.items()}}


def kind_of(event: Any) -> str:
    caller = event
    while caller is not None:
        for kind, names in KINDS.items():
            if any(name in caller.name for name in names):
                return kind
        caller = caller.cpu_parent
    return "elementwise" if event.name.startswith("aten::") else "other"


def shares(one_step: Step, repeats: int = 5) -> Row:
    """Milliseconds of a profiled step, and the shares of each kind in %."""
    one_step()
    begin, cpu_begin = time.perf_counter(), time.process_time()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(repeats):
            with record_function("one step"):
                one_step()
        core = (time.process_time() - cpu_begin) / (time.perf_counter() - begin)
    spent = dict.fromkeys(ALL_KINDS, 0.0)
    for event in profiled.events():
        spent[kind_of(event)] += event.self_cpu_time_total
    total = sum(spent.values())
    found = {kind: round(100 * value / total, 1) for kind, value in spent.items()}
    return {"ms": round(total / repeats / 1e3, 1), **found, "core": round(core, 3)}


def profile_resnet(batch: int = 16) -> Row:
    full_pass, mean_pass, update = step.tagi_passes("resnet18", batch)
    update.apply_messages = record_function("apply_messages")(update.apply_messages)
    steps = {"full pass": full_pass, "mean pass": mean_pass, "Adam": step.adam_step("resnet18", batch)}
    return {"network": "resnet18", "batch": batch, **{name: shares(one) for name, one in steps.items()}}


def draw_picture(rows: list[Row], path: Path) -> None:
    sizes = {"rows": 2, "columns": len(AXES), "sharex": "col", "sharey": "row"}
    with plots.new_figure(10.2, 4.8, **sizes) as (figure, grid):
        for quantity, label, ratio, line in (("ms", "ms a step", "ratio", 0), ("mb", "peak MB", "memory_ratio", 1)):
            for axes, axis in zip(grid[line], AXES, strict=True):
                found = sorted((row for row in rows if is_on(axis, row)), key=lambda row: row[axis])
                places = [row[axis] for row in found]
                for name, style in METHODS.items():
                    values = [row[f"{name.lower()}_{quantity}"] for row in found]
                    axes.plot(places, values, "o-", markersize=3.5, **style, label=name)
                for row in found:
                    place = row[axis], max(row[f"tagi_{quantity}"], row[f"adam_{quantity}"])
                    offset = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
                    axes.annotate(f"{row[ratio]:.2f}", place, **offset, fontsize=8, color=plots.INK)
                axes.set(xscale="log", yscale="log", xlabel=LABELS[axis] if line else "")
                axes.set_xticks(places, map(str, places), minor=False)
                axes.set_xticks([], minor=True)
                axes.margins(x=0.14, y=0.12)
                axes.label_outer()
            plots.write_plainly(grid[line][0].yaxis)
            grid[line][0].set_ylabel(label)
        grid[0][0].legend(loc="upper left", fontsize=9)
    write_atomically(path, plots.as_png(figure))


def is_on(axis: str, row: Row) -> bool:
    return all(row[name] == value for name, value in BASE.items() if name != axis)


def print_table(names: list[str], lines: list[Row]) -> None:
    print("".join(f"{name:>14}" for name in names))
    for line in lines:
        print("".join(f"{line[name]:>14}" for name in names))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="profile ResNet18 instead")
    parser.add_argument("--seconds", type=float, default=8.0, help="time for each point's turns")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "growth.json")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "figures" / "growth.png")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_memory()
    settings = {**SETTINGS, "threads": options.threads}
    saved = json.loads(options.out.read_text()) if options.out.exists() else {"settings": settings, "rows": []}
    if saved["settings"] != settings:
        parser.error(f"{options.out} has rows of other settings: name another file with --out")
    describe = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, capture_output=True, text=True, cwd=ROOT).stdout.strip()

    def save() -> None:
        write_atomically(options.out, (json.dumps(saved, indent=1) + "\n").encode())

    if options.profile:
        saved["profile"] = {**profile_resnet(), "commit": commit}
        save()
        found = {name: part for name, part in saved["profile"].items() if isinstance(part, dict)}
        print("ResNet18, % of a step")
        print_table(["step", "ms", *ALL_KINDS], [{"step": name, **part} for name, part in found.items()])
        return
    points = [{**BASE, axis: value} for axis, values in AXES.items() for value in values]
    for point in points:
        if not any(point.items() <= row.items() for row in saved["rows"]):
            saved["rows"].append({**measured(point, options.seconds), "commit": commit})
            save()
    names = [*BASE, "tagi_ms", "adam_ms", "ratio", "tagi_mb", "adam_mb", "memory_ratio"]
    print_table(names, saved["rows"])
    draw_picture(saved["rows"], options.picture)


if __name__ == "__main__":
    main()
