"""`load`: names, folders and preprocessing, and what is said when a set is not there."""

from pathlib import Path

import numpy as np
import pytest
import torch

from torchtagi.experiments.data import READERS, DataError, Preprocessing, load


def test_a_preprocessing_for_other_channels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(N, 3, H, W\).*\(10000, 1, 28, 28\)"):
        load("mnist", "test", preprocessing=Preprocessing.centred(0.5, 0.5, 0.5))


def test_preprocessing_recovers_every_byte_in_every_channel() -> None:
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    preprocessing = Preprocessing(mean=(0.1, 0.5, 0.9), std=(1.0, 0.25, 3.0))
    images = preprocessing.apply(ramp)
    assert images[0, 1, 0, 0] == pytest.approx((0 - 0.5) / 0.25)
    assert images[1, 2, 15, 15] == pytest.approx((1 - 0.9) / 3.0)
    assert torch.equal(preprocessing.to_uint8(images), ramp)


def test_generated_values_beyond_the_range_are_clipped() -> None:
    preprocessing = Preprocessing.centred(0.5)
    wild = torch.tensor([-9.0, 0.0, 9.0]).view(1, 1, 1, 3)
    assert preprocessing.to_uint8(wild).flatten().tolist() == [0, 128, 255]


def test_nonsense_preprocessing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"std must be positive, got \(0.0,\)"):
        Preprocessing(mean=(0.5,), std=(0.0,))
    with pytest.raises(ValueError, match="mean has 1 channels, std has 2"):
        Preprocessing(mean=(0.5,), std=(1.0, 1.0))
    with pytest.raises(TypeError, match=r"uint8, got torch\.float32"):
        Preprocessing.centred(0.5).apply(torch.zeros(1, 1, 2, 2))


def test_moving_and_selecting_keep_images_and_labels_together() -> None:
    mnist = load("mnist", "test")
    assert mnist.labels is not None
    chosen = mnist.subset(torch.tensor([5, 3]))
    assert chosen.labels is not None
    assert chosen.labels.tolist() == mnist.labels[[5, 3]].tolist()
    assert torch.equal(chosen.images, mnist.images[[5, 3]])
    moved = chosen.to("cpu", memory_format=torch.channels_last)
    assert moved.images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(moved.images, chosen.images)
    assert chosen.to("meta").labels.device.type == "meta"


def test_unknown_names_and_splits_are_refused() -> None:
    known = "mnist, fashion-mnist, cifar10, celeba, tinyimagenet"
    with pytest.raises(ValueError, match=rf"no data set 'minst'; there are {known}; did you mean mnist\?"):
        load("minst")
    with pytest.raises(ValueError, match=r"no data set 'q'; there are [^;]*$"):
        load("q")
    with pytest.raises(ValueError, match="tinyimagenet has no split 'train'; it has test"):
        load("tinyimagenet", "train")


@pytest.mark.parametrize("name", [name for name in READERS if name != "mnist"])
def test_a_missing_set_says_what_to_put_where(name: str, empty_world: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(name, "test")
    message = str(caught.value)
    assert "missing" in message
    assert "http" in message
    assert str(empty_world) in message


@pytest.mark.parametrize("name", ["celeba", "tinyimagenet"])
def test_sets_that_nobody_downloads_say_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TAGI_OFFLINE")
    with pytest.raises(DataError, match=r"cannot be downloaded for you: .*http"):
        load(name, "test")


@pytest.mark.parametrize(("kind", "problem"), [("nowhere", "does not exist"), ("file", "is a file")])
def test_a_collection_that_is_no_folder_is_refused(
    kind: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where it is not needed: whoever sets it expects it to be used."""
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("TAGI_DATA", str(tmp_path / kind))
    with pytest.raises(DataError, match=rf"TAGI_DATA must name a folder.*{kind} {problem}: correct or unset it"):
        load("mnist", "test")
    monkeypatch.setenv("TAGI_DATA", "")
    assert len(load("mnist", "test")) == 10_000


def test_tiny_imagenet_is_preprocessed_like_cifar10(collection: Path) -> None:
    tiny = load("tinyimagenet", "test")
    stored = np.load(collection / "tinyimagenet" / "images.npy")
    assert np.array_equal(tiny.to_uint8().numpy(), stored)
    assert tiny.labels is None
    assert tiny.preprocessing.mean[0] == pytest.approx(0.4914, abs=1e-4)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (np.zeros((2, 3, 64, 64), np.uint8), r"images\.npy must hold.*\(2, 3, 64, 64\)"),
        (np.zeros((2, 3, 32, 32), np.float32), r"images\.npy must hold.*float32"),
        (np.zeros((0, 3, 32, 32), np.uint8), r"images\.npy must hold .*at least one, got"),
        (np.array([{"a": 1}], dtype=object), r"images\.npy cannot be read"),
    ],
)
def test_arrays_that_are_not_images_are_refused(root: Path, content: np.ndarray, complaint: str) -> None:
    (root / "tinyimagenet").mkdir()
    np.save(root / "tinyimagenet" / "images.npy", content)
    with pytest.raises(DataError, match=complaint):
        load("tinyimagenet", "test")


def test_truncated_arrays_and_archives_are_refused(root: Path) -> None:
    file = root / "tinyimagenet" / "images.npy"
    file.parent.mkdir()
    np.save(file, np.zeros((2, 3, 32, 32), np.uint8))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"images\.npy cannot be read"):
        load("tinyimagenet", "test")
    with open(file, "wb") as content:
        np.savez(content, images=np.zeros((2, 3, 32, 32), np.uint8))
    with pytest.raises(DataError, match="archive of several arrays"):
        load("tinyimagenet", "test")
