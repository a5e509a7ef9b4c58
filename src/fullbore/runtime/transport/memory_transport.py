"""In-memory transport: ranks are threads, and the rules are NCCL's. For testing every schedule on a CPU.

A communicator joins two endpoints. Each endpoint has one queue of operations in the order in which it posted
them, and only the two heads can meet: a send with a receive. Nothing is buffered (rendezvous), nothing is
matched by tag, and an operation behind another waits for it, exactly like operations on one NCCL
communicator's stream. Data appears in a receive buffer only when its arrival is waited for.

By default every lane has a communicator of its own. `MemoryFabric` takes another rule, so that a test can put
both directions on one and see it deadlock.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from torch import Tensor

from fullbore.ids import Rank
from fullbore.ir.program import Lane
from fullbore.runtime.transport.transport import Arrival, PeerLost, TransferTimeout

__all__ = ["MemoryFabric", "MemoryTransport", "Operation", "lane_of_its_own"]


@dataclass(eq=False, slots=True)
class Operation:
    """A posted send or receive. The rest is set when the two ends have met."""

    is_send: bool
    tensor: Tensor
    met: bool = False
    ready_at: float = 0.0
    sent: Operation | None = None
    """Of a receive: the send it has met, until what was sent has been copied."""

    def take(self) -> None:
        """Copy what was sent into the buffer, and let go of it."""
        assert self.sent is not None, "an arrival is taken once, and after it has been waited for"
        assert self.sent.tensor.shape == self.tensor.shape, "sender and receiver disagree on the shape"
        self.tensor.copy_(self.sent.tensor)
        self.sent = None


@dataclass(slots=True)
class _Communicator:
    queues: dict[Rank, deque[Operation]] = field(default_factory=dict)
    busy_until: float = 0.0


def lane_of_its_own(lane: Lane) -> Hashable:
    """The rule that is right: one communicator for each (sender, receiver, payload)."""
    return (lane.sender, lane.receiver, lane.payload)


class MemoryFabric:
    """Joins the transports of all ranks of one process.

    ``delay_s`` gives the transfer time of the next message; it is called under a lock, in a fixed order per
    communicator.
    """

    def __init__(
        self,
        *,
        communicator_of: Callable[[Lane], Hashable] = lane_of_its_own,
        delay_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._communicator_of = communicator_of
        self._delay_s = delay_s
        self._changed = threading.Condition()
        self._communicators: dict[Hashable, _Communicator] = {}
        self._lost: str | None = None

    @staticmethod
    def random_delays(seed: int, *, longest_s: float) -> Callable[[], float]:
        """Uniform transfer times from 0 to ``longest_s``."""
        source = random.Random(seed)
        return lambda: source.uniform(0.0, longest_s)

    def transport(self, rank: int) -> MemoryTransport:
        return MemoryTransport(self, Rank(rank))

    def abort(self, reason: str) -> None:
        """Wake every waiter with `PeerLost`: a rank has failed."""
        with self._changed:
            self._lost = reason
            self._changed.notify_all()

    def post(self, rank: Rank, lane: Lane, operation: Operation) -> None:
        """Queue an operation of one endpoint and let heads meet."""
        with self._changed:
            communicator = self._communicators.setdefault(self._communicator_of(lane), _Communicator())
            for end in (lane.sender, lane.receiver):
                communicator.queues.setdefault(end, deque())
            communicator.queues[rank].append(operation)
            self._meet(communicator)

    def wait_for(self, operation: Operation, timeout_s: float) -> None:
        """Until it has met its counterpart and the transfer time has passed."""
        with self._changed:
            met = self._changed.wait_for(lambda: self._lost or operation.met, timeout_s)
            if not operation.met:
                if met:
                    raise PeerLost(self._lost)
                raise TransferTimeout(f"no counterpart within {timeout_s:g} s")
        remaining = operation.ready_at - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)

    def _meet(self, communicator: _Communicator) -> None:
        first, second = communicator.queues.values()
        while first and second and first[0].is_send != second[0].is_send:
            one, other = first.popleft(), second.popleft()
            start = max(time.monotonic(), communicator.busy_until)
            communicator.busy_until = start + self._delay_s()
            for mine, theirs in ((one, other), (other, one)):
                mine.ready_at = communicator.busy_until
                mine.met = True
                mine.sent = None if mine.is_send else theirs
            self._changed.notify_all()


@dataclass(slots=True)
class _MemoryArrival:
    fabric: MemoryFabric
    operation: Operation

    def wait(self, timeout_s: float) -> None:
        self.fabric.wait_for(self.operation, timeout_s)
        self.operation.take()


class MemoryTransport:
    """One rank's ends; see `MemoryFabric`."""

    def __init__(self, fabric: MemoryFabric, rank: Rank) -> None:
        self._fabric = fabric
        self._rank = rank
        self._sending: list[Operation] = []

    def send(self, lane: Lane, tensor: Tensor) -> None:
        operation = Operation(is_send=True, tensor=tensor)
        self._sending.append(operation)
        self._fabric.post(self._rank, lane, operation)

    def receive(self, lane: Lane, buffer: Tensor) -> Arrival:
        operation = Operation(is_send=False, tensor=buffer)
        self._fabric.post(self._rank, lane, operation)
        return _MemoryArrival(self._fabric, operation)

    def release(self) -> None:
        now = time.monotonic()
        self._sending = [op for op in self._sending if not op.met or op.ready_at > now]

    def drain(self, timeout_s: float) -> None:
        for operation in self._sending:
            self._fabric.wait_for(operation, timeout_s)
        self._sending.clear()

    def close(self) -> None:
        self._sending.clear()
