"""`load`: what each set holds, where it is found, and how it is preprocessed."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from idx_writer import encode

from torchtagi.experiments.data import DataError, Preprocessing, image_set_names, load, load_train_test
from torchtagi.experiments.data.mnist import FASHION_MEAN, MNIST_MEAN

STEMS = {"train": "train", "test": "t10k"}


def write_pair(folder: Path, split: str, images: np.ndarray, labels: np.ndarray, packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for stem, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
        content = encode(array)
        name = f"{STEMS[split]}-{stem}"
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


def uniform_images(value: int, n: int = 3) -> np.ndarray:
    return np.full((n, 28, 28), value, np.uint8)


LABELS = np.array([1, 2, 3], np.uint8)


def test_embedded_mnist_is_the_real_one() -> None:
    mnist = load_train_test("mnist")
    assert mnist.train.labels is not None
    assert mnist.test.labels is not None
    assert mnist.train.labels.bincount().tolist() == [
        5923,
        6742,
        5958,
        6131,
        5842,
        5421,
        5918,
        6265,
        5851,
        5949,
    ]
    assert mnist.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert (len(mnist.train), len(mnist.test)) == (60_000, 10_000)
    assert mnist.train.labels[:5].tolist() == [5, 0, 4, 1, 9]

    pixels = mnist.train.to_uint8()
    assert pixels.double().mean() / 255 == pytest.approx(MNIST_MEAN, abs=1e-12)
    assert pytest.approx(0.1307, abs=5e-5) == MNIST_MEAN
    assert mnist.train.images.double().mean() == pytest.approx(0.0, abs=1e-6)
    assert mnist.test.images.min() == pytest.approx(-MNIST_MEAN)
    assert mnist.test.preprocessing == mnist.train.preprocessing


def test_embedded_mnist_names_its_authors_and_licence() -> None:
    from importlib.resources import files

    text = (files("torchtagi.experiments.data") / "mnist" / "LICENSE-MNIST.txt").read_text()
    for words in ("Yann LeCun", "Corinna Cortes", "CC BY-SA 3.0"):
        assert words in text


def test_folders_are_searched_in_order(tmp_path: Path, empty_world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each folder holds another grey; the embedded digits come last of all."""
    root, shared = tmp_path / "root", tmp_path / "shared"
    monkeypatch.setenv("TAGI_DATA", str(shared))

    def grey() -> int:
        return int(load("mnist", "test", root).to_uint8()[0, 0, 0, 0])

    assert len(load("mnist", "test", root)) == 10_000
    write_pair(empty_world / "mnist", "test", uniform_images(30), LABELS, packed=True)
    assert grey() == 30
    write_pair(shared / "mnist", "test", uniform_images(20), LABELS)
    assert grey() == 20
    write_pair(root / "mnist", "test", uniform_images(10), LABELS)
    assert grey() == 10


def test_images_and_labels_never_come_from_two_folders(tmp_path: Path) -> None:
    write_pair(tmp_path / "mnist", "test", uniform_images(1), LABELS)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    assert len(load("mnist", "test", tmp_path)) == 10_000


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (np.zeros((3, 32, 32), np.uint8), LABELS, r"images-idx3.*\(3, 32, 32\)"),
        (uniform_images(0, n=2), LABELS, r"labels-idx1.*must hold 2 uint8 labels.*\(3,\)"),
        (uniform_images(0), LABELS.astype(np.int32), r"labels-idx1.*int32"),
        (uniform_images(0), np.array([1, 2, 10], np.uint8), r"labels-idx1.*has label 10"),
    ],
)
def test_files_that_are_not_mnist_are_refused(tmp_path: Path, images, labels, complaint: str) -> None:
    write_pair(tmp_path / "mnist", "train", images, labels)
    with pytest.raises(DataError, match=complaint):
        load("mnist", "train", tmp_path)


def test_another_sets_preprocessing_can_be_borrowed(tmp_path: Path) -> None:
    write_pair(tmp_path / "fashion-mnist", "test", uniform_images(51), LABELS)
    own = load("fashion-mnist", "test", tmp_path)
    assert own.images[0, 0, 0, 0] == pytest.approx(0.2 - FASHION_MEAN)
    mnist = load("mnist", "test")
    borrowed = load("fashion-mnist", "test", tmp_path, preprocessing=mnist.preprocessing)
    assert borrowed.images[0, 0, 0, 0] == pytest.approx(0.2 - MNIST_MEAN)
    assert borrowed.to_uint8().unique().tolist() == [51]
    assert borrowed.classes[9] == "ankle boot"


