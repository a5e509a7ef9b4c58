"""GlooSends: the sends of one lane on gloo, started in order and let go of when they are done.

Gloo says that a send is done only to whoever waits for it, and the executor must not wait. A thread that waits for
every send costs two wake-ups a message, on cores that the ranks of one machine share. So:

- a small tensor is sent by the executor's own thread, and two are simply kept: only with the third does the lane's
  thread wait for them all. For what is kept at the end of a step the executor itself waits;
- a large tensor is handed over to the lane's thread, which sends it and waits: copying megabytes into a socket takes as
  long as a short action, and the executor has the next one to run.

Between steps nothing is kept; within one, two small tensors a lane at most, and whatever is not received yet.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from enum import Enum, auto
from functools import partial

import torch.distributed as dist
from torch import Tensor

from fullbore.runtime.transport.torch_errors import attempt
from fullbore.runtime.transport.transport import TransferTimeout

__all__ = ["GlooSends", "Start"]

Start = Callable[[Tensor], dist.Work]
"""Start sending a tensor."""

_KEPT = 2
"""Small sends that stay until another follows."""

_LARGE_BYTES = 1 << 19
"""From here on a tensor is handed over: copying it takes longer than waking a thread."""


class GlooSends:
    """One lane's. The thread starts with the first tensor that needs it."""

    def __init__(self, start: Start, *, timeout: timedelta) -> None:
        self._start = start
        self._timeout = timeout
        self._under_way: deque[tuple[dist.Work, Tensor]] = deque()
        """Started by the executor's thread."""

        self._errands: queue.SimpleQueue[Tensor | _Errand] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._num_errands = 0
        self._num_handed_over = 0
        self._failure: Exception | None = None
        self._thread: threading.Thread | None = None

    def send(self, tensor: Tensor) -> None:
        if self._num_handed_over or tensor.nbytes >= _LARGE_BYTES:
            self._give(tensor)  # behind those handed over before: a lane is in order
            return
        self._under_way.append((attempt(lambda: self._start(tensor)), tensor))
        if len(self._under_way) > _KEPT and not self._num_errands:
            self._give(_Errand.LET_GO)

    def release(self) -> None:
        if self._failure is not None:
            raise self._failure

    def drain(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        if self._num_errands:
            with self._changed:
                done = self._changed.wait_for(lambda: self._failure is not None or not self._num_errands, timeout_s)
            self.release()
            if not done:
                raise TransferTimeout(f"a send was not received within {timeout_s:g} s")
        self.release()
        while self._under_way:
            self._let_go(timedelta(seconds=max(0.001, deadline - time.monotonic())))

    def close(self) -> None:
        if self._thread is not None:
            self._errands.put(_Errand.STOP)
            self._thread.join(self._timeout.total_seconds())

    def _give(self, errand: Tensor | _Errand) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="fullbore-sends", daemon=True)
            self._thread.start()
        with self._changed:
            self._num_errands += 1
            self._num_handed_over += isinstance(errand, Tensor)
        self._errands.put(errand)

    def _let_go(self, timeout: timedelta) -> None:
        work, _ = self._under_way[0]
        attempt(lambda: work.wait(timeout))
        self._under_way.popleft()

    def _serve(self) -> None:
        while (errand := self._errands.get()) is not _Errand.STOP:
            failure: Exception | None = None
            handed_over = isinstance(errand, Tensor)
            try:
                if isinstance(errand, Tensor):
                    attempt(partial(self._send_and_wait, errand))
                else:
                    while self._under_way:
                        self._let_go(self._timeout)
            except Exception as error:  # whatever it is, the rank's own thread must hear of it
                failure = error
            del errand
            with self._changed:
                self._num_errands -= 1
                self._num_handed_over -= handed_over
                self._failure = self._failure or failure
                self._changed.notify_all()

    def _send_and_wait(self, tensor: Tensor) -> None:
        self._start(tensor).wait(self._timeout)


class _Errand(Enum):
    LET_GO = auto()
    STOP = auto()
