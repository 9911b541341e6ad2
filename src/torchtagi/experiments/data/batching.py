"""Mini-batches by indexing tensors that are already in memory."""

import hashlib
from collections.abc import Iterator
from typing import overload

import torch
from torch import Tensor

from torchtagi.experiments.data.image_set import ImageSet


def epoch_order(n: int, seed: int, epoch: int) -> Tensor:
    """A permutation of 0…n−1 that depends on `(seed, epoch)` alone.

    A resumed run needs no generator state from the past to see the same examples in the same order.
    The pair is hashed because neighbouring seeds and epochs must not share orders, as
    `seed + epoch` would.
    """
    digest = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randperm(n, generator=generator)


@overload
def batches(
    source: ImageSet | tuple[Tensor, Tensor],
    batch_size: int,
    shuffle: bool = ...,
    generator: torch.Generator | None = ...,
    drop_last: bool = ...,
    order: Tensor | None = ...,
) -> Iterator[tuple[Tensor, Tensor]]: ...
@overload
def batches(
    source: Tensor,
    batch_size: int,
    shuffle: bool = ...,
    generator: torch.Generator | None = ...,
    drop_last: bool = ...,
    order: Tensor | None = ...,
) -> Iterator[Tensor]: ...
def batches(
    source: ImageSet | tuple[Tensor, Tensor] | Tensor,
    batch_size: int,
    shuffle: bool = True,
    generator: torch.Generator | None = None,
    drop_last: bool = False,
    order: Tensor | None = None,
) -> Iterator[tuple[Tensor, Tensor]] | Iterator[Tensor]:
    """Batches `(x, y)` of a labelled set or a pair of tensors; batches `x` of a single tensor.

    `order` lists the indices to visit, for instance `epoch_order(len(source), seed, epoch)`, or the
    tail of one to continue inside an epoch; it takes the place of `shuffle` and `generator`.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if order is not None and generator is not None:
        raise ValueError("give either order or generator: an order leaves nothing to draw")
    tensors = _tensors(source)
    n = len(tensors[0])
    if any(len(tensor) != n for tensor in tensors):
        raise ValueError(f"x and y differ in length: {[len(tensor) for tensor in tensors]}")
    if order is None:
        order = torch.randperm(n, generator=generator) if shuffle else torch.arange(n)
    elif order.ndim != 1 or order.dtype != torch.int64:
        raise ValueError(f"order must be 1-D int64, got {order.dtype} of shape {tuple(order.shape)}")
    order = order.to(tensors[0].device)
    end = len(order) - len(order) % batch_size if drop_last else len(order)
    index_lists = [order[start : start + batch_size] for start in range(0, end, batch_size)]
    if isinstance(source, Tensor):
        return (source[index] for index in index_lists)
    x, y = tensors
    return ((x[index], y[index]) for index in index_lists)


def _tensors(source: ImageSet | tuple[Tensor, Tensor] | Tensor) -> tuple[Tensor, ...]:
    if isinstance(source, Tensor):
        return (source,)
    if not isinstance(source, ImageSet):
        return source
    if source.labels is None:
        raise ValueError(f"{source.name} has no labels; take batches of its images: batches(data.images, …)")
    return source.images, source.labels
