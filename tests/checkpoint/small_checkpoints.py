"""Small networks to save, and what is compared and changed in their files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import torchtagi as tagi
from torchtagi import checkpoint as files


def batch_norm_net() -> nn.Sequential:
    return nn.Sequential(
        tagi.nn.Conv2d(2, 4, 3, padding=1),
        tagi.nn.BatchNorm2d(4),
        tagi.nn.ReLU(),
        tagi.nn.Flatten(),
        tagi.nn.Linear(4 * 36, 11),
    )


def trained(net: nn.Module) -> nn.Module:
    """A few steps, so that every tensor has left its prior."""
    posterior, likelihood = tagi.Update(net), tagi.HierarchicalClassification(10, 0.5)
    for _ in range(3):
        likelihood(net(torch.randn(6, 2, 6, 6)), torch.randint(0, 10, (6,))).backward()
        posterior.step()
        posterior.zero_grad()
    return net


def small_net() -> nn.Sequential:
    return nn.Sequential(tagi.nn.Linear(3, 4), tagi.nn.BatchNorm1d(4), tagi.nn.ReLU(), tagi.nn.Linear(4, 2))


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def assert_bit_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert value.dtype == other[key].dtype, key
        assert torch.equal(value, other[key]), key


def rewrite(path: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> None:
    """Change a checkpoint's tensors and header in place."""
    tensors = load_file(path)
    header = read_header(path)
    change(tensors, header)
    save_file(tensors, path, {"torchtagi": json.dumps(header)})


def read_header(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["torchtagi"])
    return header


def assert_refused(path: Path, *, by_load: bool = True, message: str | None = None) -> None:
    """One kind of error, which names the file; nothing is written."""
    net, likelihood = small_net(), tagi.Regression(2.0)
    before, noise = snapshot(net), snapshot(likelihood)
    with pytest.raises(tagi.CheckpointError, match=message) as caught:
        files.restore(path, net, likelihood)
    assert path.name in str(caught.value)
    assert_bit_equal(snapshot(net), before)
    assert_bit_equal(snapshot(likelihood), noise)
    if by_load:
        with pytest.raises(tagi.CheckpointError, match=message) as caught:
            files.load(path)
        assert path.name in str(caught.value)
