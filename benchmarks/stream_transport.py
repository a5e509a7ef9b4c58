"""The in-memory transport for ranks that are threads with streams of one GPU: as on NCCL, the stream waits.

A host waits for the *host* of the other end to have said that it sends; the data is waited for by the stream, through
an event that the sender's stream recorded. What is sent is kept until the receiver's stream has copied it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fullbore.ids import Rank
from fullbore.ir.program import Lane
from fullbore.runtime.device import CudaDevice
from fullbore.runtime.transport.memory_transport import MemoryFabric, Operation
from fullbore.runtime.transport.transport import Arrival, TransferTimeout


@dataclass(eq=False, slots=True)
class StreamOperation(Operation):
    written: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    """Of a send: recorded behind the work that makes the tensor."""

    copied: torch.cuda.Event = field(default_factory=torch.cuda.Event)
    """Of a send: recorded by the receiver's stream behind the copy."""

    is_copying: bool = False


class StreamTransport:
    """One rank's ends. Its calls are made under ``torch.cuda.stream(the rank's stream)``."""

    def __init__(self, fabric: MemoryFabric, *, rank: int, device: CudaDevice) -> None:
        self._fabric = fabric
        self._rank = Rank(rank)
        self._device = device
        self._sending: list[StreamOperation] = []

    def send(self, lane: Lane, tensor: Tensor) -> None:
        operation = StreamOperation(is_send=True, tensor=tensor)
        operation.written.record()
        self._sending.append(operation)
        self._fabric.post(self._rank, lane, operation)

    def receive(self, lane: Lane, buffer: Tensor) -> Arrival:
        operation = StreamOperation(is_send=False, tensor=buffer)
        self._fabric.post(self._rank, lane, operation)
        return _Arrival(self._fabric, operation)

    def release(self) -> None:
        self._sending = [op for op in self._sending if not (op.is_copying and op.copied.query())]

    def drain(self, timeout_s: float) -> None:
        for operation in self._sending:
            self._fabric.wait_for(operation, timeout_s)
        self._device.wait(timeout_s)
        for operation in self._sending:
            if not operation.is_copying:
                raise TransferTimeout(f"a send was not received within {timeout_s:g} s")
            torch.cuda.current_stream().wait_event(operation.copied)  # its memory is reused behind the copy
        self._sending.clear()

    def close(self) -> None:
        self._sending.clear()


@dataclass(frozen=True, slots=True)
class _Arrival:
    fabric: MemoryFabric
    operation: StreamOperation

    def wait(self, timeout_s: float) -> None:
        self.fabric.wait_for(self.operation, timeout_s)
        sent = self.operation.sent
        assert isinstance(sent, StreamOperation)
        torch.cuda.current_stream().wait_event(sent.written)
        self.operation.take()
        sent.copied.record()
        sent.is_copying = True
