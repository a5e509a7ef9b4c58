"""The sends of one NCCL lane, with works that are done, or have failed, when the test says so."""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta

import pytest
import torch
from torch import Tensor

from fullbore.runtime.transport.nccl_sends import NcclSends
from fullbore.runtime.transport.transport import PeerLost, TransferTimeout


class Work:
    """As NCCL's: completed also means failed, and the failure is raised by a wait with a limit."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.failure: str | None = None

    def is_completed(self) -> bool:
        return self.done.is_set()

    def wait(self, timeout: timedelta) -> None:
        assert self.done.is_set(), "a wait for a send that is under way would hold up the executor"
        assert timeout
        if self.failure is not None:
            raise RuntimeError(self.failure)


class Started:
    """Writes down the works."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def __call__(self, tensor: Tensor) -> Work:
        del tensor
        self.works.append(Work())
        return self.works[-1]


def test_memory_is_let_go_of_in_order_as_sends_are_done() -> None:
    started, alive = Started(), weakref.WeakSet[Tensor]()
    sends = NcclSends(started)
    for _ in range(3):
        one = torch.empty(4)
        alive.add(one)
        sends.send(one)
        del one
    started.works[1].done.set()
    sends.release()
    assert len(alive) == 3
    started.works[0].done.set()
    sends.release()
    assert len(alive) == 1
    started.works[2].done.set()
    sends.drain(1.0)
    assert not alive


@pytest.mark.parametrize("how", ["release", "drain"])
@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("NCCL error: remote process exited or there was a network error", PeerLost),
        ("Watchdog caught collective operation timeout: ran for 60000 milliseconds", TransferTimeout),
        ("CUDA error: out of memory", RuntimeError),
    ],
)
def test_a_send_that_has_failed_is_not_taken_for_one_that_is_done(how: str, said: str, kind: type[Exception]) -> None:
    started = Started()
    sends = NcclSends(started)
    sends.send(torch.empty(4))
    started.works[0].failure = said
    started.works[0].done.set()
    with pytest.raises(kind, match=said.split(":")[0]):
        sends.release() if how == "release" else sends.drain(1.0)


def test_draining_ends_where_nobody_receives() -> None:
    sends = NcclSends(Started())
    sends.send(torch.empty(4))
    with pytest.raises(TransferTimeout, match=r"a send was not received within 0\.01 s"):
        sends.drain(0.01)
