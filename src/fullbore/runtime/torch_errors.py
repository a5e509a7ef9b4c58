"""torch.distributed raises bare RuntimeErrors; this says which of them mean that another rank is late or gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from fullbore.runtime.blame import first_line
from fullbore.runtime.transport import PeerLost, TransferTimeout

__all__ = ["attempt"]

_T = TypeVar("_T")
_LATE = ("timed out", "timeout")
_GONE = ("closed by peer", "connection reset", "connection refused", "broken pipe", "socket", "remote process exited")


def attempt(call: Callable[[], _T]) -> _T:
    """Run a transfer or a collective.

    Raises:
        TransferTimeout: another rank did not take part in time.
        PeerLost: another rank is gone.
        RuntimeError: anything else (a wrong device, no memory, ...) as it was: that is this rank's own failure.
    """
    try:
        return call()
    except RuntimeError as error:
        text = first_line(error).lower()
        if any(word in text for word in _LATE):
            raise TransferTimeout(first_line(error)) from error
        if isinstance(error, dist.DistNetworkError | dist.DistBackendError) or any(word in text for word in _GONE):
            raise PeerLost(first_line(error)) from error
        raise
