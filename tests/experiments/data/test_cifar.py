"""CIFAR-10: the binary format, the archive, the way there."""

import functools
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from local_server import Server, serving

from torchtagi.experiments.data import DataError, load
from torchtagi.experiments.data import cifar as cifar_module
from torchtagi.experiments.data.cifar import ARCHIVE_NAME, CIFAR10_MEAN, FOLDER


@functools.cache
def synthetic_batch(seed: int) -> bytes:
    records = np.random.default_rng(seed).integers(0, 256, (10_000, 3073), np.uint8)
    records[:, 0] %= 10
    return records.tobytes()


def pack(file: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(file, "w:gz", compresslevel=1) as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def test_records_become_channel_planes_and_labels(root: Path) -> None:
    batch = synthetic_batch(0)
    (root / FOLDER).mkdir()
    (root / FOLDER / "test_batch.bin").write_bytes(batch)
    cifar = load("cifar10", "test")
    record = batch[7 * 3073 : 8 * 3073]
    assert cifar.labels is not None
    assert int(cifar.labels[7]) == record[0]
    pixels = cifar.to_uint8()
    row, column = 3, 20
    assert [int(pixels[7, c, row, column]) for c in range(3)] == [
        record[1 + 1024 * c + 32 * row + column] for c in range(3)
    ]


def test_the_training_split_joins_five_batches_in_order(root: Path) -> None:
    (root / FOLDER).mkdir()
    for number in range(1, 6):
        records = np.zeros((10_000, 3073), np.uint8)
        records[:, 0] = number
        (root / FOLDER / f"data_batch_{number}.bin").write_bytes(records.tobytes())
    cifar = load("cifar10", "train")
    assert cifar.labels is not None
    assert cifar.labels[::10_000].tolist() == [1, 2, 3, 4, 5]
    assert cifar.labels.bincount().tolist() == [0] + [10_000] * 5


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (synthetic_batch(0)[:-1], r"test_batch\.bin has 30729999 bytes, a CIFAR-10 batch has 30730000"),
        (b"\xff" * 30_730_000, r"test_batch\.bin is not a CIFAR-10 batch: it has label 255"),
    ],
    ids=["truncated", "another file"],
)
def test_damaged_batches_are_refused(root: Path, content: bytes, complaint: str) -> None:
    (root / FOLDER).mkdir()
    (root / FOLDER / "test_batch.bin").write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        load("cifar10", "test")


def test_archives_that_are_not_the_published_one_are_refused(root: Path) -> None:
    archive = root / ARCHIVE_NAME
    pack(archive, {f"{FOLDER}/test_batch.bin": b"changed"})
    with pytest.raises(DataError, match=rf"{ARCHIVE_NAME}: test_batch\.bin has 7 bytes"):
        load("cifar10", "test")
    with pytest.raises(DataError, match=rf"{ARCHIVE_NAME} is not the CIFAR-10 binary archive.*data_batch_1"):
        load("cifar10", "train")
    for content in (archive.read_bytes()[:60], b"<html>not found</html>"):
        archive.write_bytes(content)
        with pytest.raises(DataError, match=rf"{ARCHIVE_NAME} cannot be read"):
            load("cifar10", "test")


def test_a_folder_in_place_of_a_member_is_refused(root: Path) -> None:
    with tarfile.open(root / ARCHIVE_NAME, "w:gz") as tar:
        folder = tarfile.TarInfo(f"{FOLDER}/test_batch.bin")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    with pytest.raises(DataError, match=r"test_batch\.bin has 0 bytes"):
        load("cifar10", "test")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An archive with a test batch only."""
    archive = tmp_path_factory.mktemp("published") / "published.tar.gz"
    pack(archive, {f"{FOLDER}/test_batch.bin": synthetic_batch(5)})
    return archive.read_bytes()


def test_a_missing_set_is_downloaded_and_then_found(
    published: bytes, empty_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAGI_OFFLINE")
    with serving(Server(published)) as server:
        monkeypatch.setattr(cifar_module, "URL", server.url)
        monkeypatch.setattr(cifar_module, "CHECKSUM", "md5:" + md5(published))
        first = load("cifar10", "test")
        again = load("cifar10", "test")
        assert len(server.ranges) == 1
    assert (empty_world / ARCHIVE_NAME).is_file()
    assert torch.equal(first.images, again.images)
    assert first.to_uint8().flatten()[:3].tolist() == list(synthetic_batch(5)[1:4])


@pytest.mark.parametrize("switch", ["argument", "environment"])
def test_downloads_can_be_switched_off(
    published: bytes, empty_world: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    monkeypatch.setenv("TAGI_OFFLINE", "1" if switch == "environment" else "0")
    with serving(Server(published)) as server:
        monkeypatch.setattr(cifar_module, "URL", server.url)
        monkeypatch.setattr(cifar_module, "CHECKSUM", "md5:" + md5(published))
        with pytest.raises(DataError, match=f"{ARCHIVE_NAME} is missing.*switched off") as caught:
            load("cifar10", "test", download=switch != "argument")
        assert server.ranges == []
    assert f"put it into {empty_world}" in str(caught.value)


def test_an_archive_put_there_by_hand_is_read(published: bytes, root: Path, empty_world: Path) -> None:
    (root / ARCHIVE_NAME).write_bytes(published)
    assert load("cifar10", "test").to_uint8().flatten()[0] == synthetic_batch(5)[1]
    assert not empty_world.exists()
    assert [path.name for path in root.iterdir()] == [ARCHIVE_NAME], "a shared collection is not written to"


def test_a_missing_batch_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / FOLDER).mkdir()
    for number in (1, 2, 4, 5):
        (root / FOLDER / f"data_batch_{number}.bin").write_bytes(b"")
    remedy = rf"{root / FOLDER} lacks data_batch_3\.bin; {ARCHIVE_NAME} is missing .*Fetch it from https"
    with pytest.raises(DataError, match=remedy):
        load("cifar10", "train")
    monkeypatch.delenv("TAGI_OFFLINE")
    with serving(Server(b"", missing=True)) as server:
        monkeypatch.setattr(cifar_module, "URL", server.url)
        with pytest.raises(DataError, match=r"lacks data_batch_3\.bin; .*404"):
            load("cifar10", "train")


def test_cifar10_is_the_real_one(collection: Path) -> None:
    assert md5((collection / FOLDER / "test_batch.bin").read_bytes()) == "803d5f7f4d78ea53de84dbe85f74fb6d"
    test = load("cifar10", "test")
    assert test.labels is not None
    assert test.labels.bincount().tolist() == [1000] * 10
    assert test.classes[int(test.labels[0])] == "cat"


def test_the_mean_is_that_of_the_training_images(collection: Path) -> None:
    total = np.zeros(3)
    for number in range(1, 6):
        records = np.fromfile(collection / FOLDER / f"data_batch_{number}.bin", np.uint8).reshape(-1, 3073)
        total += records[:, 1:].reshape(-1, 3, 1024).sum((0, 2))
    assert (total / (50_000 * 1024 * 255)).tolist() == pytest.approx(list(CIFAR10_MEAN), abs=1e-12)
