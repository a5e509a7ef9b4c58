"""Device: where a stage computes and how time is told there.

On a GPU the host runs ahead: a wait does not block it, so a span can only be timed by events on the device.
The executor therefore never reads a clock. It takes marks, and the marks of a whole step are turned into
nanoseconds once, after the step. On a CPU a mark *is* the time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from fullbore.errors import ConfigError
from fullbore.runtime.transport.transport import TransferTimeout

__all__ = ["CpuDevice", "CudaDevice", "Device", "Mark", "open_device"]

Mark = object
"""A point in the device's time, for the device that made it to read: nanoseconds on a CPU, an event on a GPU."""


@runtime_checkable
class Device(Protocol):
    """A torch device with its clock."""

    @property
    def torch_device(self) -> torch.device:
        """Where tensors live."""

    @property
    def backend(self) -> str:
        """The torch.distributed backend that moves tensors of this device."""

    def wait(self, timeout_s: float) -> None:
        """Until the device has done all work issued so far.

        Raises:
            TransferTimeout: not in time: it waits for a message that does not come.
        """

    def mark(self) -> Mark:
        """Now, in the order of the work issued so far. Never blocks."""

    def resolve_ns(self, marks: Sequence[Mark]) -> list[int]:
        """Nanoseconds of this rank's monotonic clock. Called after the step; may wait for the device."""


class CpuDevice:
    """Work is done when the call returns."""

    torch_device = torch.device("cpu")
    backend = "gloo"

    def wait(self, timeout_s: float) -> None:
        del timeout_s

    def mark(self) -> Mark:
        return time.perf_counter_ns()

    def resolve_ns(self, marks: Sequence[Mark]) -> list[int]:
        times: list[int] = []
        for mark in marks:
            assert isinstance(mark, int)
            times.append(mark)
        return times


class CudaDevice:
    """Marks are events on the current stream, placed on the host's clock by a pair taken at each step."""

    backend = "nccl"

    def __init__(self, index: int) -> None:
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        torch.cuda.synchronize(self.torch_device)
        self._take_origin()

    def wait(self, timeout_s: float) -> None:
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        deadline = time.monotonic() + timeout_s
        while not done.query():  # type: ignore[no-untyped-call]
            if time.monotonic() > deadline:
                raise TransferTimeout(f"the device is not done after {timeout_s:g} s: it waits for a message")
            time.sleep(20e-6)

    def mark(self) -> Mark:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def resolve_ns(self, marks: Sequence[Mark]) -> list[int]:
        times: list[int] = []
        for mark in marks:
            assert isinstance(mark, torch.cuda.Event)
            mark.synchronize()
            times.append(self._origin_ns + round(self._origin.elapsed_time(mark) * 1e6))
        self._take_origin()
        return times

    def _take_origin(self) -> None:
        """One instant on both clocks, anew after every step: an event's distance from it is float32 milliseconds,
        good to nanoseconds over one step and to a millisecond over hours."""
        self._origin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._origin.record()
        self._origin.synchronize()
        self._origin_ns = time.perf_counter_ns()


def open_device(name: str, *, local_rank: int) -> Device:
    """``auto``: this rank's GPU where there is one, else the CPU. Also ``cpu``, ``cuda``, ``cuda:1``.

    Raises:
        ConfigError: a device that is not there, or a kind fullbore does not run on.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is auto, cpu, cuda or cuda:N (device={name!r})") from error
    if device.type == "cpu":
        return CpuDevice()
    if device.type != "cuda":
        raise ConfigError(f"fullbore runs on cpu and cuda (device={name!r})")
    count = torch.cuda.device_count()
    index = local_rank if device.index is None else device.index
    if index >= count:
        raise ConfigError(f"rank {local_rank} of this machine needs GPU {index}; {count} are there (device={name!r})")
    return CudaDevice(index)
