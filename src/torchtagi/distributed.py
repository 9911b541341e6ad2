"""Several processes that learn one posterior.

Each learns from its own part of every batch, and all sums that a step reads are taken over all of them: the
messages on the weights, the line search's, batch statistics, a learned noise. So all end a step with the same
posterior, that of the joint batch. `Classifier.fit`, `Regressor.fit` and `tagi train` do so when `torchrun` has
started them. In a loop of your own,

    group = distributed.start()
    with distributed.joined(group):
        condition(net, likelihood, update, x, y)  # x and y are this process's part

All processes must do the same steps; one that has no samples left takes part with none.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from torchtagi.compat import foreach_copy_
from torchtagi.shared_memory import SharedMemory, share_memory

T = TypeVar("T")
MEETING_SECONDS = 300.0  # torch's own patience with a store
LOST = ("Connection closed", "Connection reset", "Broken pipe", "Socket closed", "third_party/gloo")
"""What a collective says of a peer that is gone; for gloo torch has no error of its own."""


class ElsewhereError(RuntimeError):
    """Another process failed, and has said so."""


class LostError(RuntimeError):
    """Another process is gone without a word."""


@dataclass(frozen=True)
class Group:
    """The processes that learn together; this one is `rank` of `size`."""

    handle: Any
    rank: int
    size: int
    device: torch.device
    """Where its collectives take tensors from."""
    memory: SharedMemory | None = None
    """What they share, if they are of one machine."""

    @property
    def first(self) -> bool:
        """Whether this process writes files, and speaks for all."""
        return self.rank == 0

    def sum_(self, *tensors: Tensor) -> None:
        """The sum of each over all processes, in place. Dense in memory, and in the same order on every process."""
        flat = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors]
        with self.peers():
            if self.memory is not None:
                self.memory.sum_(flat)
                return
            joint = torch.cat(flat) if len(flat) > 1 else flat[0]
            dist.all_reduce(joint, group=self.handle)
        if len(flat) > 1:
            foreach_copy_(flat, joint.split([part.numel() for part in flat]))

    def sums(self, *numbers: float) -> list[float]:
        sums = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        self.sum_(sums)
        found: list[float] = sums.tolist()
        return found

    def stacked(self, tensor: Tensor) -> Tensor:
        """That of each process, in a new first dimension."""
        with self.peers():
            if self.memory is not None:
                return self.memory.stacked(tensor)
            everyones = tensor.new_empty(self.size, *tensor.shape)
            dist.all_gather(list(everyones.unbind()), tensor.contiguous(), group=self.handle)
        return everyones

    def rows(self, tensor: Tensor, sizes: Sequence[int]) -> Tensor:
        """The rows of all processes, which have so many, one after the other."""
        padded = tensor.new_zeros(max(sizes), *tensor.shape[1:])
        padded[: len(tensor)] = tensor
        return torch.cat([rows[:size] for rows, size in zip(self.stacked(padded), sizes, strict=True)])

    def objects(self, value: Any) -> list[Any]:
        """That of each process."""
        everyones: list[Any] = [None] * self.size
        with self.peers():
            dist.all_gather_object(everyones, value, group=self.handle)
        return everyones

    def share_(self, tensor: Tensor) -> None:
        """Overwrite it by the first process's."""
        own = tensor.detach().to(self.device).contiguous()
        with self.peers():
            dist.broadcast(own, group=self.handle, group_src=0)
        with torch.no_grad():
            tensor.copy_(own)

    def of_first(self, make: Callable[[], T]) -> T:
        """What the first process makes; if it fails, nobody goes on."""
        box: list[Any] = [None]
        error: Exception | None = None
        if self.first:
            try:
                box = [(make(),)]
            except Exception as caught:
                error = caught
        with self.peers():
            dist.broadcast_object_list(box, group=self.handle, group_src=0, device=self.device)
        if error is not None:
            raise error
        if box[0] is None:
            raise ElsewhereError(self.stopped_by(0))
        made: T = box[0][0]
        return made

    def stopped_by(self, rank: int) -> str:
        return f"rank {self.rank}: stopped, because rank {rank} did"

    @contextmanager
    def peers(self) -> Iterator[None]:
        """A collective: who waits for a process that has died is told so in a line."""
        try:
            yield
        except (RuntimeError, ConnectionError, TimeoutError) as error:
            raise self.explained(error) from None

    def explained(self, error: Exception) -> Exception:
        gone = isinstance(error, dist.DistError | ConnectionError | TimeoutError)
        if gone or any(text in str(error) for text in LOST):
            return LostError(f"rank {self.rank}: stopped, because another process has ended or cannot be reached")
        return error