def test_a_preprocessing_for_other_channels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(N, 3, H, W\).*\(10000, 1, 28, 28\)"):
        load("mnist", "test", preprocessing=Preprocessing.centred(0.5, 0.5, 0.5))


def test_preprocessing_recovers_every_byte_in_every_channel() -> None:
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(2, 3, 16, 16)
    preprocessing = Preprocessing(mean=(0.1, 0.5, 0.9), std=(1.0, 0.25, 3.0))
    images = preprocessing.apply(ramp)
    assert images[0, 1, 0, 0] == pytest.approx((0 - 0.5) / 0.25)
    assert images[1, 2, 15, 15] == pytest.approx((1 - 0.9) / 3.0)
    assert torch.equal(preprocessing.to_uint8(images), ramp)


def test_generated_values_outside_the_range_are_clipped() -> None:
    preprocessing = Preprocessing.centred(0.5)
    wild = torch.tensor([-9.0, 0.0, 9.0]).view(1, 1, 1, 3)
    assert preprocessing.to_uint8(wild).flatten().tolist() == [0, 128, 255]


def test_nonsense_preprocessing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"std must be positive, got \(0.0,\)"):
        Preprocessing(mean=(0.5,), std=(0.0,))
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
    with pytest.raises(ValueError, match="unknown image set 'minst'; known are mnist, fashion-mnist"):
        load("minst")
    with pytest.raises(ValueError, match="tinyimagenet has no split 'train'; it has test"):
        load("tinyimagenet", "train")


@pytest.mark.parametrize("name", [name for name in image_set_names() if name != "mnist"])
def test_a_missing_set_says_what_to_put_where(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(name, "test", tmp_path)
    message = str(caught.value)
    assert "missing" in message
    assert "http" in message
    assert str(tmp_path) in message


def test_fashion_mnist_is_the_real_one(collection: Path) -> None:
    fashion = load("fashion-mnist", "test", collection)
    assert fashion.labels is not None
    assert fashion.labels.bincount().tolist() == [1000] * 10
    assert fashion.to_uint8().double().mean() / 255 == pytest.approx(0.2868, abs=1e-4)


def test_fashion_mnist_mean_is_that_of_its_training_images(collection: Path) -> None:
    if not any((collection / "fashion-mnist").glob("train-images*")):
        pytest.skip("the training images of Fashion-MNIST are not there")
    train = load("fashion-mnist", "train", collection)
    assert train.to_uint8().double().mean() / 255 == pytest.approx(FASHION_MEAN, abs=1e-9)


def test_tiny_imagenet_is_seen_as_cifar10(collection: Path) -> None:
    tiny = load("tinyimagenet", "test", collection)
    stored = np.load(collection / "tinyimagenet" / "images.npy")
    assert np.array_equal(tiny.to_uint8().numpy(), stored)
    assert tiny.labels is None
    assert tiny.preprocessing.mean[0] == pytest.approx(0.4914, abs=1e-4)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (np.zeros((2, 3, 64, 64), np.uint8), r"images\.npy must hold.*\(2, 3, 64, 64\)"),
        (np.zeros((2, 3, 32, 32), np.float32), r"images\.npy must hold.*float32"),
        (np.zeros((0, 3, 32, 32), np.uint8), r"images\.npy holds no images"),
    ],
)
def test_arrays_that_are_not_images_are_refused(tmp_path: Path, content: np.ndarray, complaint: str) -> None:
    (tmp_path / "tinyimagenet").mkdir()
    np.save(tmp_path / "tinyimagenet" / "images.npy", content)
    with pytest.raises(DataError, match=complaint):
        load("tinyimagenet", "test", tmp_path)


def test_truncated_and_pickled_arrays_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tinyimagenet" / "images.npy"
    file.parent.mkdir()
    np.save(file, np.zeros((2, 3, 32, 32), np.uint8))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"images\.npy cannot be read"):
        load("tinyimagenet", "test", tmp_path)
    np.save(file, np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"images\.npy cannot be read"):
        load("tinyimagenet", "test", tmp_path)
