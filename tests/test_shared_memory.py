"""Processes of one machine sum through memory that they share what gloo would send."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed as dist

from several_processes import run_on
from torchtagi import distributed, shared_memory

SIZES = [(1,), (3, 5), (0,), (shared_memory.SLOT // 4 + 7,), (2,), (2, shared_memory.SLOT // 4)]
KINDS = [torch.float32, torch.float64, torch.int64]


def tensors(rank: int) -> list[torch.Tensor]:
    """Some are larger than a slot; together they fill several."""
    generator = torch.Generator().manual_seed(rank)
    drawn = [torch.randn(*size, generator=generator) for size in SIZES]
    return [tensor.mul(100).to(KINDS[place % 3]) for place, tensor in enumerate(drawn)]


def summed(shares: bool) -> dict[str, Any]:
    if not shares:
        pytest.MonkeyPatch().setattr(shared_memory, "new_folder", lambda: None)
    group = distributed.start()
    assert group is not None
    assert distributed.start() == group, "they meet once"
    own = tensors(group.rank)
    images = torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last) * (1 + group.rank)
    with torch.inference_mode():  # as within a step
        group.sum_(images, *own)
        stacked = [group.stacked(tensor) for tensor in tensors(group.rank)]
    return {
        "shares": group.memory is not None,
        "sums": own,
        "images": images,
        "stacked": stacked,
        "numbers": group.sums(1, 0.5, group.rank),
        "left": list(Path(shared_memory.MEMORY).glob("torchtagi-*")),
    }


@pytest.mark.parametrize(("size", "shares"), [(2, True), (3, True), (2, False)])
def test_sums_and_stacks_are_those_of_all_processes(size: int, shares: bool, tmp_path: Path) -> None:
    results = run_on(size, summed, tmp_path, shares)
    everyones = [tensors(rank) for rank in range(size)]
    ramp = torch.arange(120.0).view(2, 3, 4, 5)
    for result in results:
        assert result["shares"] == shares
        assert result["left"] == []
        for found, *parts in zip(result["sums"], *everyones, strict=True):
            torch.testing.assert_close(found, torch.stack(parts).sum(0))
        for first, other in zip(results[0]["sums"], result["sums"], strict=True):
            assert torch.equal(first, other), "the same bits on all"
        for found, *parts in zip(result["stacked"], *everyones, strict=True):
            assert torch.equal(found, torch.stack(parts))
        assert torch.equal(result["images"], ramp * sum(range(1, size + 1)))
        assert result["numbers"] == [size, size / 2, sum(range(size))]


def left_alone() -> tuple[str, float]:
    """The last process ends; what the others are told, and after how many seconds."""
    group = distributed.start()
    assert group is not None
    group.sums(1)
    if group.rank == group.size - 1:
        dist.destroy_process_group()
        raise SystemExit
    start = time.monotonic()
    try:
        for _ in range(3):
            group.sums(1)
    except distributed.LostError as error:
        return str(error), time.monotonic() - start
    return "", 0.0


def test_a_process_that_ends_is_missed_at_once(tmp_path: Path) -> None:
    for rank, (message, seconds) in enumerate(run_on(3, left_alone, tmp_path, survivors=2)):
        assert message == f"rank {rank}: stopped, because another process has ended or cannot be reached"
        assert seconds < 10