class State(threading.local):
    group: Group | None = None


state = State()

memories: weakref.WeakKeyDictionary[Any, SharedMemory | None] = weakref.WeakKeyDictionary()
"""What the processes of a group share, once they have met in `start`."""


@contextmanager
def joined(group: Group | None) -> Iterator[None]:
    """What is learned meanwhile is learned by all processes of the group together; by this one alone if it is
    None."""
    before, state.group = state.group, group
    try:
        yield
    finally:
        state.group = before


def start(device: torch.device | str = "cpu") -> Group | None:
    """All processes: those of the default group, which is made if `torchrun` has started this one and nobody has
    made it yet. None if this one is alone."""
    if not dist.is_available():
        return None
    if not dist.is_initialized():
        if not launched():
            return None
        from torch.distributed.rendezvous import rendezvous

        device = torch.device(device)
        on_gpu = device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) if device.index is None else device.index)
        store, rank, size = next(rendezvous("env://"))
        store = store_of_this_start(store, rank, size)
        dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size)
        atexit.register(end)
    group = everybody()
    if group is not None and group.device.type == "cpu" and group.handle not in memories:
        memories[group.handle] = share_memory(group.handle)
        group = everybody()
    return group


def store_of_this_start(store: Any, rank: int, size: int) -> Any:
    """Where these processes leave each other their addresses. After a restart torchrun's own store still holds
    those of processes that have died, and who reads too early calls one of them. So the first process gives this
    start a name, tells it those that answer, and under that name there is nothing yet."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    if rank:
        own = uuid.uuid4().hex
        store.set(f"torchtagi/{rank}", own)
        name = store.get(f"torchtagi/{own}").decode()
        store.set(f"torchtagi/{own}/{name}", "")
        return PrefixStore(name, store)
    name, missing, deadline = uuid.uuid4().hex, set(range(1, size)), time.monotonic() + MEETING_SECONDS
    while missing:
        if time.monotonic() > deadline:
            raise LostError(f"rank 0: waited {MEETING_SECONDS:g} s in vain for ranks {sorted(missing)}")
        for other in sorted(missing):
            if store.check([f"torchtagi/{other}"]):
                theirs = store.get(f"torchtagi/{other}").decode()
                store.set(f"torchtagi/{theirs}", name)
                if store.check([f"torchtagi/{theirs}/{name}"]):
                    missing.remove(other)
        time.sleep(0.01)
    return PrefixStore(name, store)


def launched() -> bool:
    """Whether `torchrun` has started this process beside others."""
    return dist.is_available() and dist.is_torchelastic_launched() and int(os.environ.get("WORLD_SIZE", "1")) > 1


def everybody() -> Group | None:
    """The default group, if there is one of several processes."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() < 2:
        return None
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    everyone: Any = dist.group.WORLD
    return Group(everyone, dist.get_rank(), dist.get_world_size(), device, memories.get(everyone))


def end() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def restarts() -> int:
    """How often `torchrun` has started this run again, because a process died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if launched() else 0


def everyones(*parts: Tensor) -> tuple[Tensor, ...]:
    """Each summed over the processes that learn together."""
    if state.group is None:
        return parts
    sums = [part.detach().clone(memory_format=torch.contiguous_format) for part in parts]
    state.group.sum_(*sums)
    return tuple(sums)


def mean_sample(values: Tensor) -> Tensor:
    """The mean over all processes' samples."""
    if state.group is None:
        return values.mean(0)
    total, count = everyones(values.sum(0), values.new_tensor(len(values)))
    return total / count


def together(prepare: Callable[[], tuple[Any, ...]]) -> tuple[tuple[Any, ...], list[int]]:
    """What is prepared here, and how many samples its first part has on each process. If one process fails, all do:
    that one with its own error."""
    group = state.group
    if group is None:
        alone = prepare()
        return alone, [len(alone[0])]
    prepared: tuple[Any, ...] = ()
    error: Exception | None = None
    try:
        prepared = prepare()
    except Exception as caught:
        error = caught
    own = torch.tensor([len(prepared[0]) if prepared else -1], device=group.device)
    sizes: list[int] = group.stacked(own).flatten().tolist()
    if min(sizes) < 0:
        failed = sizes.index(-1)
        if error is not None and failed == group.rank:
            raise error
        raise ElsewhereError(group.stopped_by(failed)) from None
    return prepared, sizes
