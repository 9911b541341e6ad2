"""Saving and loading: one safetensors file with everything a trained model is.

Tensors: means, variances, running statistics, the likelihood's noise. Metadata: the architecture as a tree of
layer names and arguments, the versions that wrote it, and whatever JSON the caller adds. Loading builds layers
from a fixed list of names, so it never executes code from the file. It checks the whole file before it writes
anything: a truncated, foreign or ill-fitting one raises `CheckpointError` and changes nothing.
"""

from __future__ import annotations

import inspect
import json
import os
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

import torchtagi.likelihoods
import torchtagi.nn
from torchtagi.likelihoods import HeteroscedasticRegression, Likelihood
from torchtagi.nn import Layer, Residual

FORMAT = 1
PARTS = ("net", "likelihood")
ABSTRACT = ("Layer", "Module", "ModuleList")
BUILDABLE: dict[str, type[nn.Module]] = {
    **{name: getattr(torchtagi.nn, name) for name in torchtagi.nn.__all__ if name not in ABSTRACT},
    **{name: getattr(torchtagi.likelihoods, name) for name in torchtagi.likelihoods.BUILDABLE},
}


ARGUMENTS = {
    name: getattr(kind, "arguments", ()) or tuple(inspect.signature(kind).parameters)
    for name, kind in BUILDABLE.items()
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
    """The architecture as JSON, or None if it holds a module of a kind that `load` does not know, or parameters
    that are in two places at once."""
    parameters = [id(part) for _, part in module.named_parameters(remove_duplicate=False)]
    if len(set(parameters)) < len(parameters):
        return None
    name = type(module).__name__
    if type(module) not in (BUILDABLE.get(name), nn.Sequential):  # torch's own comes back as ours
        return None
    if isinstance(module, nn.Sequential | Residual):
        parts = [(key, describe(part)) for key, part in module._modules.items() if part is not None]
        return None if any(part is None for _, part in parts) else {"type": name, "parts": parts}
    assert isinstance(module, Layer | Likelihood | HeteroscedasticRegression)
    return {"type": name, "arguments": module.config()}


def build(description: Any) -> nn.Module:
    """The module of a description. Anything but a known name with its own arguments raises."""
    kind = BUILDABLE[description["type"]]
    if issubclass(kind, nn.Sequential):
        return kind(OrderedDict((key, build(part)) for key, part in description["parts"]))
    if issubclass(kind, Residual):
        return kind(**{key: build(part) for key, part in description["parts"]})
    arguments = description["arguments"]
    unknown = set(arguments) - set(ARGUMENTS[description["type"]])
    if unknown:
        raise ValueError(f"{description['type']} has no argument {min(unknown)!r}")
    return kind(**arguments)


def save(
    path: str | Path,
    net: nn.Module,
    likelihood: nn.Module | None = None,
    extra: dict[str, Any] | None = None,
    **others: nn.Module,
) -> None:
    """Write a checkpoint atomically: the file at `path` is the old one or the whole new one, never a part.

    `others` are kept beside them under their names, for `restore`; `load` passes them over.
    """
    modules = named(net, likelihood, others)
    tensors = {
        # a copy: safetensors refuses tensors that share memory, as those of a layer used twice do
        f"{part}.{key}": value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for part, module in modules.items()
        for key, value in module.state_dict().items()
    }
    write(path, tensors, {part: describe(module) for part, module in modules.items()}, extra or {})


def save_tensors(path: str | Path, tensors: dict[str, Tensor], extra: dict[str, Any] | None = None) -> None:
    """Named tensors alone, for what is not a network of our layers; `read` gives them back."""
    plain = {
        key: value.detach().cpu().clone(memory_format=torch.contiguous_format) for key, value in tensors.items()
    }
    write(path, plain, {"net": None}, extra or {})


def write(
    path: str | Path, tensors: dict[str, Tensor], architecture: dict[str, Any], extra: dict[str, Any]
) -> None:
    header = {
        "format": FORMAT,
        "architecture": architecture,
        "versions": {"torchtagi": torchtagi.__version__, "torch": str(torch.__version__)},
        "extra": extra,
    }
    write_atomically(Path(path), to_bytes(tensors, {"torchtagi": json.dumps(header)}))


def load(path: str | Path) -> Saved:
    """Rebuild the network, and the likelihood if one was saved, from a checkpoint alone."""
    header, tensors = read(path)
    parts: dict[str, nn.Module] = {}
    for part, description in header["architecture"].items():
        if part not in PARTS:
            continue
        if description is None:
            raise CheckpointError(
                f"{path}: the {part} has a module of your own, or parameters used twice, so it cannot be rebuilt "
                "from the file; build it yourself and call restore(path, net)"
            )
        try:
            with torch.device("meta"):  # shapes only: the file's tensors decide whether memory is spent
                compare(path, part, build(description), tensors)
            parts[part] = build(description)
        except CheckpointError:
            raise
        except Exception as error:  # whatever a malformed description trips over, it is the file's fault
            raise CheckpointError(f"{path}: the {part}'s architecture cannot be built ({error!r})") from error
    for part, module in parts.items():
        dtypes = {v.dtype for k, v in tensors.items() if k.startswith(f"{part}.") and v.is_floating_point()}
        if len(dtypes) == 1:
            module.to(dtypes.pop())
        fill(part, module, tensors)
    return Saved(parts["net"], parts.get("likelihood"), header["extra"], header["versions"])


def named(net: nn.Module, likelihood: nn.Module | None, others: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return {"net": net, **({} if likelihood is None else {"likelihood": likelihood}), **others}


def restore(
    path: str | Path, net: nn.Module, likelihood: nn.Module | None = None, **others: nn.Module
) -> dict[str, Any]:
    """Load a checkpoint into a network that exists; returns the `extra` saved with it."""
    header, tensors = read(path)
    modules = named(net, likelihood, others)
    for part, module in modules.items():
        compare(path, part, module, tensors)
    for part, module in modules.items():
        fill(part, module, tensors)
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
    except Exception as error:  # the reader has no one error for what is not its format
        raise CheckpointError(f"{path}: not a safetensors file, or a truncated one ({error})") from error
    try:
        header = json.loads(metadata["torchtagi"])
        written_in, architecture = header["format"], header["architecture"]
        whole = isinstance(header["extra"], dict) and isinstance(header["versions"], dict)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: a safetensors file, but not a torchtagi checkpoint") from error
    if written_in != FORMAT:
        raise CheckpointError(f"{path}: checkpoint format {written_in}, this version reads {FORMAT}")
    if not (whole and isinstance(architecture, dict) and "net" in architecture):
        raise CheckpointError(f"{path}: a torchtagi checkpoint without its parts")
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{path}: {key} holds a value that is not finite; a variance must be positive")
        if key.endswith((".var", "noise_var")) and not bool((tensor > 0).all()):
            raise CheckpointError(f"{path}: {key} holds a variance that is not positive")
        if key.endswith("running_var") and bool((tensor < 0).any()):
            raise CheckpointError(f"{path}: {key} holds a negative variance")
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


def fill(part: str, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    prefix = f"{part}."
    module.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})


def write_atomically(path: Path, content: bytes) -> None:
    """All of `content` under its final name, or nothing: a temporary file beside it, then a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
