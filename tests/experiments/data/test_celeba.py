"""CelebA: the array, the official images, and the way from one to the other."""

import builtins
import errno
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from torchtagi.experiments.data import DataError, celeba, files, load
from torchtagi.experiments.data.celeba import shrink


def write_arrays(root: Path, n: int = 12, partition: list[int] | None = None) -> np.ndarray:
    folder = root / "celeba"
    folder.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (n, 3, 32, 32), np.uint8)
    images[:, 1] //= 2
    np.save(folder / "images.npy", images)
    if partition is not None:
        np.save(folder / "partition.npy", np.array(partition, np.uint8))
    return images


def jpeg(colour: tuple[int, int, int], size: tuple[int, int] = (178, 218), border: int = 0) -> bytes:
    """A flat face; `border` pixels of black stand for the background that the crop removes."""
    image = Image.new("RGB", size)
    image.paste(colour, (border, border + 20, size[0] - border, size[1] - border - 20))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=100, subsampling=0)
    return buffer.getvalue()


COLOURS = {"000001.jpg": (200, 30, 40), "000002.jpg": (20, 180, 60), "000003.jpg": (10, 50, 220)}


def write_jpegs(root: Path, partition: str | None = None, **changed: bytes) -> Path:
    """The official zip file; `changed` has the content of some images by their number."""
    folder = root / "celeba"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as archive:
        for name in reversed(COLOURS):
            archive.writestr(f"img_align_celeba/{name}", changed.get(f"n{name[5]}", jpeg(COLOURS[name])))
    if partition is not None:
        (folder / "list_eval_partition.txt").write_text(partition)
    return folder


def test_each_channel_of_the_training_part_is_standardised(root: Path) -> None:
    images = write_arrays(root, partition=[0] * 8 + [1] * 1 + [2] * 3)
    train = load("celeba", "train")
    assert train.images.double().mean((0, 2, 3)).tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    assert train.images.double().std((0, 2, 3), correction=0).tolist() == pytest.approx([1.0] * 3, abs=1e-6)
    np.testing.assert_array_equal(train.to_uint8().numpy(), images[:8])

    test = load("celeba", "test")
    assert test.preprocessing == train.preprocessing
    np.testing.assert_array_equal(test.to_uint8().numpy(), images[9:])
    np.testing.assert_array_equal(load("celeba", "validation").to_uint8().numpy(), images[8:9])


def test_statistics_are_those_of_all_pixels(root: Path) -> None:
    images = write_arrays(root)
    preprocessing = load("celeba", "train").preprocessing
    unit = images.astype(np.float64) / 255
    assert preprocessing.mean == pytest.approx(unit.mean((0, 2, 3)), abs=1e-12)
    assert preprocessing.std == pytest.approx(unit.std((0, 2, 3)), abs=1e-12)


def test_without_a_partition_every_image_is_for_training(root: Path) -> None:
    images = write_arrays(root)
    np.testing.assert_array_equal(load("celeba", "train").to_uint8().numpy(), images)
    with pytest.raises(DataError, match=r"has no test images.*absent: all are for training"):
        load("celeba", "test")


def test_a_partition_of_another_length_is_refused(root: Path) -> None:
    write_arrays(root, n=4, partition=[0, 0, 0])
    with pytest.raises(DataError, match=r"partition\.npy must hold 4 values.*\(3,\)"):
        load("celeba", "train")
    np.save(root / "celeba" / "partition.npy", np.full(4, 2, np.uint8))
    with pytest.raises(DataError, match="has no train images"):
        load("celeba", "test")


def test_the_crop_keeps_the_centre_and_drops_the_border() -> None:
    """The flat face covers columns 15…163 and rows 35…183 exactly, so no black may leak in."""
    face = shrink(jpeg((200, 100, 50), border=15), "face.jpg")
    assert np.abs(face.astype(int) - np.array([200, 100, 50])[:, None, None]).max() <= 4
    wider = shrink(jpeg((200, 100, 50), border=25), "face.jpg")
    assert wider[0, 0, 0] < 60


