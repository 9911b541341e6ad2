"""Saving and loading: one safetensors file with everything a trained model is.

Tensors: means, variances, running statistics, the likelihood's noise. Metadata: the architecture as a tree of
layer names and arguments, the versions that wrote it, and whatever JSON the caller adds. Loading builds layers
from a fixed list of names, so it never executes code from the file. It checks the whole file before it writes
anything: a truncated, foreign or ill-fitting one raises `CheckpointError` and changes nothing.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

import torchtagi.likelihood
import torchtagi.nn
from torchtagi.likelihood import HeteroscedasticRegression, Likelihood
from torchtagi.models.classifiers import ResidualBlock
from torchtagi.nn import Layer

FORMAT = 1
ABSTRACT = ("Layer", "Module", "ModuleList")
BUILDABLE: dict[str, type[nn.Module]] = {
    **{name: getattr(torchtagi.nn, name) for name in torchtagi.nn.__all__ if name not in ABSTRACT},
    **{name: getattr(torchtagi.likelihood, name) for name in torchtagi.likelihood.BUILDABLE},
    "ResidualBlock": ResidualBlock,
}


class CheckpointError(ValueError):
    """A file that is not a checkpoint, or not one for this network."""


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds."""

    net: nn.Module
    likelihood: nn.Module | None
    extra: dict[str, Any]
    versions: dict[str, str]


def describe(module: nn.Module) -> dict[str, Any] | None:
    """The architecture as JSON, or None if it holds a module of a kind that `load` does not know."""
    name = type(module).__name__
    if BUILDABLE.get(name) is not type(module):
        return None
    if isinstance(module, nn.Sequential):
        parts = [(key, describe(part)) for key, part in module.named_children()]
        return None if any(part is None for _, part in parts) else {"type": name, "parts": parts}
    assert isinstance(module, Layer | ResidualBlock | Likelihood | HeteroscedasticRegression)
    return {"type": name, "arguments": module.config()}


def build(description: dict[str, Any]) -> nn.Module:
    kind = BUILDABLE.get(description["type"])
    if kind is None:
        raise CheckpointError(f"unknown layer {description['type']!r} in the checkpoint's architecture")
    if kind is nn.Sequential:
        sequential = nn.Sequential()
        for key, part in description["parts"]:
            sequential.add_module(key, build(part))
        return sequential
    try:
        return kind(**description["arguments"])
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the checkpoint's {description['type']} cannot be built: {error}") from error


def save(
    path: str | Path, net: nn.Module, likelihood: nn.Module | None = None, extra: dict[str, Any] | None = None
) -> None:
    """Write a checkpoint atomically: the file at `path` is the old one or the whole new one, never a part."""
    modules = {"net": net} if likelihood is None else {"net": net, "likelihood": likelihood}
    tensors = {
        f"{part}.{key}": value.detach().contiguous().cpu()
        for part, module in modules.items()
        for key, value in module.state_dict().items()
    }
    header = {
        "format": FORMAT,
        "architecture": {part: describe(module) for part, module in modules.items()},
        "versions": {"torchtagi": torchtagi.__version__, "torch": str(torch.__version__)},
        "extra": extra or {},
    }
    write_atomically(Path(path), to_bytes(tensors, {"torchtagi": json.dumps(header)}))


def load(path: str | Path) -> Saved:
    """Rebuild the network, and the likelihood if one was saved, from a checkpoint alone."""
    header, tensors = read(path)
    parts: dict[str, nn.Module] = {}
    for part, description in header["architecture"].items():
        if description is None:
            raise CheckpointError(
                f"{path}: the {part} has a module of your own, so it cannot be rebuilt from the file; build it "
                "yourself and call restore(path, net)"
            )
        parts[part] = build(description)
        fill(path, part, parts[part], tensors)
    return Saved(parts["net"], parts.get("likelihood"), header["extra"], header["versions"])


def restore(path: str | Path, net: nn.Module, likelihood: nn.Module | None = None) -> dict[str, Any]:
    """Load a checkpoint into a network that exists; returns the `extra` saved with it."""
    header, tensors = read(path)
    modules = {"net": net} if likelihood is None else {"net": net, "likelihood": likelihood}
    for part, module in modules.items():
        compare(path, part, module, tensors)
    for part, module in modules.items():
        fill(path, part, module, tensors)
    extra: dict[str, Any] = header["extra"]
    return extra


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The whole file, checked in itself."""
    if not Path(path).is_file():
        raise CheckpointError(f"{path}: no such file")
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file, or a truncated one ({error})") from error
    try:
        header = json.loads(metadata["torchtagi"])
        written_in = header["format"]
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: a safetensors file, but not a torchtagi checkpoint") from error
    if written_in != FORMAT:
        raise CheckpointError(f"{path}: checkpoint format {written_in}, this version reads {FORMAT}")
    for key, tensor in tensors.items():
        if key.endswith(".var") and not bool((tensor > 0).all()):
            raise CheckpointError(f"{path}: {key} holds a variance that is not positive")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{path}: {key} holds a value that is not finite")
    return header, tensors


def compare(path: str | Path, part: str, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Raise unless the file's tensors are exactly the module's."""
    here = {f"{part}.{key}": value for key, value in module.state_dict().items()}
    there = {key: value for key, value in tensors.items() if key.startswith(f"{part}.")}
    for key in sorted(here.keys() | there.keys()):
        if key not in there:
            raise CheckpointError(f"{path}: {key} is missing")
        if key not in here:
            raise CheckpointError(f"{path}: {key} is not in this network")
        if here[key].shape != there[key].shape:
            raise CheckpointError(
                f"{path}: {key} has shape {tuple(there[key].shape)}, the network's is {tuple(here[key].shape)}"
            )


def fill(path: str | Path, part: str, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    compare(path, part, module, tensors)
    prefix = f"{part}."
    module.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})


def write_atomically(path: Path, content: bytes) -> None:
    """All of `content` under its final name, or nothing: a temporary file beside it, then a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
