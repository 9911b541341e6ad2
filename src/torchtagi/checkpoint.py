"""Saving and loading: one safetensors file with everything a trained model is.

Tensors: means, variances, running statistics, the likelihood's noise. Metadata: the architecture as a tree of
layer names and arguments, the versions that wrote it, and whatever JSON the caller adds. Loading builds layers
from a fixed list of names, so it never executes code from the file, and from no longer a tree than its tensors may
need, so that a small file costs little. It checks the whole file before it writes anything: a truncated or
ill-fitting one, or one of another program, raises `CheckpointError` and changes nothing.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import secrets
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch import distributed as dist

import torchtagi.likelihoods
import torchtagi.nn
from torchtagi.nn import Residual

FORMAT = 1
ABSTRACT = ("Layer", "Module", "ModuleList")
BUILDABLE: dict[str, type[nn.Module]] = {
    **{name: getattr(torchtagi.nn, name) for name in torchtagi.nn.__all__ if name not in ABSTRACT},
    **{name: getattr(torchtagi.likelihoods, name) for name in torchtagi.likelihoods.BUILDABLE},
}
LENGTH, LENGTH_FOR_A_TENSOR = 2**16, 2**8  # letters of JSON for a tree; a layer takes 50 of them, and then 3 kB
NAME_LENGTH = 255  # letters in the names from the network down to a layer


class CheckpointError(ValueError):
    """A file that is not a checkpoint, or not one for this network."""


class Saved(NamedTuple):
    """What a checkpoint holds."""

    net: nn.Module
    likelihood: nn.Module | None
    extra: dict[str, Any]
    versions: dict[str, str]


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
    tensors = {f"{part}.{key}": value for part in modules for key, value in modules[part].state_dict().items()}
    write(path, tensors, {part: describe(module) for part, module in modules.items()}, extra)


def write(
    path: str | Path, tensors: dict[str, Tensor], architecture: dict[str, Any], extra: dict[str, Any] | None
) -> None:
    """Named tensors and a tree for each part, or why there is none; `read` gives them back."""
    header = {
        "format": FORMAT,
        "architecture": architecture,
        "versions": {"torchtagi": torchtagi.__version__, "torch": str(torch.__version__)},
        "extra": extra or {},
    }
    plain = {
        # a copy: safetensors refuses tensors that share memory, as those of a layer used twice do
        key: whole(value).detach().cpu().clone(memory_format=torch.contiguous_format)
        for key, value in tensors.items()
    }
    if any(map(is_shard, tensors.values())) and dist.get_rank():
        return  # the first process writes what all have brought together
    write_atomically(Path(path), to_bytes(plain, {"torchtagi": json.dumps(header)}))


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if is_shard(tensor) else tensor  # type: ignore[attr-defined]


def is_shard(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def load(path: str | Path) -> Saved:
    """Rebuild the network, and the likelihood if one was saved, from a checkpoint alone; in evaluation mode."""
    header, tensors = read(path)
    net = rebuild(path, "net", header, tensors)
    likelihood = rebuild(path, "likelihood", header, tensors) if "likelihood" in header["architecture"] else None
    return Saved(net, likelihood, header["extra"], header["versions"])


def restore(
    path: str | Path, net: nn.Module, likelihood: nn.Module | None = None, **others: nn.Module
) -> dict[str, Any]:
    """Load a checkpoint into a network that exists; returns the `extra` saved with it."""
    header, tensors = read(path)
    modules = named(net, likelihood, others)
    states = {part: fitting_state(path, part, module, tensors) for part, module in modules.items()}
    for part, module in modules.items():
        module.load_state_dict(states[part])
    return dict(header["extra"])


def named(net: nn.Module, likelihood: nn.Module | None, others: dict[str, nn.Module]) -> dict[str, nn.Module]:
    return {"net": net, **({} if likelihood is None else {"likelihood": likelihood}), **others}


def read(path: str | Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The whole file, checked in itself. What was saved in half precision is float32, which likelihoods need."""
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: in_memory(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118 - not a dict
    except Exception as error:  # the reader has no one error for what is not its format
        raise CheckpointError(f"{path}: no safetensors file, or a truncated one ({error})") from error
    try:
        header = json.loads(metadata["torchtagi"])
        written_in, architecture = header["format"], header["architecture"]
        whole = all(isinstance(header[part], dict) for part in ("architecture", "extra", "versions"))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: a safetensors file, but not a torchtagi checkpoint") from error
    if written_in != FORMAT:
        raise CheckpointError(f"{path}: checkpoint format {written_in}, this version reads {FORMAT}")
    if not (whole and "net" in architecture):
        raise CheckpointError(f"{path}: a torchtagi checkpoint without its parts")
    for key, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{path}: {key} holds a value that is not finite")
        if key.endswith((".var", "noise_var")) and not bool((tensor > 0).all()):
            raise CheckpointError(
                f"{path}: {key} holds a variance that is not positive; half precision rounds a small one to zero"
            )
        if key.endswith("running_var") and bool((tensor < 0).any()):
            raise CheckpointError(f"{path}: {key} holds a negative variance")
    return header, tensors


def in_memory(tensor: Tensor) -> Tensor:
    """A copy: what safetensors gives is a view of the file, and changes when that is written over."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor.clone()


def fitting_state(path: str | Path, part: str, module: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A module's state in the file, which must hold the very tensors that the module has."""
    prefix, state = f"{part}.", module.state_dict()
    found = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    for key in sorted(state.keys() | found.keys()):
        if key not in found:
            raise CheckpointError(f"{path}: {prefix}{key} is missing")
        if key not in state:
            raise CheckpointError(f"{path}: {prefix}{key} is not in this network")
        there, here = kind_of(found[key]), kind_of(state[key])
        if there != here:
            raise CheckpointError(f"{path}: {prefix}{key} is {there}, the network's is {here}")
    return found


def kind_of(tensor: Tensor) -> str:
    return f"{'floating' if tensor.is_floating_point() else tensor.dtype} of shape {tuple(tensor.shape)}"


# ---- architectures -------------------------------------------------------------------------------------------


def describe(module: nn.Module) -> dict[str, Any]:
    """The architecture as JSON; where `load` cannot build it from that, the reason."""
    names: dict[int, str] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if names.setdefault(id(parameter), name) != name:
            return {"unbuildable": f"has parameters used twice, {names[id(parameter)]} as {name}"}
    kind = type(module)
    if any(base.__name__ == "FSDPModule" for base in kind.__bases__):
        kind = kind.__bases__[1]  # before `fully_shard` put its own class in front
    if kind not in (BUILDABLE.get(kind.__name__), nn.Sequential):  # torch's own Sequential comes back as ours
        return {"unbuildable": f"is of the class {kind.__module__}.{kind.__qualname__}, not a layer of torchtagi"}
    if isinstance(module, nn.Sequential | Residual):
        parts = [(key, describe(part)) for key, part in module._modules.items() if part is not None]
        return {"type": kind.__name__, "parts": parts}
    return {"type": kind.__name__, "arguments": module.config()}  # type: ignore[operator]


def rebuild(path: str | Path, part: str, header: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    """One part of the file as it was saved, but in evaluation mode."""
    description, size = header["architecture"][part], Path(path).stat().st_size
    try:
        if len(json.dumps(description)) > LENGTH + LENGTH_FOR_A_TENSOR * len(tensors):
            raise ValueError(f"its architecture is too long for {len(tensors)} tensors")
        with torch.device("meta"):  # shapes only; the file's tensors take their place
            module = build(part, description, size)
    except Exception as error:  # whatever a malformed description trips over, it is the file's fault
        raise CheckpointError(
            f"{path}: the {part} cannot be rebuilt from the file, {error}; if it is a model of yours, build it "
            "yourself and call restore(path, net, likelihood)"
        ) from error
    module.load_state_dict(fitting_state(path, part, module, tensors), assign=True)
    return module.eval()


def build(key: str, description: Any, size: int) -> nn.Module:
    """The module of a description in a file of this size. All but a known name with its own arguments raises."""
    if "unbuildable" in description:
        raise ValueError(f"{key} {description['unbuildable']}")
    if len(key) > NAME_LENGTH:
        raise ValueError(f"{key[:NAME_LENGTH]}... is nested too deep, or its name is too long")
    name = description["type"]
    if name not in BUILDABLE:
        raise ValueError(f"{key} is of an unknown kind, {name!r}")
    kind = BUILDABLE[name]
    if issubclass(kind, nn.Sequential | Residual):
        parts = {name: build(f"{key}.{name}", part, size) for name, part in description["parts"]}
        return kind(OrderedDict(parts)) if issubclass(kind, nn.Sequential) else kind(**parts)
    arguments: dict[str, Any] = {}
    known = inspect.signature(kind).parameters
    for argument, value in description["arguments"].items():
        if argument not in known:
            raise ValueError(f"{key}, {name}, has no argument {argument!r}")
        arguments[argument] = tuple(value) if isinstance(value, list) else value
    if arguments.get("classes", 0) > size:
        raise ValueError(f"its {arguments['classes']} classes are too many for {size} bytes")
    return kind(**arguments)


def require_writable(path: str | Path) -> None:
    """Before a long fit is to end in this file: it is no folder, and its own folder is there or can be made."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it, {Path(path) / 'model.safetensors'} say")
    Path(path).parent.mkdir(parents=True, exist_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """All of `content` under its final name, or nothing: a temporary file beside it, then a rename."""
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:  # names the temporary file, or none
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
