"""Emulated links: a message counts as arrived when its link would have brought it, and not before.

The sender writes its clock, as rank 0's, into the first bytes of the message. The receiver adds what the link takes for
the bytes that are pretended to be sent, and waits until then. As in the simulator a link delays and does not block: the
sender goes on at once, and messages under way do not get in each other's way. What the real transport takes is hidden
behind the delay wherever that is longer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fullbore.ids import Rank
from fullbore.ir.action import Message, Payload
from fullbore.ir.program import Lane
from fullbore.runtime.transport.transport import Arrival, TransferTimeout, Transport

__all__ = ["STAMP_BYTES", "LinkedTransport"]

STAMP_BYTES = 8
"""The least size of a message: a clock has to fit in."""


class LinkedTransport:
    """Another transport, with links of its own. Messages are byte tensors of at least `STAMP_BYTES`, one a message.

    Args:
        delay_ns: how long each message is under way.
        offset_ns: rank 0's clock less this rank's. Ranks of one machine share a clock and have next to none.
    """

    def __init__(self, transport: Transport, *, delay_ns: Callable[[Message], int], offset_ns: int) -> None:
        self._transport = transport
        self._delay_ns = delay_ns
        self._offset_ns = offset_ns
        self._received: Counter[tuple[Rank, Payload]] = Counter()

    def send(self, lane: Lane, tensor: Tensor) -> None:
        tensor[:STAMP_BYTES].view(torch.int64).fill_(time.perf_counter_ns() + self._offset_ns)
        self._transport.send(lane, tensor)

    def receive(self, lane: Lane, buffer: Tensor) -> Arrival:
        """Receives are posted in the sender's order, pass after pass, so counting them tells which message it is."""
        key = (lane.sender, lane.payload)
        message = lane.messages[self._received[key] % len(lane.messages)]
        self._received[key] += 1
        arrival = self._transport.receive(lane, buffer)
        return _LateArrival(arrival, buffer, self._delay_ns(message), self._offset_ns)

    def release(self) -> None:
        self._transport.release()

    def drain(self, timeout_s: float) -> None:
        self._transport.drain(timeout_s)

    def close(self) -> None:
        self._transport.close()


@dataclass(frozen=True, slots=True)
class _LateArrival:
    arrival: Arrival
    buffer: Tensor
    delay_ns: int
    offset_ns: int

    def wait(self, timeout_s: float) -> None:
        self.arrival.wait(timeout_s)
        sent = int(self.buffer[:STAMP_BYTES].view(torch.int64).item())
        left = sent + self.delay_ns - (time.perf_counter_ns() + self.offset_ns)
        if left > timeout_s * 1e9:
            raise TransferTimeout(f"its link brings it later than {timeout_s:g} s after it was sent")
        if left > 0:
            time.sleep(left / 1e9)
