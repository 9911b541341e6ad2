"""An architecture in a file is data: only the project's own layers are built from it."""

import os
from pathlib import Path
from typing import Any

import pytest
from small_checkpoints import (
    rewrite,
)

import torchtagi as tagi
from torchtagi import checkpoint as files

LINEAR = {"type": "Linear", "arguments": {"in_features": 3, "out_features": 4}}

ARCHITECTURES: dict[str, Any] = {
    "os.system": {"type": "os.system", "arguments": {"command": "true"}},
    "system": {"type": "system", "arguments": {"command": "true"}},
    "torch's own layer": {"type": "torch.nn.Linear", "arguments": {"in_features": 3, "out_features": 4}},
    "full name": {"type": "torchtagi.nn.Linear", "arguments": LINEAR["arguments"]},
    "abstract": {"type": "Layer", "arguments": {}},
    "module": {"type": "Module", "arguments": {}},
    "eval": {"type": "eval", "arguments": {"source": "1"}},
    "dunder": {"type": "__class__", "arguments": {}},
    "inside a sequence": {"type": "Sequential", "parts": [["0", {"type": "os.system", "arguments": {}}]]},
    "a word": "os.system",
    "a list": [LINEAR],
    "nothing in it": {},
    "no arguments": {"type": "Linear"},
    "no parts": {"type": "Sequential"},
    "type a list": {"type": ["Linear"], "arguments": {}},
    "arguments a list": {"type": "Linear", "arguments": [3, 4]},
    "unknown argument": {"type": "Linear", "arguments": {"in_features": 3, "out_features": 4, "hook": "os.system"}},
    "bad argument": {"type": "Linear", "arguments": {"in_features": -3, "out_features": 4}},
    "argument of a wrong type": {
        "type": "Conv2d",
        "arguments": {"in_channels": 1, "out_channels": 1, "kernel_size": {}},
    },
    "device": {"type": "Linear", "arguments": {**LINEAR["arguments"], "device": "nowhere"}},
    "too large to exist": {"type": "Linear", "arguments": {"in_features": 10**9, "out_features": 10**9}},
    "a module of layers": {"type": "Residual", "parts": [["layers", {"type": "ReLU", "arguments": {}}]]},
    "part names": {"type": "Sequential", "parts": [["a.b", LINEAR]]},
    "parts that are no pairs": {"type": "Sequential", "parts": [LINEAR]},
    "fits no tensor": {"type": "Linear", "arguments": {"in_features": 5, "out_features": 4}},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_of_unknown_parts_is_refused_and_runs_nothing(
    name: str, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(os, "system", calls.append)
    rewrite(good, lambda tensors, header: header["architecture"].update(net=ARCHITECTURES[name]))
    with pytest.raises(tagi.CheckpointError, match=r"good\.safetensors"):
        files.load(good)
    assert calls == []


@pytest.mark.parametrize("kind", ["Dropout", "torch.nn.Dropout", "GELU", "ModuleList", "Layer", "dict", "Gaussian"])
def test_only_the_projects_own_layers_are_built(kind: str, tmp_path: Path) -> None:
    """Even a stranger that would fit, since it needs no tensors and no arguments."""
    path = tmp_path / "a.safetensors"
    files.save(path, tagi.nn.ReLU(), tagi.Regression(0.5))
    files.load(path)
    rewrite(path, lambda tensors, header: header["architecture"]["net"].update(type=kind))
    with pytest.raises(tagi.CheckpointError, match=rf"a\.safetensors.*{kind}"):
        files.load(path)


@pytest.mark.parametrize("architecture", [None, [], "net", {}, {"likelihood": LINEAR}])
def test_an_architecture_without_a_network_is_refused(architecture: Any, good: Path) -> None:
    rewrite(good, lambda tensors, header: header.update(architecture=architecture))
    with pytest.raises(tagi.CheckpointError, match=r"good\.safetensors"):
        files.load(good)


@pytest.mark.parametrize("key", ["architecture", "extra", "versions"])
def test_a_header_with_a_part_missing_is_refused(key: str, good: Path) -> None:
    rewrite(good, lambda tensors, header: header.pop(key))
    with pytest.raises(tagi.CheckpointError, match=r"good\.safetensors"):
        files.load(good)
