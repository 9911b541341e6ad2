"""Batches: every example once, the right label with it, the same order for the same seed and epoch."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtagi.experiments.data import ImageSet, Preprocessing, batches, epoch_order


def numbered(n: int) -> ImageSet:
    """Image i is filled with i and labelled i."""
    labels = torch.arange(n)
    images = labels.float().view(n, 1, 1, 1).expand(n, 2, 3, 3).contiguous()
    return ImageSet("numbers", images, labels, (), Preprocessing.centred(0.0, 0.0))


@settings(max_examples=50, deadline=None)
@given(n=st.integers(0, 40), batch_size=st.integers(1, 45), seed=st.none() | st.integers(0, 5))
def test_every_index_comes_exactly_once(n: int, batch_size: int, seed: int | None) -> None:
    order = None if seed is None else epoch_order(n, seed, 0)
    seen: list[int] = []
    sizes: list[int] = []
    for images, labels in batches(numbered(n), batch_size, order):
        assert torch.equal(images[:, 1, 2, 0].long(), labels)
        seen += labels.tolist()
        sizes.append(len(labels))
    full, rest = divmod(n, batch_size)
    assert sizes == [batch_size] * full + ([rest] if rest else [])
    assert seen == (list(range(n)) if order is None else order.tolist())


def test_epoch_order_is_a_permutation_fixed_by_seed_and_epoch() -> None:
    orders = {}
    for seed in range(4):
        for epoch in range(4):
            order = epoch_order(30, seed, epoch)
            assert sorted(order.tolist()) == list(range(30))
            assert torch.equal(order, epoch_order(30, seed, epoch))
            orders[tuple(order.tolist())] = (seed, epoch)
    assert len(orders) == 16


def test_epoch_order_ignores_and_spares_the_global_generator() -> None:
    torch.manual_seed(0)
    first, drawn = epoch_order(20, 1, 2), torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), drawn)
    torch.manual_seed(99)
    assert torch.equal(epoch_order(20, 1, 2), first)


def test_epoch_order_favours_no_position() -> None:
    """Example 0 should land anywhere among 5 positions; χ² with 4 degrees of freedom, p = 1e-5."""
    positions = torch.tensor([int((epoch_order(5, 7, epoch) == 0).nonzero()) for epoch in range(1000)])
    counts = torch.bincount(positions, minlength=5).double()
    assert float(((counts - 200) ** 2 / 200).sum()) < 28.5


def test_an_order_can_be_continued() -> None:
    numbers = numbered(10)
    order = epoch_order(10, 0, 0)
    whole = [labels.tolist() for _, labels in batches(numbers, 3, order)]
    assert [labels.tolist() for _, labels in batches(numbers, 3, order[6:])] == whole[2:]


def test_a_tensor_gives_itself_and_a_set_without_labels_is_refused() -> None:
    numbers = numbered(5)
    assert torch.equal(next(batches(numbers.images, 4)), numbers.images[:4])
    with pytest.raises(ValueError, match="numbers has no labels"):
        batches(replace(numbers, labels=None), 4)


def test_batches_keep_the_memory_format() -> None:
    images, _ = next(batches(numbered(5).to("cpu", memory_format=torch.channels_last), 4))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert not images.is_contiguous()


def test_bad_arguments_are_refused_before_the_first_batch() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        batches(numbered(5), 0)
    with pytest.raises(ValueError, match=r"order must be 1-D int64, got torch.float32 of shape \(5,\)"):
        batches(numbered(5), 2, order=torch.arange(5.0))
