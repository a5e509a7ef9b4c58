"""The sends of one lane, with works that are done when the test says so."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
from torch import Tensor

from fullbore.runtime.transport.gloo_sends import GlooSends
from fullbore.runtime.transport.transport import PeerLost, TransferTimeout

SMALL, LARGE = 8, 1 << 20


class Started:
    """Writes down what is started; a work is done at once, or once ``received`` is set."""

    def __init__(self, *, received: bool = True, failure: str | None = None) -> None:
        self.sizes: list[int] = []
        self.received = threading.Event()
        self.failure = failure
        if received:
            self.received.set()

    def __call__(self, tensor: Tensor) -> Started:
        self.sizes.append(tensor.nbytes)
        return self

    def wait(self, timeout: timedelta) -> None:
        if self.failure is not None:
            raise RuntimeError(self.failure)
        if not self.received.wait(timeout.total_seconds()):
            raise RuntimeError("Timed out waiting")


@contextmanager
def lane(started: Started) -> Iterator[GlooSends]:
    sends = GlooSends(started, timeout=timedelta(seconds=5))
    yield sends
    started.received.set()
    sends.close()


def tensor(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


def test_a_lane_is_in_order_where_a_small_tensor_follows_a_large_one() -> None:
    started = Started(received=False)
    with lane(started) as sends:
        for size in (SMALL, LARGE, SMALL):
            sends.send(tensor(size))
        started.received.set()
        sends.drain(5.0)
    assert started.sizes == [SMALL, LARGE, SMALL]


def test_few_sends_are_kept_and_none_after_the_step() -> None:
    with lane(Started()) as sends:
        alive = weakref.WeakSet[Tensor]()
        for _ in range(40):
            one = tensor(SMALL)
            alive.add(one)
            sends.send(one)
            del one
            if len(alive) > 2:
                with sends._changed:  # the lane's thread lets go of the oldest
                    assert sends._changed.wait_for(lambda: not sends._num_errands, 5.0)
            assert len(alive) <= 2
        sends.drain(5.0)
        assert not alive


def test_a_send_never_blocks_however_long_nobody_receives() -> None:
    started = Started(received=False)
    with lane(started) as sends:
        for size in [SMALL] * 10 + [LARGE] * 3:
            sends.send(tensor(size))
        sends.release()
        assert started.sizes[:10] == [SMALL] * 10
        started.received.set()
        sends.drain(5.0)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_what_is_not_received_in_time_is_said_at_the_end_of_the_step(size: int) -> None:
    with lane(Started(received=False)) as sends:
        sends.send(tensor(size))
        with pytest.raises(TransferTimeout):
            sends.drain(0.05)


def test_a_lost_peer_is_told_to_the_executors_thread() -> None:
    with lane(Started(failure="Connection closed by peer")) as sends:
        sends.send(tensor(LARGE))
        with pytest.raises(PeerLost, match="closed by peer"):
            sends.drain(5.0)
        with pytest.raises(PeerLost):
            sends.release()
