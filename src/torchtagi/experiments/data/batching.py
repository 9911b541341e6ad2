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
    The pair is hashed because neighbouring seeds and epochs must not share orders, as `seed + epoch` would.
    """
    digest = hashlib.blake2b(f"{seed}:{epoch}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randperm(n, generator=generator)


@overload
def batches(source: ImageSet, batch_size: int, order: Tensor | None = ...) -> Iterator[tuple[Tensor, Tensor]]: ...
@overload
def batches(source: Tensor, batch_size: int, order: Tensor | None = ...) -> Iterator[Tensor]: ...
def batches(
    source: ImageSet | Tensor, batch_size: int, order: Tensor | None = None
) -> Iterator[tuple[Tensor, Tensor]] | Iterator[Tensor]:
    """Batches `(x, y)` of a labelled set; batches `x` of a tensor.

    `order` lists the indices to visit, for instance `epoch_order(len(source), seed, epoch)`, or the tail of one to
    continue inside an epoch; without it they come as stored.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    images = source if isinstance(source, Tensor) else source.images
    order = torch.arange(len(images)) if order is None else order
    if order.ndim != 1 or order.dtype != torch.int64:
        raise ValueError(f"order must be 1-D int64, got {order.dtype} of shape {tuple(order.shape)}")
    # an empty tensor splits into one empty piece
    indices = order.to(images.device).split(batch_size) if len(order) else ()
    if isinstance(source, Tensor):
        return (images[index] for index in indices)
    labels = source.labels
    if labels is None:
        raise ValueError(f"{source.name} has no labels; take batches of its images: batches(data.images, …)")
    return ((images[index], labels[index]) for index in indices)
