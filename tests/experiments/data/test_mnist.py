"""MNIST and its idx format: everything well-formed comes back, nothing malformed does."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from idx_writer import encode

from torchtagi.experiments.data import DataError, load, load_train_test
from torchtagi.experiments.data.mnist import FASHION_MEAN, MNIST_MEAN, read_idx

LABELS = np.array([1, 2, 3], np.uint8)
SAMPLE = encode(np.arange(6, dtype=np.uint8).reshape(2, 3))


class Content:
    """A file in memory."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def read_bytes(self) -> bytes:
        return self.content

    def __str__(self) -> str:
        return "short.idx"


any_bytes = arrays.arrays(np.uint8, arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))


@settings(max_examples=100, deadline=None)
@given(any_bytes, st.booleans())
def test_every_array_survives_the_round_trip(array: np.ndarray, packed: bool) -> None:
    content = encode(array)
    parsed = read_idx(Content(gzip.compress(content) if packed else content), *array.shape[1:])
    assert parsed.dtype == np.uint8
    np.testing.assert_array_equal(parsed, array)


@settings(max_examples=100, deadline=None)
@given(any_bytes, st.data())
def test_every_truncation_is_refused_by_name(array: np.ndarray, data: st.DataObject) -> None:
    content = encode(array)
    kept = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(DataError, match=r"^short\.idx "):
        read_idx(Content(content[:kept]), *array.shape[1:])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not an idx file"),
        (b"\x89PNG" + SAMPLE[4:], "is not an idx file of bytes in 2 dimensions: it begins .*PNG"),
        (encode(np.zeros((2, 3), np.float32)), "is not an idx file of bytes"),
        (encode(np.zeros((2, 3, 1), np.uint8)), "is not an idx file of bytes in 2 dimensions"),
        (encode(np.zeros((2, 4), np.uint8)), r"must hold items of shape \(3,\), got \(4,\)"),
        (SAMPLE[:-1], r"truncated: 17 bytes, shape \(2, 3\) needs 18"),
        (SAMPLE + b"\0", "bytes left over: 19 bytes"),
        (gzip.compress(SAMPLE)[:-9], "cannot be read"),
        (gzip.compress(SAMPLE)[:12] + b"\xff" * 12, "cannot be read"),
    ],
)
def test_malformed_content_is_refused(content: bytes, complaint: str) -> None:
    with pytest.raises(DataError, match=f"short.idx.*{complaint}"):
        read_idx(Content(content), 3)


def write_pair(folder: Path, split: str, images: np.ndarray, labels: np.ndarray, packed: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    prefix = {"train": "train", "test": "t10k"}[split]
    for stem, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
        content = encode(array)
        if packed:
            (folder / f"{prefix}-{stem}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / f"{prefix}-{stem}").write_bytes(content)


def uniform_images(value: int, n: int = 3) -> np.ndarray:
    return np.full((n, 28, 28), value, np.uint8)


def test_embedded_mnist_is_the_real_one() -> None:
    mnist = load_train_test("mnist")
    assert mnist.train.labels is not None
    assert mnist.test.labels is not None
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert mnist.train.labels.bincount().tolist() == counts
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


def test_folders_are_searched_in_order(root: Path, empty_world: Path) -> None:
    """Each folder holds another grey; the embedded digits come last of all."""

    def grey() -> int:
        return int(load("mnist", "test").to_uint8()[0, 0, 0, 0])

    assert len(load("mnist", "test")) == 10_000
    write_pair(empty_world / "mnist", "test", uniform_images(30), LABELS, packed=True)
    assert grey() == 30
    write_pair(root / "mnist", "test", uniform_images(20), LABELS)
    assert grey() == 20


def test_images_and_labels_never_come_from_two_folders(root: Path) -> None:
    write_pair(root / "mnist", "test", uniform_images(1), LABELS)
    (root / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    assert len(load("mnist", "test")) == 10_000


@pytest.mark.parametrize(
    ("images", "labels", "complaint"),
    [
        (np.zeros((3, 32, 32), np.uint8), LABELS, r"images-idx3.*\(32, 32\)"),
        (uniform_images(0, n=2), LABELS, r"labels-idx1.* holds 3 labels for the 2 images of .*images-idx3"),
        (uniform_images(0), LABELS.astype(np.int32), r"labels-idx1.* is not an idx file of bytes"),
        (uniform_images(0), np.array([1, 2, 10], np.uint8), r"labels-idx1.*has label 10"),
    ],
)
def test_files_that_are_not_mnist_are_refused(root: Path, images, labels, complaint: str) -> None:
    write_pair(root / "mnist", "train", images, labels)
    with pytest.raises(DataError, match=complaint):
        load("mnist", "train")


def test_another_sets_preprocessing_can_be_borrowed(root: Path) -> None:
    write_pair(root / "fashion-mnist", "test", uniform_images(51), LABELS)
    own = load("fashion-mnist", "test")
    assert own.images[0, 0, 0, 0] == pytest.approx(0.2 - FASHION_MEAN)
    borrowed = load("fashion-mnist", "test", preprocessing=load("mnist", "test").preprocessing)
    assert borrowed.images[0, 0, 0, 0] == pytest.approx(0.2 - MNIST_MEAN)
    assert borrowed.to_uint8().unique().tolist() == [51]
    assert borrowed.classes[9] == "ankle boot"


def test_fashion_mnist_is_the_real_one(collection: Path) -> None:
    fashion = load("fashion-mnist", "test")
    assert fashion.labels is not None
    assert fashion.labels.bincount().tolist() == [1000] * 10
    assert fashion.to_uint8().double().mean() / 255 == pytest.approx(0.2868, abs=1e-4)


def test_fashion_mnist_mean_is_that_of_its_training_images(collection: Path) -> None:
    if not any((collection / "fashion-mnist").glob("train-images*")):
        pytest.skip("the training images of Fashion-MNIST are not there")
    train = load("fashion-mnist", "train")
    assert train.to_uint8().double().mean() / 255 == pytest.approx(FASHION_MEAN, abs=1e-9)
