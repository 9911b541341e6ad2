"""The order of an epoch: every example once, the same for the same seed and epoch."""

import torch

from torchtagi.fitting import epoch_order


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
