"""Crops and mirror images against a slow reference that handles one image at a time."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import affine_transform
from torch import Tensor

from torchtagi.experiments.data.augmentation import augment_affine, augment_crop_flip, augment_shift


def one_image(image: Tensor, top: int, left: int, mirrored: bool, padding: int) -> Tensor:
    channels, height, width = image.shape
    canvas = torch.zeros(channels, height + 2 * padding, width + 2 * padding)
    canvas[:, padding : padding + height, padding : padding + width] = image
    piece = canvas[:, top : top + height, left : left + width]
    return piece.flip(2) if mirrored else piece


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(1, 6),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7)),
    padding=st.integers(0, 4),
    seed=st.integers(0, 1000),
)
def test_a_batch_is_cut_and_mirrored_as_its_images_are_one_by_one(
    n: int, shape: tuple[int, int, int], padding: int, seed: int
) -> None:
    images = torch.randn(n, *shape)
    torch.manual_seed(seed)
    corners, mirrored = torch.randint(0, 2 * padding + 1, (n, 2)), torch.rand(n) < 0.5
    expected = torch.stack(
        [
            one_image(image, int(top), int(left), bool(flip), padding)
            for image, (top, left), flip in zip(images, corners, mirrored, strict=True)
        ]
    )
    torch.manual_seed(seed)
    assert torch.equal(augment_crop_flip(images, padding), expected)


def test_every_shift_and_mirror_image_occurs_equally_often() -> None:
    """With padding 1 there are 3 × 3 × 2 outcomes; χ² with 17 degrees of freedom, p ≈ 1e-5."""
    image = torch.arange(1.0, 10.0).view(1, 3, 3)
    outcomes = [
        one_image(image, top, left, mirrored, 1)
        for top in range(3)
        for left in range(3)
        for mirrored in (False, True)
    ]
    n = 3600
    torch.manual_seed(0)
    augmented = augment_crop_flip(image.expand(n, 1, 3, 3), 1)
    counts = torch.tensor([float((augmented == outcome).all((1, 2, 3)).sum()) for outcome in outcomes])
    assert counts.sum() == n
    assert float(((counts - 200) ** 2 / 200).sum()) < 52.0


@pytest.mark.parametrize("augment", [augment_crop_flip, augment_shift, augment_affine])
def test_the_seed_decides_the_outcome(augment) -> None:
    images = torch.randn(20, 3, 8, 8)

    def augmented(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return augment(images)

    assert torch.equal(augmented(1), augmented(1))
    assert not torch.equal(augmented(1), augmented(2))


def test_the_input_is_left_alone_and_its_memory_format_kept() -> None:
    images = torch.randn(20, 3, 8, 8).to(memory_format=torch.channels_last)
    before = images.clone()
    augmented = augment_crop_flip(images)
    assert torch.equal(images, before)
    assert augmented.is_contiguous(memory_format=torch.channels_last)


def test_a_shift_moves_each_image_and_continues_its_border() -> None:
    """Every pixel of a ramp is its own coordinate, so the result says where it was taken from."""
    height, width, by = 6, 8, 2
    ramp = torch.arange(height * width, dtype=torch.float32).view(1, 1, height, width).expand(200, 1, -1, -1)
    torch.manual_seed(0)
    shifted = augment_shift(ramp.contiguous(), by)
    rows, columns = shifted[:, 0] // width, shifted[:, 0] % width
    moved = set()
    for image in range(len(shifted)):
        down, right = int(rows[image, 3, 4] - 3), int(columns[image, 3, 4] - 4)
        moved.add((down, right))
        expected_rows = (torch.arange(height) + down).clamp(0, height - 1).float()
        expected_columns = (torch.arange(width) + right).clamp(0, width - 1).float()
        assert torch.equal(rows[image], expected_rows[:, None].expand(height, width))
        assert torch.equal(columns[image], expected_columns.expand(height, width))
    assert moved == {(a, b) for a in range(-by, by + 1) for b in range(-by, by + 1)}


def test_an_affine_map_is_scipys() -> None:
    """Each image by scipy's interpolation, at the draws that the seed makes."""
    images = torch.rand(6, 2, 14, 14, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(3)
    found = augment_affine(images, 25.0, 0.3, 0.4, 2.0)
    draws = torch.rand(6, 6, generator=torch.Generator().manual_seed(3)).double().numpy() * 2 - 1
    half = 13 / 2
    for i, (turn, wide, high, slant, right, down) in enumerate(draws.T):
        angle = np.deg2rad(25.0) * turn
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        matrix = rotation @ np.array([[1 + 0.3 * wide, 0.4 * slant], [0.0, 1 + 0.3 * high]])
        matrix = matrix[::-1, ::-1]  # scipy counts rows first
        moved = np.array([2.0 * down, 2.0 * right])
        for channel in range(2):
            expected = affine_transform(
                images[i, channel].double().numpy(),
                matrix,
                offset=half - matrix @ np.full(2, half) + moved,
                order=1,
                mode="nearest",
            )
            assert np.allclose(found[i, channel].numpy(), expected, atol=1e-5)


def test_an_affine_map_of_nothing_changes_nothing_and_keeps_the_layout() -> None:
    images = torch.rand(3, 2, 9, 9).contiguous(memory_format=torch.channels_last)
    found = augment_affine(images, 0.0, 0.0, 0.0, 0.0)
    assert torch.allclose(found, images, atol=1e-6)
    assert augment_affine(images).is_contiguous(memory_format=torch.channels_last)
