"""Emulated devices whose backward is in two halves, and the systems that are compared on them.

A rank has F = I = W = 10 ms for every microbatch, shared out evenly among its stages. With jitter each half of a rank's
share is drawn by itself, uniformly, for its (round, rank, half, kind, microbatch): two stages of a rank have one half
each, a single stage both. So in one round every system has the same work on every rank, wherever its stages lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random

from emulation import Durations
from peers.torch_orders import order_of_class

from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Compute, Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.plan.made import Timing, make_for
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.registry import get
from fullbore.schedules.sizes import Sizes
from fullbore.simulate.memory import peak_shares
from fullbore.synthesis.auto import ENTRY, variants
from fullbore.timeline.scale import TimeScale

__all__ = ["FULLBORE", "TORCH", "TORCH_CSV", "Contestant", "SplitCell", "contestants"]

_HALVES = 2
_KINDS = (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)

FULLBORE = "fullbore"
TORCH = "PyTorch"
TORCH_CSV = "PyTorch, CSV of fullbore"


@dataclass(frozen=True, slots=True)
class SplitCell:
    """One place of the table."""

    num_ranks: int
    num_microbatches: int
    jitter: float
    """Share of each duration by which it may be longer or shorter."""

    action_ns: int = 10_000_000
    """F, I and W of a rank's whole share, each."""

    boundary_bytes: int = 4 << 10

    def __str__(self) -> str:
        return f"p={self.num_ranks},m={self.num_microbatches},jitter={self.jitter:g}"

    @property
    def ideal_ns(self) -> int:
        """A rank that never waits, without jitter."""
        return self.num_microbatches * len(_KINDS) * self.action_ns

    def stage_costs(self, placement: Placement) -> tuple[StageCost, ...]:
        """Without jitter: what schedules are made for."""
        chunks = placement.num_stages // placement.num_ranks
        return (StageCost(*(self.action_ns // chunks for _ in _KINDS)),) * placement.num_stages

    def durations(self, round_index: int, placement: Placement) -> dict[Compute, int]:
        """What every action takes in this round; the same on every rank and for every system."""
        drawn: dict[Compute, int] = {}
        for rank in map(Rank, range(self.num_ranks)):
            stages = placement.stages_of(rank)
            assert _HALVES % len(stages) == 0, "one or two stages a rank"
            each = _HALVES // len(stages)
            for kind in _KINDS:
                halves = [self._half(round_index, rank, half, kind) for half in range(_HALVES)]
                for chunk, stage in enumerate(stages):
                    mine = halves[chunk * each : (chunk + 1) * each]
                    for index, times in enumerate(zip(*mine, strict=True)):
                        drawn[Compute(stage, kind, MicrobatchIndex(index))] = sum(times)
        return with_whole_backwards(drawn)

    def _half(self, round_index: int, rank: int, half: int, kind: Kind) -> list[int]:
        """[microbatch] one half of a rank's share."""
        source = Random(f"{round_index}/{rank}/{half}/{kind.value}")
        low, high = 1 - self.jitter, 1 + self.jitter
        return [round(self.action_ns / _HALVES * source.uniform(low, high)) for _ in range(self.num_microbatches)]


def with_whole_backwards(drawn: Durations) -> dict[Compute, int]:
    """B takes what its halves take."""
    found = dict(drawn)
    for action, time_ns in drawn.items():
        if action.kind is Kind.BACKWARD_INPUT:
            found[action.of_kind(Kind.BACKWARD)] = time_ns + drawn[action.of_kind(Kind.BACKWARD_WEIGHT)]
    return found


def late_first_stage(drawn: Durations) -> dict[Compute, int]:
    """What PyTorch makes of it: nobody waits for the input gradient of stage 0, so there I is nothing and W is both."""
    found = dict(drawn)
    for action in drawn:
        if action.stage == 0 and action.kind is Kind.BACKWARD_INPUT:
            found[action] = 0
            found[action.of_kind(Kind.BACKWARD_WEIGHT)] = drawn[action.of_kind(Kind.BACKWARD)]
    return found


@dataclass(frozen=True, slots=True)
class Contestant:
    """Who runs which order."""

    system: str
    order: str
    schedule: Schedule
    torch_class: str | None = None
    """PyTorch's own class, without its prefix; None: fullbore, or PyTorch's runtime with a CSV."""

    peer: str | None = None
    """Of fullbore: the class of PyTorch's that this stands against."""

    @property
    def name(self) -> str:
        return f"{self.system}: {self.order}"

    @property
    def shares(self) -> Fraction:
        """Most activations that a rank keeps, in microbatches."""
        return max(peak_shares(self.schedule))


def contestants(cell: SplitCell, *, message_ns: int) -> list[Contestant]:
    """All systems of a cell. ``message_ns``: what `auto` is told that a message takes.

    `auto` has the memory of 1F1B, p microbatches, and once more that of the PyTorch schedule that keeps the most.
    fullbore has no schedule of its own like PyTorch's InterleavedZeroBubble, and runs PyTorch's order of it.
    """
    p, m = cell.num_ranks, cell.num_microbatches
    theirs = {
        name: Contestant(TORCH, name, order_of_class(name, num_ranks=p, num_microbatches=m), torch_class=name)
        for name in ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
    }
    zero_bubble_v = _published("zb-v", cell)
    bounded = _made(cell, Fraction(p), message_ns=message_ns)
    found = [
        Contestant(FULLBORE, "interleaved-1f1b", _published("interleaved-1f1b", cell), peer="Interleaved1F1B"),
        Contestant(
            FULLBORE,
            "InterleavedZeroBubble",
            theirs["InterleavedZeroBubble"].schedule,
            peer="InterleavedZeroBubble",
        ),
        Contestant(FULLBORE, "zb-v", zero_bubble_v, peer="ZBVZeroBubble"),
        Contestant(FULLBORE, "dualpipe-v", _published("dualpipe-v", cell), peer="DualPipeV"),
        Contestant(FULLBORE, "zb-h1", _published("zb-h1", cell)),
        Contestant(FULLBORE, "auto", bounded),
        *theirs.values(),
        Contestant(TORCH_CSV, "zb-v", zero_bubble_v),
        Contestant(TORCH_CSV, "auto", bounded),
    ]
    most = max(one.shares for one in theirs.values())
    if most > p:
        found.append(Contestant(FULLBORE, "auto, more memory", _made(cell, most, message_ns=message_ns)))
    return found


def _published(name: str, cell: SplitCell) -> Schedule:
    entry = get(name)
    sizes = entry.sizes(
        cell.num_ranks,
        num_microbatches=cell.num_microbatches,
        num_chunks=2 if name == "interleaved-1f1b" else None,
    )
    placement = entry.place(sizes)
    costs = ScheduleCosts.of(placement, stages=cell.stage_costs(placement), memory_cap=Fraction(cell.num_ranks))
    return entry.make(sizes, costs if entry.cost_driven else None)


def _made(cell: SplitCell, cap: Fraction, *, message_ns: int) -> Schedule:
    """`auto`, where it chooses the placement too."""

    def timing(sizes: Sizes, placement: Placement) -> Timing:
        del sizes
        links = (Link(message_ns),) * (placement.num_stages - 1)
        return Timing(cell.stage_costs(placement), links, TimeScale())

    tried: Sequence[Sizes] = variants(ENTRY, cell.num_ranks, num_microbatches=cell.num_microbatches)
    return make_for(ENTRY, tried, timing=timing, memory_cap=cap).schedule


def stage_actions(schedule: Schedule, rank: int, stage: StageIndex) -> tuple[Compute, ...]:
    """What the rank does for one of its stages, in order."""
    return tuple(action for action in schedule.orders[rank] if action.stage == stage)
