"""A small file costs little, whatever it asks for: it is refused before what it describes is built."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import assert_bit_equal, small_net, snapshot
from torch import nn

import torchtagi as tagi
from torchtagi import checkpoint as files

RELU: dict[str, Any] = {"type": "ReLU", "arguments": {}}
LINEAR: dict[str, Any] = {"type": "Linear", "arguments": {"in_features": 1, "out_features": 1}}
LARGE: dict[str, Any] = {"type": "Linear", "arguments": {"in_features": 10**6, "out_features": 10**6}}


def sequence(*parts: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "Sequential", "parts": parts}


def repeated(part: dict[str, Any], times: int) -> dict[str, Any]:
    return sequence(*((str(i), part) for i in range(times)))


def nested(part: dict[str, Any], times: int) -> dict[str, Any]:
    for _ in range(times):
        part = sequence(("0", part))
    return part


def tree(classes: int) -> dict[str, Any]:
    return {"type": "HierarchicalClassification", "arguments": {"classes": classes}}


GREEDY: dict[str, tuple[dict[str, Any], str]] = {
    "classes": ({"net": RELU, "likelihood": tree(30_000)}, "30000 classes"),
    "a world of classes": ({"net": RELU, "likelihood": tree(10**9)}, "1000000000 classes"),
    "classes beyond counting": ({"net": RELU, "likelihood": tree(10**4000)}, "0000 classes are too many"),
    "trees of classes": ({"net": repeated(tree(10**4000), 10)}, "0000 classes are too many"),
    "layers without tensors": ({"net": repeated(RELU, 200_000)}, "too long for 0 tensors"),
    "layers with tensors": ({"net": repeated(LINEAR, 20_000)}, "too long for 0 tensors"),
    "layers with the tensors of others": (
        {"net": repeated(LINEAR, 8_000), "others": 2_000},
        "too long for 2000 tensors",
    ),
    "a few layers with the tensors of others": (
        {"net": repeated(LINEAR, 500), "others": 2_000},
        r"net\.0\.bias\.mean is missing",
    ),
    "layers inside layers": ({"net": repeated(repeated(RELU, 400), 400)}, "too long for 0 tensors"),
    "large layers": ({"net": repeated(LARGE, 500)}, r"net\.0\.bias\.mean is missing"),
    "nesting": ({"net": nested(RELU, 200)}, "nested too deep"),
    "nesting beyond JSON": ({"net": None}, "not a torchtagi checkpoint"),  # written below
    "a long name": ({"net": sequence(("a" * 10**6, RELU))}, "too long for 0 tensors"),
    "long names": ({"net": sequence(("a" * 10**4, repeated(LINEAR, 400)))}, "name is too long"),
    "dimensions": (
        {"net": {"type": "LayerNorm", "arguments": {"normalized_shape": [10**18] * 50_000}}},
        "too long for 0 tensors",
    ),
    "fewer dimensions": (
        {"net": {"type": "LayerNorm", "arguments": {"normalized_shape": [10**18] * 3_000}}},
        "the net cannot be rebuilt",
    ),
    "a wide layer": (
        {"net": {"type": "Linear", "arguments": {"in_features": 10**4000, "out_features": 1}}},
        "the net cannot be rebuilt",
    ),
}
MEASURE = """
import json, resource, sys, time
import torchtagi as tagi
from torchtagi import checkpoint as files

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

files.load(sys.argv[1])
for path in sys.argv[2:]:
    memory, start, message = peak(), time.perf_counter(), None
    try:
        files.load(path)
    except tagi.CheckpointError as error:
        message = str(error)[:10_000]
    print(json.dumps([message, time.perf_counter() - start, peak() - memory]))
"""


def write(path: Path, architecture: dict[str, Any]) -> None:
    header = {"format": 1, "architecture": architecture, "versions": {}, "extra": {}}
    tensors = {f"other.{i}": torch.ones(()) for i in range(architecture.get("others", 0))}
    if "likelihood" in architecture:
        tensors["likelihood.noise_var"] = torch.ones(())
    save_file(tensors, path, {"torchtagi": json.dumps(header)})


def test_a_small_file_that_asks_for_much_is_refused_at_once(tmp_path: Path) -> None:
    """In a process of its own, whose peak of memory is that of these files."""
    pytest.importorskip("resource")
    files.save(tmp_path / "modest", small_net(), tagi.HierarchicalClassification(2))
    for name, (architecture, _) in GREEDY.items():
        write(tmp_path / name, architecture)
    deep = json.dumps({"format": 1, "architecture": None}).replace("null", '{"a":' * 10**5 + "0" + "}" * 10**5)
    save_file({}, tmp_path / "nesting beyond JSON", {"torchtagi": deep})
    found = subprocess.run(
        [sys.executable, "-c", MEASURE, *(str(tmp_path / name) for name in ("modest", *GREEDY))],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert len(rows) == len(GREEDY)
    for (name, (_, cause)), (message, seconds, memory) in zip(GREEDY.items(), rows, strict=True):
        size = (tmp_path / name).stat().st_size
        assert message is not None, f"{name} was loaded"
        assert re.search(f"{name}: .*{cause}", message)
        assert seconds < 5, f"{name}: {seconds} s"
        assert memory < 30 * 2**20 + 40 * size, f"{name}: {memory / 2**20} MB for a file of {size} bytes"


def block() -> nn.Module:
    """Five modules, two tensors."""
    return tagi.nn.Residual(nn.Sequential(tagi.nn.Linear(2, 2, bias=False), tagi.nn.ReLU()))


@pytest.mark.parametrize(("make", "count"), [(tagi.nn.ReLU, 900), (block, 500)])
def test_a_deep_network_is_not_too_much(make: Callable[[], nn.Module], count: int, tmp_path: Path) -> None:
    net = nn.Sequential(*(make() for _ in range(count)))
    files.save(tmp_path / "a", net)
    assert_bit_equal(snapshot(files.load(tmp_path / "a").net), snapshot(net))


def test_a_network_that_load_takes_for_too_much_is_restored(tmp_path: Path) -> None:
    net = nn.Sequential(*(tagi.nn.ReLU() for _ in range(1700)), tagi.nn.Linear(2, 2))
    files.save(tmp_path / "a", net)
    with pytest.raises(tagi.CheckpointError, match=r"too long for 4 tensors.*restore\(path, net"):
        files.load(tmp_path / "a")
    net[-1].weight.set_(0.0, 1.0)
    files.restore(tmp_path / "a", net)
    assert bool((net[-1].weight.mean != 0).all())


def test_loading_takes_nothing_from_the_random_generator(tmp_path: Path) -> None:
    files.save(tmp_path / "a", small_net())
    before = torch.get_rng_state()
    files.load(tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before)
