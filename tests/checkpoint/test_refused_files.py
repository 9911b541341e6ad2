"""Damaged files and files that do not fit are refused whole."""

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_checkpoints import (
    assert_bit_equal,
    assert_refused,
    rewrite,
    small_net,
    snapshot,
)
from torch import Tensor, nn

import torchtagi as tagi
from torchtagi import checkpoint as files


def test_a_file_cut_anywhere_is_refused(good: Path) -> None:
    content = good.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    ends = {*range(0, len(content), 61), 1, 7, 8, 9, header - 1, header, header + 1, len(content) - 1}
    for end in sorted(ends):
        good.write_bytes(content[:end])
        assert_refused(good)


def test_bytes_after_the_end_are_refused(good: Path) -> None:
    good.write_bytes(good.read_bytes() + b"\0" * 16)
    assert_refused(good)


@pytest.mark.parametrize("size", [0, 1, 8, 9, 64, 1000])
def test_random_bytes_are_refused(size: int, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(size)
    content = bytes(torch.randint(0, 256, (size,), generator=generator).tolist())
    for start in (b"", (size).to_bytes(8, "little"), b"\x08\0\0\0\0\0\0\0{}      "):
        (tmp_path / "noise.safetensors").write_bytes(start + content)
        assert_refused(tmp_path / "noise.safetensors")


def test_a_damaged_header_is_refused_or_harmless(good: Path) -> None:
    """Whatever one byte of the header becomes: a CheckpointError, or a network."""
    net = small_net()
    content = good.read_bytes()
    length = int.from_bytes(content[:8], "little")
    for position in range(0, 8 + length, 5):
        damaged = bytearray(content)
        damaged[position] ^= 0x80 if position % 2 else 0x01
        good.write_bytes(bytes(damaged))
        with contextlib.suppress(tagi.CheckpointError):
            assert isinstance(files.load(good).net, nn.Module)
        before = snapshot(net)
        try:
            files.restore(good, net)
        except tagi.CheckpointError:
            assert_bit_equal(snapshot(net), before)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "absent.safetensors")
    (tmp_path / "folder.safetensors").mkdir()
    assert_refused(tmp_path / "folder.safetensors")


def test_a_safetensors_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    for metadata in (None, {"format": "pt"}, {"torchtagi": "not json"}, {"torchtagi": "[]"}, {"torchtagi": "3"}):
        save_file({"weight": torch.ones(2, 2)}, path, metadata)
        assert_refused(path)


class Detonator:
    """Leaves a file behind if it is ever unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_a_pickle_is_refused_and_not_opened(tmp_path: Path) -> None:
    path, mark = tmp_path / "net.pt", tmp_path / "detonated"
    path.write_bytes(pickle.dumps(Detonator(mark)))
    assert_refused(path)
    torch.save({"net.weight": torch.ones(2), "code": Detonator(mark)}, path)
    assert_refused(path)
    assert not mark.exists()


def set_tensor(key: str, value: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    def change(tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        tensors[key] = value(tensors.get(key, torch.zeros(2)))

    return change


def with_entry(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


DAMAGES: dict[str, tuple[Callable[[dict[str, Tensor], dict[str, Any]], Any], str]] = {
    "shape": (
        set_tensor("net.3.weight.mean", lambda t: t.t().contiguous()),
        r"net\.3\.weight\.mean.*\(4, 2\).*\(2, 4\)",
    ),
    "fewer outputs": (set_tensor("net.3.bias.var", lambda t: t[:1]), r"net\.3\.bias\.var"),
    "key missing": (lambda tensors, header: tensors.pop("net.0.bias.mean"), r"net\.0\.bias\.mean.*missing"),
    "key too many": (set_tensor("net.9.weight.mean", lambda t: t), r"net\.9\.weight\.mean"),
    "variance negative": (set_tensor("net.0.weight.var", with_entry(-1e-3)), r"net\.0\.weight\.var.*positive"),
    "variance zero": (set_tensor("net.3.bias.var", with_entry(0.0)), r"net\.3\.bias\.var.*positive"),
    "variance nan": (set_tensor("net.0.weight.var", with_entry(float("nan"))), r"net\.0\.weight\.var"),
    "mean nan": (set_tensor("net.0.weight.mean", with_entry(float("nan"))), r"net\.0\.weight\.mean.*finite"),
    "mean infinite": (set_tensor("net.3.bias.mean", with_entry(float("inf"))), r"net\.3\.bias\.mean.*finite"),
    "running mean nan": (
        set_tensor("net.1.running_mean", with_entry(float("nan"))),
        r"net\.1\.running_mean.*finite",
    ),
    "mean whole numbers": (
        set_tensor("net.0.weight.mean", lambda t: t.long()),
        r"net\.0\.weight\.mean is torch\.int64.*floating",
    ),
    "variance whole numbers": (
        set_tensor("net.0.weight.var", lambda t: torch.ones_like(t, dtype=torch.int32)),
        r"net\.0\.weight\.var is torch\.int32.*floating",
    ),
    "count of batches a fraction": (
        set_tensor("net.1.num_batches_tracked", lambda t: t.float()),
        r"net\.1\.num_batches_tracked is floating.*torch\.int64",
    ),
    "count of batches too short": (
        set_tensor("net.1.num_batches_tracked", lambda t: t.to(torch.int8)),
        r"net\.1\.num_batches_tracked is torch\.int8.*torch\.int64",
    ),
    "running variance negative": (set_tensor("net.1.running_var", with_entry(-1.0)), r"net\.1\.running_var"),
    "noise negative": (set_tensor("likelihood.noise_var", lambda t: -t), r"likelihood\.noise_var"),
    "noise zero": (set_tensor("likelihood.noise_var", lambda t: 0 * t), r"likelihood\.noise_var"),
    "noise missing": (
        lambda tensors, header: tensors.pop("likelihood.noise_var"),
        r"likelihood\.noise_var.*missing",
    ),
    "format newer": (lambda tensors, header: header.update(format=2), r"format 2.*reads 1"),
    "format missing": (lambda tensors, header: header.pop("format"), "checkpoint"),
    "format a word": (lambda tensors, header: header.update(format="one"), "one"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_does_not_fit_is_refused_whole(damage: str, good: Path) -> None:
    change, message = DAMAGES[damage]
    rewrite(good, change)
    assert_refused(good, message=message)


def test_a_network_is_not_filled_if_the_likelihood_does_not_fit(good: Path) -> None:
    net, before = small_net(), None
    before = snapshot(net)
    with pytest.raises(tagi.CheckpointError, match=r"likelihood\.noise_var.*\(\).*\(2,\)"):
        files.restore(good, net, tagi.Regression([0.5, 0.6]))
    assert_bit_equal(snapshot(net), before)


def test_a_likelihood_that_was_not_saved_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "bare.safetensors"
    files.save(path, small_net())
    assert_refused(path, by_load=False, message=r"likelihood\.noise_var.*missing")
