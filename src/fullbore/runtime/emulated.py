"""Emulated engine: every action waits its given time instead of computing.

The executor, the transport and the schedule are the real ones. It is how eight ranks are emulated on a
laptop, and how the runtime's own overhead is measured: nothing competes for the cores.
"""

from __future__ import annotations

import random
import time

import torch

from fullbore.costs.stage import StageCost
from fullbore.ids import MicrobatchIndex
from fullbore.ir.action import Kind
from fullbore.models.layered import Microbatch, Parcel

__all__ = ["EmulatedEngine", "Jitter"]


class Jitter:
    """Scales each duration by a uniform draw from [1 - share, 1 + share]; the same seed gives the same draws."""

    def __init__(self, share: float, *, seed: int) -> None:
        self._share = share
        self._source = random.Random(seed)

    def scale(self, duration_ns: int) -> int:
        return round(duration_ns * self._source.uniform(1.0 - self._share, 1.0 + self._share))


class EmulatedEngine:
    """One stage that waits. Hands on a tensor of ``output_bytes`` forward and ``input_bytes`` backward.

    ``input_bytes`` is None on the first stage and ``output_bytes`` on the last: nothing crosses there.
    """

    kinds = frozenset(Kind)
    held_bytes = 0

    def __init__(
        self, cost: StageCost, *, input_bytes: int | None, output_bytes: int | None, jitter: Jitter | None = None
    ) -> None:
        self._cost = cost
        self._input_bytes = input_bytes
        self._output_bytes = output_bytes
        self._jitter = jitter
        self._live: set[MicrobatchIndex] = set()

    @property
    def num_live(self) -> int:
        return len(self._live)

    def forward(self, index: MicrobatchIndex, microbatch: Microbatch, carried: Parcel | None) -> Parcel | None:
        del microbatch, carried
        self._wait(Kind.FORWARD)
        self._live.add(index)
        return _message(self._output_bytes)

    def backward(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        del gradients
        self._wait(Kind.BACKWARD)
        self._live.remove(index)
        return _message(self._input_bytes)

    def backward_input(self, index: MicrobatchIndex, gradients: Parcel | None) -> Parcel | None:
        del index, gradients
        self._wait(Kind.BACKWARD_INPUT)
        return _message(self._input_bytes)

    def backward_weight(self, index: MicrobatchIndex) -> None:
        self._wait(Kind.BACKWARD_WEIGHT)
        self._live.remove(index)

    def recompute(self, index: MicrobatchIndex) -> None:
        del index
        self._wait(Kind.RECOMPUTE)

    def _wait(self, kind: Kind) -> None:
        duration_ns = self._cost.of(kind)
        if self._jitter is not None:
            duration_ns = self._jitter.scale(duration_ns)
        time.sleep(duration_ns / 1e9)


def _message(size_bytes: int | None) -> Parcel | None:
    return None if size_bytes is None else (torch.empty(max(size_bytes, 1), dtype=torch.uint8),)
