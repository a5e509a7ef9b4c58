"""torch.distributed raises bare RuntimeErrors; this says which of them mean that another rank is late or gone."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from fullbore.runtime.transport.transport import PeerLost, TransferTimeout
from fullbore.said import first_line

__all__ = ["attempt", "symptom"]

_T = TypeVar("_T")
_SOURCE = re.compile(r"^\[\S+:\d+\] ")
"""The line of gloo's own source that a message begins with."""

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
        found = _classified(error)
        if found is None:
            raise
        raise found from error


def symptom(error: BaseException) -> TransferTimeout | PeerLost | None:
    """What an error that nobody caught says about the others; None where it is this rank's own.

    Only what torch.distributed raised counts: a user's own "connection timed out" is a cause, not a symptom.
    """
    frames = traceback.extract_tb(error.__traceback__)
    inside = os.path.join("torch", "distributed", "")
    if not isinstance(error, RuntimeError) or not frames or inside not in frames[-1].filename:
        return None
    return _classified(error)


def _classified(error: RuntimeError) -> TransferTimeout | PeerLost | None:
    text = first_line(error)
    said = _SOURCE.sub("", text).split(". This is typically caused by")[0]
    if any(word in text.lower() for word in _LATE):
        return TransferTimeout(said)
    if isinstance(error, dist.DistNetworkError | dist.DistBackendError) or any(word in text.lower() for word in _GONE):
        return PeerLost(said)
    return None
