"""Transport over torch.distributed: one process group per lane, on gloo or NCCL.

Groups are made eagerly, in the program's lane order, on every rank: a lazily made communicator can be made
in different orders on two ranks, which deadlocks (NVIDIA/Megatron-LM #5240).

How a finished send is noticed differs. NCCL's work answers `is_completed` from a device event. Gloo's send
work learns that it has finished only in `wait` (measured on torch 2.13: `is_completed` stays False), so there
one thread per outgoing lane waits, outside the GIL, and lets go of the tensor.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from fullbore.ids import Rank
from fullbore.ir.action import Payload
from fullbore.ir.program import Lane
from fullbore.runtime.device import Device
from fullbore.runtime.torch_errors import attempt
from fullbore.runtime.transport import Arrival, TransferTimeout

__all__ = ["TorchTransport"]

_LaneKey = tuple[Rank, Rank, Payload]


class TorchTransport:
    """One rank's ends of all lanes, each lane on a process group of its own.

    ``ranks`` maps a pipeline rank to a global one. Every rank of the world makes this object with equal lanes.
    """

    def __init__(
        self, lanes: Sequence[Lane], *, rank: int, ranks: Sequence[int], device: Device, timeout_s: float
    ) -> None:
        self._rank = rank
        self._ranks = tuple(ranks)
        self._groups: dict[_LaneKey, dist.ProcessGroup] = {}
        timeout, backend = timedelta(seconds=timeout_s), device.backend
        watchdog = 2 * timeout  # NCCL's own comes last: the executor's says which message it was
        eager = device.torch_device if backend == "nccl" else None
        self._device = device
        self._arrival = _StreamArrival if backend == "nccl" else _HostArrival
        for lane in lanes:
            ends = [self._ranks[lane.sender], self._ranks[lane.receiver]]
            group = dist.new_group(ends, timeout=watchdog, backend=backend, device_id=eager)
            if rank in (lane.sender, lane.receiver):
                self._groups[_key(lane)] = group
        self._sends: dict[_LaneKey, _Sends] = {
            _key(lane): _PolledSends() if backend == "nccl" else _WaitedSends(timeout)
            for lane in lanes
            if rank == lane.sender
        }

    def send(self, lane: Lane, tensor: Tensor) -> None:
        work = attempt(lambda: dist.isend(tensor, self._ranks[lane.receiver], group=self._groups[_key(lane)]))
        assert work is not None
        self._sends[_key(lane)].add(work, tensor)

    def receive(self, lane: Lane, buffer: Tensor) -> Arrival:
        work = attempt(lambda: dist.irecv(buffer, self._ranks[lane.sender], group=self._groups[_key(lane)]))
        assert work is not None
        return self._arrival(work)

    def release(self) -> None:
        for sends in self._sends.values():
            sends.release()

    def drain(self, timeout_s: float) -> None:
        for sends in self._sends.values():
            sends.drain(timeout_s)
        self._device.wait(timeout_s)

    def close(self) -> None:
        for sends in self._sends.values():
            sends.close()
        for group in self._groups.values():  # in the program's lane order on both ends
            dist.destroy_process_group(group)
        self._groups.clear()


class _HostArrival:
    """Gloo: the host waits, for so long."""

    __slots__ = ("_work",)

    def __init__(self, work: dist.Work) -> None:
        self._work = work

    def wait(self, timeout_s: float) -> None:
        attempt(lambda: self._work.wait(timedelta(seconds=timeout_s)))


class _StreamArrival:
    """NCCL: the stream waits and the host runs ahead. (With a timeout NCCL's work polls on the host instead, so a
    message that never comes is noticed when the step drains.)"""

    __slots__ = ("_work",)

    def __init__(self, work: dist.Work) -> None:
        self._work = work

    def wait(self, timeout_s: float) -> None:
        del timeout_s
        attempt(self._work.wait)


class _Sends(Protocol):
    """The sends of one lane that are still under way, with what they send."""

    def add(self, work: dist.Work, tensor: Tensor) -> None: ...
    def release(self) -> None: ...
    def drain(self, timeout_s: float) -> None: ...
    def close(self) -> None: ...


class _PolledSends:
    """NCCL: a device event says when a send is done, and its memory is free from then on."""

    def __init__(self) -> None:
        self._pending: list[tuple[dist.Work, Tensor]] = []

    def add(self, work: dist.Work, tensor: Tensor) -> None:
        self._pending.append((work, tensor))

    def release(self) -> None:
        while self._pending and self._pending[0][0].is_completed():
            self._pending.pop(0)

    def drain(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._pending:
            self.release()
            if self._pending and time.monotonic() > deadline:
                raise TransferTimeout(f"a send was not received within {timeout_s:g} s")

    def close(self) -> None:
        self._pending.clear()


class _WaitedSends:
    """Gloo: a thread waits for each send in turn."""

    def __init__(self, timeout: timedelta) -> None:
        self._timeout = timeout
        self._queue: queue.SimpleQueue[tuple[dist.Work, Tensor] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._pending = 0
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="fullbore-sends", daemon=True)
        self._thread.start()

    def add(self, work: dist.Work, tensor: Tensor) -> None:
        with self._changed:
            self._pending += 1
        self._queue.put((work, tensor))

    def release(self) -> None:
        if self._failure is not None:
            raise self._failure

    def drain(self, timeout_s: float) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: self._failure is not None or self._pending == 0, timeout_s)
        self.release()
        if not done:
            raise TransferTimeout(f"a send was not received within {timeout_s:g} s")

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(self._timeout.total_seconds())

    def _serve(self) -> None:
        while (entry := self._queue.get()) is not None:
            work, tensor = entry
            failure: Exception | None = None
            try:
                attempt(partial(work.wait, self._timeout))
            except Exception as error:  # whatever it is, the rank's own thread must hear of it
                failure = error
            del work, tensor, entry
            with self._changed:
                self._pending -= 1
                self._failure = self._failure or failure
                self._changed.notify_all()


def _key(lane: Lane) -> _LaneKey:
    return (lane.sender, lane.receiver, lane.payload)
