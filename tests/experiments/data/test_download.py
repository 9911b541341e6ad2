"""`fetch` against a real server that cuts, ignores and lies."""

import builtins
import errno
import hashlib
import io
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from local_server import Server, serving

from torchtagi.experiments.data import DataError, download
from torchtagi.experiments.data.download import fetch as fetch_remote

CONTENT = random.Random(0).randbytes(700_000)
CHECKSUM = "md5:" + hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server(CONTENT)) as running:
        yield running


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file.bin"


def fetch(url: str, destination: Path, checksum: str, *arguments, **options) -> Path:
    return fetch_remote(url, checksum, destination, *arguments, **options)


class Bar:
    """What would be shown of each request: how much there is at first, and after each piece; and the total."""

    seen: ClassVar[list[tuple[list[int], int | None]]] = []

    def __init__(self, *, initial: int, total: int | None, **options: object) -> None:
        self.done = [initial]
        self.seen.append((self.done, total))

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *error: object) -> None: ...

    def update(self, count: int) -> None:
        self.done.append(self.done[-1] + count)


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int | None]]:
    monkeypatch.setattr(download, "tqdm", Bar)
    monkeypatch.setattr(Bar, "seen", [])
    return Bar.seen


def part_of(destination: Path) -> Path:
    return destination.with_name("file.bin.part")


def test_a_file_arrives_whole_and_leaves_no_part(server: Server, destination: Path) -> None:
    assert fetch(server.url, destination, CHECKSUM) == destination
    assert destination.read_bytes() == CONTENT
    assert not part_of(destination).exists()


def test_progress_grows_from_zero_to_the_announced_total(server: Server, destination: Path, bars) -> None:
    fetch(server.url, destination, CHECKSUM)
    ((done, total),) = bars
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, len(CONTENT))
    assert total == len(CONTENT)


def test_progress_total_is_none_when_the_server_does_not_say(server: Server, destination: Path, bars) -> None:
    server.announces_length = False
    fetch(server.url, destination, CHECKSUM)
    assert [(done[-1], total) for done, total in bars] == [(len(CONTENT), None)]
    assert destination.read_bytes() == CONTENT


def test_a_cut_connection_is_continued_where_it_broke(server: Server, destination: Path, bars) -> None:
    server.cut_after = [300_000, 100_000]
    fetch(server.url, destination, CHECKSUM, backoff=0.01)
    assert server.ranges == [None, "bytes=300000-", "bytes=400000-"]
    assert destination.read_bytes() == CONTENT
    assert [(done[0], done[-1]) for done, _ in bars] == [(0, 300_000), (300_000, 400_000), (400_000, 700_000)]


def test_a_part_survives_giving_up_and_a_later_call_continues_it(server: Server, destination: Path) -> None:
    server.cut_after = [200_000, 50_000]
    with pytest.raises(DataError, match=r"connection was cut: 250000 of 700000 bytes arrived, 2 attempts"):
        fetch(server.url, destination, CHECKSUM, attempts=2, backoff=0.01)
    assert part_of(destination).read_bytes() == CONTENT[:250_000]
    assert not destination.exists()

    server.ranges.clear()
    fetch(server.url, destination, CHECKSUM)
    assert server.ranges == ["bytes=250000-"]
    assert destination.read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_makes_it_start_over(server: Server, destination: Path) -> None:
    server.honours_range = False
    server.cut_after = [300_000]
    fetch(server.url, destination, CHECKSUM, backoff=0.01)
    assert server.ranges == [None, "bytes=300000-"]
    assert destination.read_bytes() == CONTENT


def test_a_server_that_continues_elsewhere_makes_it_start_over(server: Server, destination: Path) -> None:
    server.range_shift = 7
    server.cut_after = [300_000]
    fetch(server.url, destination, CHECKSUM, backoff=0.01)
    assert server.ranges == [None, "bytes=300000-", None]
    assert destination.read_bytes() == CONTENT


def test_a_part_longer_than_the_file_starts_over_after_416(server: Server, destination: Path) -> None:
    destination.parent.mkdir()
    part_of(destination).write_bytes(CONTENT + b"more")
    fetch(server.url, destination, CHECKSUM, backoff=0.01)
    assert server.ranges == [f"bytes={len(CONTENT) + 4}-", None]
    assert destination.read_bytes() == CONTENT


