"""Transport: how a message gets from one rank to another. The seam between the executor and the wires.

Rules that every implementation keeps, because NCCL needs them and gloo does not mind them:

- messages of a lane arrive in the order in which they were sent; there are no tags;
- a send may complete only when its receive is posted (rendezvous), so nothing ever waits for a send before
  the end of the step;
- the transport owns what is being sent until it is gone, and lets go of it then.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from fullbore.errors import RunError
from fullbore.ir.program import Lane

__all__ = ["Arrival", "PeerLost", "TransferTimeout", "Transport"]


class TransferTimeout(RunError):
    """A transfer did not complete in time. The executor adds rank, action and message."""


class PeerLost(RunError):
    """The other end of a lane is gone."""


class Arrival(Protocol):
    """A posted receive."""

    def wait(self, timeout_s: float) -> None:
        """Until the buffer holds the message. On a GPU this orders the stream and does not block the host.

        Raises:
            TransferTimeout: not in time.
            PeerLost: the sender is gone.
        """


class Transport(Protocol):
    """One rank's ends of all its lanes."""

    def send(self, lane: Lane, tensor: Tensor) -> None:
        """Start sending the lane's next message. Never blocks; keeps ``tensor`` until it is gone."""

    def receive(self, lane: Lane, buffer: Tensor) -> Arrival:
        """Post a receive for the lane's next message."""

    def release(self) -> None:
        """Let go of what has been sent. Raises `PeerLost` where a send has failed. Never blocks."""

    def drain(self, timeout_s: float) -> None:
        """Until everything has been sent (end of step). Raises as `Arrival.wait` does."""

    def close(self) -> None:
        """Stop threads and release communicators."""
