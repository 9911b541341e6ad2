"""A crash while writing leaves the old file."""

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_checkpoints import (
    small_net,
)

import torchtagi as tagi
from torchtagi import checkpoint
from torchtagi import checkpoint as files


def fail(*args: Any, **kwargs: Any) -> Any:
    raise OSError(5, "Input/output error")


def forbid(path: Any, *args: Any, **kwargs: Any) -> Any:
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def full(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDisk(io.FileIO):
    """Takes half of what it is given."""

    def write(self, content: Any) -> int:
        super().write(content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt(*args: Any, **kwargs: Any) -> Any:
    raise KeyboardInterrupt


CRASHES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "open": lambda patch: patch.setattr(checkpoint, "open", forbid, raising=False),
    "write": lambda patch: patch.setattr(checkpoint, "open", FullDisk, raising=False),
    "full when synced": lambda patch: patch.setattr(os, "fsync", full),
    "replace": lambda patch: patch.setattr(os, "replace", fail),
    "sync": lambda patch: patch.setattr(os, "fsync", fail),
    "interrupt": lambda patch: patch.setattr(os, "fsync", interrupt),
}


@pytest.mark.parametrize("crash", CRASHES)
@pytest.mark.parametrize("exists", [True, False])
def test_a_crash_while_writing_leaves_the_old_file_and_nothing_else(
    crash: str, exists: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.safetensors"
    if exists:
        files.save(path, small_net())
    old = path.read_bytes() if exists else None
    with monkeypatch.context() as patch:
        CRASHES[crash](patch)
        with pytest.raises((OSError, KeyboardInterrupt)) as caught:
            files.save(path, small_net())
    if isinstance(caught.value, OSError):
        code = caught.value.errno
        assert code in (errno.EACCES, errno.EIO, errno.ENOSPC)
        assert str(caught.value) == f"[Errno {code}] {os.strerror(code)}: {str(path)!r}"
    assert [file.name for file in tmp_path.iterdir()] == (["net.safetensors"] if exists else [])
    if exists:
        assert path.read_bytes() == old
        files.load(path)


@pytest.mark.parametrize("room", [0, 700])
def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(room: int, good: Path) -> None:
    """The system itself refuses to let a file grow past `room` bytes."""
    resource = pytest.importorskip("resource")
    old = good.read_bytes()
    assert len(old) > room
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            files.save(good, small_net(), tagi.Regression(0.5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert good.read_bytes() == old
    assert [file.name for file in good.parent.iterdir()] == [good.name]


def test_a_folder_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    (path / "inside").mkdir(parents=True)
    with pytest.raises(IsADirectoryError, match=r"Is a directory: '.*net\.safetensors'$"):
        files.save(path, small_net())
    assert [file.name for file in tmp_path.iterdir()] == ["net.safetensors"]
    assert [file.name for file in path.iterdir()] == ["inside"]


def test_a_file_is_no_folder_to_save_in(good: Path) -> None:
    old = good.read_bytes()
    with pytest.raises(OSError, match=r"(File exists|Not a directory): '.*good\.safetensors/net\.safetensors'$"):
        files.save(good / "net.safetensors", small_net())
    with pytest.raises(OSError, match=r"Not a directory: '.*good\.safetensors/deep/net\.safetensors'$"):
        files.save(good / "deep" / "net.safetensors", small_net())
    assert good.read_bytes() == old
    assert [file.name for file in good.parent.iterdir()] == [good.name]


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("this user may write everywhere")
    for path in (folder / "net.safetensors", folder / "deep" / "net.safetensors"):
        with pytest.raises(PermissionError, match=r"Permission denied: '.*locked/.*net\.safetensors'$"):
            files.save(path, small_net())
    assert list(folder.iterdir()) == []


def test_the_old_file_stands_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The final name only ever changes by a rename of a finished, synced file."""
    path, events = tmp_path / "net.safetensors", []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        events.append("sync")
        sync(handle)

    def replaced(source: Any, target: Any) -> None:
        events.append("replace")
        assert Path(target) == path
        assert Path(source).parent == path.parent
        files.load(source)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    files.save(path, small_net())
    assert events.index("sync") < events.index("replace")


def test_extra_that_is_no_json_leaves_the_old_file(good: Path) -> None:
    old = good.read_bytes()
    with pytest.raises(TypeError, match="JSON"):
        files.save(good, small_net(), extra={"bad": object()})
    assert good.read_bytes() == old
    assert [file.name for file in good.parent.iterdir()] == [good.name]
