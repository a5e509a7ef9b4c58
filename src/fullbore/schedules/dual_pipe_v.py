"""DualPipeV: DualPipe cut in half: a V, whose forwards and backwards run in pairs that hide each other's transfers.

DeepSeek-AI: DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.2.1, and the published code
(deepseek-ai/DualPipe, dualpipe/dualpipev.py), which gives Sea AI Lab the credit for the cut.

p ranks, m >= 2p microbatches, two stages a rank, r and 2p - 1 - r. Every rank, with 0 and 1 its first and second stage:

    1  2 (p - r - 1) times      F0
    2  r + 1 times              F0 F1
    3  p - r - 1 times          I1 W F1
    4  m - 2p + r + 1 times     F0&B1 F1&B0
    5  p - r - 1 times          B1 F1&B0
    6  r + 1 times              B1 B0, the second half split: I1 I0
    7  p - r - 1 times          W I0
    8  r + 1 times              W

``&`` joins a forward and a backward that may run at once: attention and experts of one compute while the other's
tokens travel. One after the other they are still this schedule. The last rank's first pair is no pair: apart they leave
less of a gap. W is first in, first out. With F = I = W the step takes m (F + I + W) + (p - 1) F, as ZB-H1's; in flight
2p + 1 activations of a stage, p + 1/2 shares. p = 2, m = 4, all times equal, chunk 0 has digits, chunk 1 letters (a =
microbatch 0), a prime marks B or I, w marks W:

    rank 0   0  1  2  a  a' aw b  3  b' b' .  c  0' 0' c' c' .  d  1' 1' d' d' 2' 2w 3' 3w
    rank 1   .  0  a  1  b  2  a' a' c  0' 0' 3  b' b' d  1' 1' c' c' 2' 2' .  d' 3' dw 3w
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import count

from fullbore.errors import ScheduleError
from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Overlap, Schedule
from fullbore.schedules.entry import ScheduleEntry
from fullbore.schedules.formulas import fill_span
from fullbore.schedules.sizes import Sizes

__all__ = ["ENTRY", "DualOrder"]

_NAME = "dualpipe-v"


def _make(sizes: Sizes) -> Schedule:
    p, m = sizes.num_ranks, sizes.num_microbatches
    microbatches = tuple(map(MicrobatchIndex, range(m)))
    rows = [
        DualOrder(((StageIndex(rank), microbatches), (StageIndex(2 * p - 1 - rank), microbatches))).steps(
            rank, num_ranks=p
        )
        for rank in range(p)
    ]
    orders = tuple(tuple(row.order) for row in rows)
    overlaps = frozenset(pair for row in rows for pair in row.overlaps)
    return Schedule(_NAME, Placement.snake(p, num_chunks=2), m, orders, overlaps=overlaps)


class DualOrder:
    """One rank's order: two flows of microbatches, each through a stage of its own."""

    def __init__(self, flows: Sequence[tuple[StageIndex, Sequence[MicrobatchIndex]]]) -> None:
        self.order: list[Compute] = []
        self.overlaps: list[Overlap] = []
        self._flows = flows
        self._forwards = (count(), count())
        self._backwards = (count(), count())
        self._waiting: deque[Compute] = deque()

    def steps(self, place: int, *, num_ranks: int) -> DualOrder:
        """The eight steps. ``place``: 0 where the first flow comes in, num_ranks - 1 where the two meet."""
        before, after = num_ranks - place - 1, place + 1
        for _ in range(2 * before):
            self._forward(0)
        for _ in range(after):
            self._forward(0)
            self._forward(1)
        for _ in range(before):
            self._input(1)
            self._weight()
            self._forward(1)
        for index in range(len(self._flows[0][1]) - 2 * num_ranks + after):
            self._pair(0, 1, joined=index > 0 or before > 0)
            self._pair(1, 0, joined=True)
        for _ in range(before):
            self._backward(1)
            self._pair(1, 0, joined=True)
        for index in range(2 * after):
            flow = 1 - index % 2
            # of the 2 * after backwards the last ones are split, from the one of the middle pair on that is flow 1's
            # on ranks of odd place, flow 0's on those of even place
            if index >= 2 * (after // 2) + (place + 1) % 2:
                self._input(flow)
            else:
                self._backward(flow)
        for _ in range(before):
            self._weight()
            self._input(0)
        for _ in range(after):
            self._weight()
        assert not self._waiting, "a weight gradient is left over"
        return self

    def _action(self, kind: Kind, flow: int, index: int) -> Compute:
        stage, microbatches = self._flows[flow]
        return Compute(stage, kind, microbatches[index])

    def _forward(self, flow: int) -> None:
        self.order.append(self._action(Kind.FORWARD, flow, next(self._forwards[flow])))

    def _backward(self, flow: int) -> None:
        self.order.append(self._action(Kind.BACKWARD, flow, next(self._backwards[flow])))

    def _input(self, flow: int) -> None:
        action = self._action(Kind.BACKWARD_INPUT, flow, next(self._backwards[flow]))
        self.order.append(action)
        self._waiting.append(action.of_kind(Kind.BACKWARD_WEIGHT))

    def _weight(self) -> None:
        self.order.append(self._waiting.popleft())

    def _pair(self, forward: int, backward: int, *, joined: bool) -> None:
        self._forward(forward)
        self._backward(backward)
        if joined:
            self.overlaps.append(Overlap(*self.order[-2:]))


def _check(sizes: Sizes) -> None:
    p, m = sizes.num_ranks, sizes.num_microbatches
    if m < 2 * p:
        raise ScheduleError(
            f"{_NAME} needs num_microbatches of at least 2 num_ranks (num_microbatches={m}, num_ranks={p}); use {2 * p}"
        )


def _peak(sizes: Sizes, rank: int) -> int:
    del rank
    return 2 * sizes.num_ranks + 1


ENTRY = ScheduleEntry(
    name=_NAME,
    summary="a V whose forwards and backwards run in pairs that hide each other's transfers",
    paper="DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437",
    constraints="num_microbatches of at least 2 num_ranks",
    construct=lambda sizes, _: _make(sizes),
    check=_check,
    place=lambda sizes: Placement.snake(sizes.num_ranks, num_chunks=2),
    chunks=2,
    splits_backward=True,
    peak=_peak,
    span=fill_span,  # DualPipe's formula for twice the ranks, with F&B = F + B; a chunk takes half a share
)
