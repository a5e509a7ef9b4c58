"""Emulated links over the in-memory transport: a message arrives when its link says, whoever asks when."""

from __future__ import annotations

import time

import pytest
import torch

from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Message, Payload
from fullbore.ir.program import Lane
from fullbore.runtime.transport.memory_transport import MemoryFabric
from fullbore.runtime.transport.transport import TransferTimeout
from fullbore.train.emulated_links import STAMP_BYTES, LinkedTransport

SLOW, FAST = (Message(Payload.ACTIVATION, StageIndex(stage), MicrobatchIndex(0)) for stage in (0, 2))
LANE = Lane(Rank(0), Rank(1), Payload.ACTIVATION, (SLOW, FAST), depth=2)
SLOW_NS, FAST_NS = 20_000_000, 8_000_000
ROUNDS = 4
"""A busy machine may delay any of them, never hasten one; the least delayed is as long as it should be."""


def ends(*, behind_ns: int = 0) -> tuple[LinkedTransport, LinkedTransport]:
    """Two ranks of one process. The receiver's clock is said to be ``behind_ns`` behind rank 0's."""
    fabric = MemoryFabric()
    delays = {SLOW: SLOW_NS, FAST: FAST_NS}
    sender = LinkedTransport(fabric.transport(0), delay_ns=delays.__getitem__, offset_ns=0)
    receiver = LinkedTransport(fabric.transport(1), delay_ns=delays.__getitem__, offset_ns=behind_ns)
    return sender, receiver


def message() -> torch.Tensor:
    return torch.zeros(STAMP_BYTES, dtype=torch.uint8)


def test_each_message_has_the_delay_of_its_own_boundary_step_after_step() -> None:
    """The lane carries two boundaries in turn, and they are under way at the same time; neither blocks the sender."""
    sender, receiver = ends()
    sent, fast, slow = [], [], []
    for _ in range(ROUNDS):
        first, second = (receiver.receive(LANE, message()) for _ in LANE.messages)
        started = time.perf_counter_ns()
        for _ in LANE.messages:
            sender.send(LANE, message())
        sent.append(time.perf_counter_ns() - started)
        second.wait(1.0)
        fast.append(time.perf_counter_ns() - started)
        first.wait(1.0)
        slow.append(time.perf_counter_ns() - started)
        sender.drain(1.0)
    assert min(sent) < FAST_NS <= min(fast) < SLOW_NS <= min(slow) < SLOW_NS + FAST_NS


def test_clocks_are_compared_on_rank_zeros() -> None:
    """Rank 0's clock is 12 ms ahead of the receiver's, or so it is told: 12 of the 20 ms are over."""
    sender, receiver = ends(behind_ns=12_000_000)
    taken = []
    for _ in range(ROUNDS):
        slow, fast = (receiver.receive(LANE, message()) for _ in LANE.messages)
        started = time.perf_counter_ns()
        for _ in LANE.messages:
            sender.send(LANE, message())
        slow.wait(1.0)
        taken.append(time.perf_counter_ns() - started)
        fast.wait(1.0)
        sender.drain(1.0)
    assert SLOW_NS - 12_000_000 <= min(taken) < SLOW_NS


def test_a_link_slower_than_the_timeout_is_no_hang() -> None:
    sender, receiver = ends()
    arrival = receiver.receive(LANE, message())
    sender.send(LANE, message())
    with pytest.raises(TransferTimeout, match=r"its link brings it later than 0.001 s after it was sent"):
        arrival.wait(0.001)
