"""A device whose host runs ahead, on a CPU: work is queued and done later, by a thread with a clock of its own.

It behaves as a GPU with NCCL does. A call returns when its work is queued; what it gives back is a buffer full of NaN
until the device gets there. A wait for a message holds up the device and not the host. A message is sent when the
device reaches the send. Only `wait` and `resolve_ns` hold up the host, and they are counted.

The device can be kept shut: then nothing is done until it is opened, and whoever looks at a value, or waits for
one, waits for ever.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fullbore.ids import MicrobatchIndex, Rank
from fullbore.ir.program import Lane
from fullbore.models.layered import Boundary, Microbatch, Parcel, TensorSpec
from fullbore.runtime.device import Mark
from fullbore.runtime.eager import EagerEngine
from fullbore.runtime.transport.memory_transport import MemoryFabric, Operation
from fullbore.runtime.transport.transport import TransferTimeout

CLOCK_AHEAD_NS = 3_600_000_000_000
"""The device's clock is an hour ahead of the host's: a span timed by the host shows."""


class Event:
    """Recorded when the device gets there."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.time_ns = 0


class StreamDevice:
    """One stream."""

    torch_device = torch.device("cpu")
    backend = "gloo"

    def __init__(self, *, opened: threading.Event, timeout_s: float) -> None:
        self._opened = opened
        self._timeout_s = timeout_s
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._failure: BaseException | None = None
        self.num_waits = 0
        """How often the host waited for the device."""
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        self._queue.put(work)

    def mark(self) -> Mark:
        event = Event()

        def record() -> None:
            event.time_ns = time.perf_counter_ns() + CLOCK_AHEAD_NS
            event.reached.set()

        self.submit(record)
        return event

    def wait(self, timeout_s: float) -> None:
        self.num_waits += 1
        here = Event()
        self.submit(here.reached.set)
        if not here.reached.wait(timeout_s):
            raise TransferTimeout(f"the device is not done after {timeout_s:g} s")
        if self._failure is not None:
            raise self._failure

    def resolve_ns(self, marks: Sequence[Mark]) -> list[int]:
        self.num_waits += 1
        times = []
        for mark in marks:
            assert isinstance(mark, Event)
            assert mark.reached.wait(self._timeout_s)
            times.append(mark.time_ns)
        return times

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        if not self._opened.wait(self._timeout_s):
            self._failure = TransferTimeout("the device was never opened: a host waited for it")
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException as error:
                self._failure = self._failure or error
            del work


class StreamEngine:
    """An `EagerEngine` whose work is done by the device, some time after the call."""

    def __init__(
        self,
        inner: EagerEngine,
        *,
        device: StreamDevice,
        entrance: Callable[[Microbatch], Boundary] | None,
        exit: Callable[[Microbatch], Boundary] | None,
        work_s: Callable[[], float],
    ) -> None:
        self.inner = inner
        self.kinds = inner.kinds
        self._device = device
        self._entrance = entrance
        self._exit = exit
        self._work_s = work_s
        self._live: dict[MicrobatchIndex, Microbatch] = {}

    held_bytes = 0  # the device knows, later

    @property
    def num_live(self) -> int:
        return len(self._live)

    def forward(self, index: MicrobatchIndex, microbatch: Microbatch, carried: Parcel | None) -> Parcel | None:
        self._live[index] = microbatch
        made = None if self._exit is None else _unfilled(self._exit(microbatch).tensors)
        self._later(lambda: self.inner.forward(index, microbatch, carried), made)
        return made

    def backward(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        microbatch = self._live.pop(index)
        made = None if self._entrance is None else _unfilled(self._entrance(microbatch).gradients)
        self._later(lambda: self.inner.backward(index, gradients), made)
        return made

    def backward_input(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        made = None if self._entrance is None else _unfilled(self._entrance(self._live[index]).gradients)
        self._later(lambda: self.inner.backward_input(index, gradients), made)
        return made

    def backward_weight(self, index: MicrobatchIndex) -> None:
        del self._live[index]
        self._later(lambda: self.inner.backward_weight(index), None)

    def recompute(self, index: MicrobatchIndex) -> None:
        self._later(lambda: self.inner.recompute(index), None)

    def _later(self, compute: Callable[[], Parcel | None], made: Parcel | None) -> None:
        pause_s = self._work_s()

        def work() -> None:
            time.sleep(pause_s)
            for buffer, value in zip(made or (), compute() or (), strict=True):
                buffer.copy_(value)

        self._device.submit(work)


class StreamTransport:
    """One rank's ends of a `MemoryFabric`; the device posts and waits, in the order in which the host said so."""

    def __init__(
        self, fabric: MemoryFabric, *, rank: int, device: StreamDevice, all_issued: Callable[[], None]
    ) -> None:
        """``all_issued`` is called when the host has queued the last of a step."""
        self._fabric = fabric
        self._rank = Rank(rank)
        self._device = device
        self._all_issued = all_issued
        self._sending: list[Operation] = []

    @property
    def held(self) -> list[Tensor]:
        """What it keeps alive because it is not yet sent."""
        return [operation.tensor for operation in self._sending]

    def send(self, lane: Lane, tensor: Tensor) -> None:
        operation = Operation(is_send=True, tensor=tensor)
        self._sending.append(operation)
        self._device.submit(lambda: self._fabric.post(self._rank, lane, operation))

    def receive(self, lane: Lane, buffer: Tensor) -> StreamArrival:
        operation = Operation(is_send=False, tensor=buffer)
        self._device.submit(lambda: self._fabric.post(self._rank, lane, operation))
        return StreamArrival(self._fabric, self._device, operation)

    def release(self) -> None:
        now = time.monotonic()
        self._sending = [op for op in self._sending if not op.met or op.ready_at > now]

    def drain(self, timeout_s: float) -> None:
        self._all_issued()
        self._device.wait(timeout_s)
        for operation in self._sending:
            self._fabric.wait_for(operation, timeout_s)
        self._sending.clear()

    def close(self) -> None:
        self._sending.clear()


class StreamArrival:
    def __init__(self, fabric: MemoryFabric, device: StreamDevice, operation: Operation) -> None:
        self._fabric = fabric
        self._device = device
        self._operation = operation

    def wait(self, timeout_s: float) -> None:
        def work() -> None:
            self._fabric.wait_for(self._operation, timeout_s)
            self._operation.take()

        self._device.submit(work)


def _unfilled(specs: Sequence[TensorSpec]) -> Parcel:
    return tuple(torch.full(spec.shape, float("nan"), dtype=spec.dtype) for spec in specs)