def test_resizing_filters_before_it_samples() -> None:
    """One-pixel stripes must come out grey; picking single pixels would keep black and white."""
    stripes = np.zeros((218, 178, 3), np.uint8)
    stripes[:, ::2] = 255
    buffer = io.BytesIO()
    Image.fromarray(stripes).save(buffer, "JPEG", quality=100, subsampling=0)
    face = shrink(buffer.getvalue(), "stripes.jpg").astype(int)
    assert np.abs(face - 128).max() < 20


def test_official_images_are_converted_once_in_the_order_of_their_names(
    root: Path, empty_world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_jpegs(root, "000001.jpg 0\n000002.jpg 2\n000003.jpg 0\n")
    before = sorted(folder.iterdir())
    shown: list[list[str]] = []
    monkeypatch.setattr(celeba, "tqdm", lambda names, *_, **__: shown.append(names) or names)
    train = load("celeba", "train")
    centres = train.to_uint8()[:, :, 16, 16].int().tolist()
    for centre, name in zip(centres, ("000001.jpg", "000003.jpg"), strict=True):
        assert centre == pytest.approx(COLOURS[name], abs=4)
    assert list(map(len, shown)) == [3]
    assert sorted(path.name for path in (empty_world / "celeba").iterdir()) == ["images.npy", "partition.npy"]
    assert sorted(folder.iterdir()) == before, "a shared collection is not written to"
    assert (empty_world / "celeba" / "images.npy").stat().st_mode == (folder / celeba.PARTITION).stat().st_mode

    monkeypatch.setattr(celeba, "shrink", lambda *_: pytest.fail("converted twice"))
    assert len(load("celeba", "test")) == 1


def test_a_bad_image_stops_the_conversion_and_leaves_nothing(root: Path, empty_world: Path) -> None:
    for content, complaint in (
        (jpeg((1, 2, 3), size=(64, 64)), r"000002\.jpg is 64 × 64, expected 178 × 218"),
        (b"GIF89a nonsense", r"000002\.jpg is not a readable JPEG"),
        (jpeg((1, 2, 3))[:700], r"000002\.jpg is not a readable JPEG"),
    ):
        write_jpegs(root, n2=content)
        with pytest.raises(DataError, match=complaint):
            load("celeba", "train")
        assert not empty_world.exists()


def test_a_full_disk_while_converting(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jpegs(root)

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_atomically", full)
    with pytest.raises(DataError, match=r"images\.npy cannot be written: no space left on the disk; free some"):
        load("celeba", "train")


def test_bad_containers_and_lists_are_refused(root: Path) -> None:
    folder = write_jpegs(root, partition="000001.jpg 0\n000002.jpg 1\n")
    with pytest.raises(DataError, match=r"list_eval_partition\.txt does not list 000003\.jpg"):
        load("celeba", "train")
    (folder / "list_eval_partition.txt").write_text("000001.jpg train\n")
    with pytest.raises(DataError, match=r"list_eval_partition\.txt: expected .*'000001\.jpg train'"):
        load("celeba", "train")
    archive = folder / "img_align_celeba.zip"
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"img_align_celeba\.zip is not a complete zip file"):
        load("celeba", "train")


def test_missing_pillow_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_jpegs(root)
    real_import = builtins.__import__

    def without_pillow(name, *arguments, **options):
        if name == "PIL":
            raise ImportError("No module named 'PIL'")
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    with pytest.raises(DataError, match=r"needs Pillow: pip install 'torchtagi\[cli\]'"):
        load("celeba", "train")


def test_the_collections_faces_match_their_files(collection: Path) -> None:
    partition = np.load(collection / "celeba" / "partition.npy")
    stored = np.load(collection / "celeba" / "images.npy", mmap_mode="r")
    test = load("celeba", "test")
    np.testing.assert_array_equal(test.to_uint8().numpy(), stored[partition == 2])
    training = stored[partition == 0].mean((0, 2, 3)) / 255
    assert test.preprocessing.mean == pytest.approx(training, abs=1e-9)
