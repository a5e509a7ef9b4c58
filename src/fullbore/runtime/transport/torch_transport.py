"""Transport over torch.distributed, on gloo or NCCL.

NCCL has no tags, so there each lane is a process group of its own. Gloo has them: there all lanes share one group and a
lane is a tag. A gloo group has threads and sockets of its own, and each of its threads wakes a hundred times a second.

Groups are made eagerly, in the program's lane order, on every rank: a lazily made communicator can be made
in different orders on two ranks, which deadlocks (NVIDIA/Megatron-LM #5240).

How a finished send is noticed differs. NCCL's work answers `is_completed` from a device event: see
`fullbore.runtime.transport.nccl_sends`. Gloo's send work learns that it has finished only in `wait` (measured on torch
2.13: `is_completed` stays False), so there somebody has to wait: see `fullbore.runtime.transport.gloo_sends`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from fullbore.ids import Rank
from fullbore.ir.action import Payload
from fullbore.ir.program import Lane
from fullbore.runtime.device import Device
from fullbore.runtime.transport.gloo_sends import GlooSends
from fullbore.runtime.transport.nccl_sends import NcclSends
from fullbore.runtime.transport.torch_errors import attempt
from fullbore.runtime.transport.transport import Arrival

__all__ = ["TorchTransport"]

_LaneKey = tuple[Rank, Rank, Payload]


@dataclass(frozen=True, slots=True)
class _Wire:
    """This rank's end of a lane."""

    group: dist.ProcessGroup
    peer: int
    """The other end's rank in the group."""

    tag: int

    def send(self, tensor: Tensor) -> dist.Work:
        return self.group.send([_real(tensor)], self.peer, self.tag)

    def receive(self, buffer: Tensor) -> dist.Work:
        return self.group.recv([_real(buffer)], self.peer, self.tag)


class TorchTransport:
    """One rank's ends of all lanes.

    ``ranks`` maps a pipeline rank to a global one. Every rank of the world makes this object with equal lanes.
    """

    def __init__(
        self, lanes: Sequence[Lane], *, rank: int, ranks: Sequence[int], device: Device, timeout_s: float
    ) -> None:
        timeout = timedelta(seconds=timeout_s)
        self._device = device
        self._groups: list[dist.ProcessGroup] = []
        self._wires: dict[_LaneKey, _Wire] = {}
        self._arrival = _StreamArrival if device.backend == "nccl" else _HostArrival
        connect = self._one_each if device.backend == "nccl" else self._one_for_all
        connect(lanes, rank=rank, ranks=tuple(ranks), watchdog=2 * timeout)  # the executor's timeout comes first
        starts = {_key(lane): self._wires[_key(lane)].send for lane in lanes if rank == lane.sender}
        self._sends: dict[_LaneKey, _Sends] = {
            key: NcclSends(start) if device.backend == "nccl" else GlooSends(start, timeout=timeout)
            for key, start in starts.items()
        }

    def send(self, lane: Lane, tensor: Tensor) -> None:
        self._sends[_key(lane)].send(tensor)

    def receive(self, lane: Lane, buffer: Tensor) -> Arrival:
        wire = self._wires[_key(lane)]
        return self._arrival(attempt(lambda: wire.receive(buffer)))

    def release(self) -> None:
        for sends in self._sends.values():
            sends.release()

    def drain(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for sends in self._sends.values():
            sends.drain(max(0.001, deadline - time.monotonic()))
        self._device.wait(timeout_s)

    def close(self) -> None:
        for sends in self._sends.values():
            sends.close()
        for group in self._groups:  # in the program's lane order on both ends
            dist.destroy_process_group(group)
        self._groups.clear()
        self._wires.clear()

    def _one_each(self, lanes: Sequence[Lane], *, rank: int, ranks: tuple[int, ...], watchdog: timedelta) -> None:
        for lane in lanes:
            ends = sorted((ranks[lane.sender], ranks[lane.receiver]))
            group = dist.new_group(ends, timeout=watchdog, backend="nccl", device_id=self._device.torch_device)
            if rank in (lane.sender, lane.receiver):
                self._groups.append(group)
                self._wires[_key(lane)] = _Wire(group, ends.index(ranks[_other(lane, rank)]), tag=0)

    def _one_for_all(self, lanes: Sequence[Lane], *, rank: int, ranks: tuple[int, ...], watchdog: timedelta) -> None:
        if not lanes:
            return  # one rank has no group at all
        members = sorted(ranks)
        group = dist.new_group(members, timeout=watchdog, backend="gloo")
        self._groups.append(group)
        for tag, lane in enumerate(lanes):
            if rank in (lane.sender, lane.receiver):
                self._wires[_key(lane)] = _Wire(group, members.index(ranks[_other(lane, rank)]), tag)


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

    def send(self, tensor: Tensor) -> None: ...
    def release(self) -> None: ...
    def drain(self, timeout_s: float) -> None: ...
    def close(self) -> None: ...


def _key(lane: Lane) -> _LaneKey:
    return (lane.sender, lane.receiver, lane.payload)


def _real(tensor: Tensor) -> Tensor:
    """Backends know no complex numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _other(lane: Lane, rank: int) -> Rank:
    return lane.receiver if rank == lane.sender else lane.sender
