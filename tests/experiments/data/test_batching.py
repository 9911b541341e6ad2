"""Batches: every example once, the right label with it, the same order for the same seed and epoch."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtagi.experiments.data import ImageSet, Preprocessing, batches, epoch_order


def numbered(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Image i is filled with i and labelled i."""
    labels = torch.arange(n)
    return labels.float().view(n, 1, 1, 1).expand(n, 2, 3, 3).contiguous(), labels


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 40), batch_size=st.integers(1, 45), shuffle=st.booleans(), drop_last=st.booleans())
def test_every_index_comes_exactly_once(n: int, batch_size: int, shuffle: bool, drop_last: bool) -> None:
    x, y = numbered(n)
    seen: list[int] = []
    sizes: list[int] = []
    for images, labels in batches((x, y), batch_size, shuffle, drop_last=drop_last):
        assert torch.equal(images[:, 1, 2, 0].long(), labels)
        seen += labels.tolist()
        sizes.append(len(labels))
    full, rest = divmod(n, batch_size)
    assert sizes == [batch_size] * full + ([rest] if rest and not drop_last else [])
    assert len(set(seen)) == len(seen)
    if not drop_last:
        assert sorted(seen) == list(range(n))
    if not shuffle:
        assert seen == sorted(seen)


def test_the_generator_decides_the_order() -> None:
    x, y = numbered(50)

    def labels(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return torch.cat([label for _, label in batches((x, y), 7, generator=generator)]).tolist()

    assert labels(1) == labels(1)
    assert labels(1) != labels(2)


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
    """Example 0 should land anywhere among 5 places; χ² with 4 degrees of freedom, p = 1e-5."""
    places = torch.tensor([int((epoch_order(5, 7, epoch) == 0).nonzero()) for epoch in range(1000)])
    counts = torch.bincount(places, minlength=5).double()
    assert float(((counts - 200) ** 2 / 200).sum()) < 28.5


def test_an_order_is_followed_and_can_be_continued() -> None:
    x, y = numbered(10)
    order = epoch_order(10, 0, 0)
    whole = [labels.tolist() for _, labels in batches((x, y), 3, order=order)]
    assert list(itertools.chain(*whole)) == order.tolist()
    assert [labels.tolist() for _, labels in batches((x, y), 3, order=order[6:])] == whole[2:]


def test_an_image_set_gives_its_labels_and_a_tensor_gives_itself() -> None:
    x, y = numbered(5)
    labelled = ImageSet("numbers", x, y, (), Preprocessing.centred(0.0, 0.0))
    images, labels = next(batches(labelled, 4, shuffle=False))
    assert torch.equal(images, x[:4])
    assert torch.equal(labels, y[:4])
    assert torch.equal(next(batches(x, 4, shuffle=False)), x[:4])
    with pytest.raises(ValueError, match="numbers has no labels"):
        batches(ImageSet("numbers", x, None, (), Preprocessing.centred(0.0, 0.0)), 4)


def test_batches_keep_the_memory_format() -> None:
    x, y = numbered(5)
    images, _ = next(batches((x.to(memory_format=torch.channels_last), y), 4))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert not images.is_contiguous()


def test_bad_arguments_are_refused_before_the_first_batch() -> None:
    x, y = numbered(5)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        batches((x, y), 0)
    with pytest.raises(ValueError, match=r"differ in length: \[5, 4\]"):
        batches((x, y[:4]), 2)
    with pytest.raises(ValueError, match="either order or generator"):
        batches((x, y), 2, generator=torch.Generator(), order=torch.arange(5))
    with pytest.raises(ValueError, match=r"order must be 1-D int64, got torch.float32 of shape \(5,\)"):
        batches((x, y), 2, order=torch.arange(5.0))