def test_a_complete_part_needs_no_network(server: Server, destination: Path) -> None:
    destination.parent.mkdir()
    part_of(destination).write_bytes(CONTENT)
    fetch(server.url, destination, CHECKSUM)
    assert server.ranges == []
    assert destination.read_bytes() == CONTENT


def test_a_part_of_another_file_gets_one_fresh_start(server: Server, destination: Path) -> None:
    destination.parent.mkdir()
    part_of(destination).write_bytes(b"an older version of the file")
    fetch(server.url, destination, CHECKSUM, backoff=0.01)
    assert server.ranges == ["bytes=28-", None]
    assert destination.read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_neither_file_nor_part(server: Server, destination: Path) -> None:
    wrong = "sha256:" + "0" * 64
    found = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
    with pytest.raises(DataError, match=f"wrong checksum: got {found}, expected {wrong}"):
        fetch(server.url, destination, wrong)
    assert not destination.exists()
    assert not part_of(destination).exists()
    assert len(server.ranges) == 1


def test_a_finished_file_is_not_fetched_again_and_a_damaged_one_is(server: Server, destination: Path) -> None:
    destination.parent.mkdir()
    destination.write_bytes(CONTENT)
    fetch(server.url, destination, CHECKSUM)
    assert server.ranges == []
    destination.write_bytes(CONTENT[:-1])
    fetch(server.url, destination, CHECKSUM)
    assert destination.read_bytes() == CONTENT


def test_a_missing_page_says_what_to_put_where(server: Server, destination: Path) -> None:
    server.missing = True
    with pytest.raises(DataError) as caught:
        fetch(server.url, destination, CHECKSUM)
    message = str(caught.value)
    assert "404" in message
    for hint in ("file.bin is missing", server.url, str(destination.parent)):
        assert hint in message
    assert len(server.ranges) == 1
    assert not destination.exists()


def test_a_busy_server_is_asked_again(server: Server, destination: Path) -> None:
    server.failures = [503, 503]
    fetch(server.url, destination, CHECKSUM, backoff=0.01)
    assert len(server.ranges) == 3
    assert destination.read_bytes() == CONTENT


def test_waiting_times_double(server: Server, destination: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.failures = [503] * 4
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    with pytest.raises(DataError, match=r"503 .*4 attempts"):
        fetch(server.url, destination, CHECKSUM, backoff=0.5)
    assert waits == [0.5, 1.0, 2.0]


def test_no_network_is_reported_at_once(destination: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file.bin"
        started = time.monotonic()
        with pytest.raises(DataError, match=f"no connection.*{url}"):
            fetch(url, destination, CHECKSUM, backoff=10.0)
    assert time.monotonic() - started < 5.0


def test_a_full_disk_frees_the_part_and_says_so(
    server: Server, destination: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FullDisk(io.FileIO):
        def write(self, data):
            if self.tell() + len(data) > 400_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    real_open = builtins.open

    def limited(file, mode="r", *arguments, **options):
        if str(file).endswith(".part") and mode in ("wb", "ab"):
            return FullDisk(file, mode)
        return real_open(file, mode, *arguments, **options)

    monkeypatch.setattr(builtins, "open", limited)
    with pytest.raises(DataError, match=r"no space left on the disk; free some, or .*XDG_CACHE_HOME") as caught:
        fetch(server.url, destination, CHECKSUM)
    assert str(destination.parent) in str(caught.value)
    assert not destination.exists()
    assert not part_of(destination).exists()


def test_an_unwritable_folder_is_reported(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match="cannot write to"):
        fetch(server.url, tmp_path / "file" / "file.bin", CHECKSUM)


def test_threads_that_want_the_same_file_share_one_download(server: Server, destination: Path) -> None:
    threads = [threading.Thread(target=fetch, args=(server.url, destination, CHECKSUM)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.ranges) == 1
    assert destination.read_bytes() == CONTENT


@pytest.mark.slow
def test_processes_that_want_the_same_file_share_one_download(server: Server, destination: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from torchtagi.experiments.data.download import fetch;"
        "fetch(sys.argv[1], sys.argv[3], Path(sys.argv[2]))"
    )
    command = [sys.executable, "-c", program, server.url, str(destination), CHECKSUM]
    children = [subprocess.Popen(command) for _ in range(2)]
    assert [child.wait(timeout=120) for child in children] == [0, 0]
    assert len(server.ranges) == 1
    assert destination.read_bytes() == CONTENT
