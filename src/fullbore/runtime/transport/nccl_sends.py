"""NcclSends: the sends of one lane on NCCL. A device event says when one is done, and its memory is free from then on.

NCCL's work is "completed" too when it has failed: its watchdog has aborted the communicator then, and the error is kept
with the work. Only a wait with a limit raises it (`Work.exception` is deprecated), and where a work is completed that
holds up nobody.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import timedelta
from functools import partial

import torch.distributed as dist
from torch import Tensor

from fullbore.runtime.transport.gloo_sends import Start
from fullbore.runtime.transport.torch_errors import attempt
from fullbore.runtime.transport.transport import TransferTimeout

__all__ = ["NcclSends"]

_AT_ONCE = timedelta(seconds=1)
"""Of a work that is completed; without a limit its error would not be raised."""


class NcclSends:
    """One lane's, in the order they were started."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._pending: deque[tuple[dist.Work, Tensor]] = deque()

    def send(self, tensor: Tensor) -> None:
        self._pending.append((attempt(lambda: self._start(tensor)), tensor))

    def release(self) -> None:
        while self._pending:
            work, _ = self._pending[0]
            if not attempt(work.is_completed):
                return
            attempt(partial(work.wait, _AT_ONCE))
            self._pending.popleft()

    def drain(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            self.release()
            if not self._pending:
                return
            if time.monotonic() > deadline:
                raise TransferTimeout(f"a send was not received within {timeout_s:g} s")
            time.sleep(20e-6)

    def close(self) -> None:
        self._pending.clear()
