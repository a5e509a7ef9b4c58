"""Slow stage: is it one stage that sets the rhythm, is it compute or waiting, and what would a better cut give?

From what the stages of a run computed, what their layers were expected to cost, and the schedule:

- *Which.* The rank that computes longest for one microbatch, against the mean of the other ranks. A timer around
  forward and backward blames the first rank instead, which waits longest for its last gradient. The steps have to bear
  it out: where the ranks are equally busy nobody waits for one of them, and medians that differ are noise. So is a
  difference that is smaller than what steps differ by from one to the next (`fullbore.diagnose.over_steps`).
- *Compute or waiting.* A rank that sets the rhythm is busy most of the pass while the others wait for it. Where even
  the slowest is idle more than half of it, messages, the host or too few microbatches decide, and no cut mends that.
- *Layers or device.* Costly layers cost the same elsewhere; on a slow device every layer takes longer than it would
  elsewhere. The run tells them apart by measured over expected time: where a rank's ratio stands out of the others',
  the surplus is put down to its device, else to its layers. (A profile that is wrong about just these layers looks like
  a slow device.) Moving a layer away from a slow device makes it cheaper, so the better cut depends on it.
- *What it would give.* The cut as it is and the best one, both simulated with the measured costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from statistics import fmean, median, median_low

from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.diagnose.over_steps import OverSteps
from fullbore.ids import Rank
from fullbore.ir.action import Kind
from fullbore.ir.schedule import Schedule
from fullbore.partition.recut import recut
from fullbore.partition.rescale import rescale
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.span import Timeline
from fullbore.timeline.stage_times import stage_times

__all__ = ["Cause", "SlowStage", "find_slow_stage"]

_SLOW = 1.1
"""A rank above this many times the mean of the others is slow, and one that is busy for longer than this many times
another's share lets that one wait."""

_BUSY = 0.5
"""A slow rank that is busy for less of the pass than this does not set the rhythm."""

_DEVICE = 1.25
"""Measured over expected time, against the usual rank: from here on it is the device. Below, profiles and runs of equal
devices differ too."""

_WORTH = 0.01
"""A gain below this share is none, however well the steps agree: measurements are no better than that."""


class Cause(StrEnum):
    """What the time of the pass depends on."""

    COMPUTE = "compute"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class SlowStage:
    """A stage that computes longer than the others. Shares of time are medians over the steps that were looked at."""

    stage: int
    rank: int
    layers: tuple[str, ...]
    num_steps: int
    """Measured; all medians are over these."""

    factor: float
    """The rank's computing time for one microbatch over the mean of the other ranks'."""

    device_factor: float
    """How many times as long the rank takes for its layers as the usual rank does for its own, by the expected costs;
    1.0 where it does not stand out, so that the layers are what is slow."""

    cause: Cause
    busy_fraction: float
    """Of the pass: computing on the slow rank."""

    rank_busy_fractions: tuple[float, ...]
    """The same of every rank."""

    rank_over_profile: tuple[float | None, ...]
    """Of every rank: measured over expected time of its layers; None where none was expected."""

    layers_per_stage: tuple[int, ...]
    better_layers_per_stage: tuple[int, ...] | None
    """None where no cut is faster, or where the pass does not depend on the stage."""

    step_ns: int
    """Measured, without the flush."""

    predicted_step_ns: int
    """Simulated with the measured costs, without the flush. What is missing to ``step_ns``, computing does not
    explain."""

    better_step_ns: int | None
    gain: float
    """The share of the simulated step that the better cut saves; 0.0 without one."""

    least_gain: float
    """The share below which no cut was taken for better: more than the steps differ by, and at least 1 %."""

    @property
    def waiting_ranks(self) -> tuple[int, ...]:
        """The ranks that are less busy than the slow one by more than equal ranks differ: at least one."""
        shares = enumerate(self.rank_busy_fractions)
        return tuple(rank for rank, share in shares if share * _SLOW < self.busy_fraction)


def find_slow_stage(
    steps: Sequence[Timeline],
    *,
    layers: Sequence[LayerCost],
    layers_per_stage: Sequence[int],
    schedule: Schedule,
    links: Sequence[Link] = (),
    accumulation: int = 1,
) -> SlowStage | None:
    """None where no stage is slow, where the ranks are equally busy, where the steps disagree by more than the stage
    stands out, where there is one rank only, or where every layer is there twice.

    Args:
        steps: measured, each with the COMPUTE spans of all ranks, of one or more passes.
        layers: expected costs, recomputation included.
        layers_per_stage: the cut that was run.
        links: one for each boundary, where they are known.
        accumulation: passes a step.

    Raises:
        CostsError: layers, cut and schedule do not fit together.
    """
    placement = schedule.placement
    if placement.num_ranks < 2 or placement.num_streams > 1:
        return None
    measured = stage_times(steps, placement=placement)
    totals = [sum(kinds.values()) for kinds in measured]
    of_rank = [sum(totals[stage] for stage in placement.stages_of(Rank(rank))) for rank in range(placement.num_ranks)]
    rank = of_rank.index(max(of_rank))
    factor = _over_others(of_rank, rank)
    if factor <= _SLOW:
        return None
    bubbles = [bubble_of(step) for step in steps]
    busy = [median(b.busy_ns[other] / b.makespan_ns for b in bubbles) for other in range(placement.num_ranks)]
    if _over_others(busy, rank) <= _SLOW or busy[rank] * _SLOW < max(busy):
        return None
    over = OverSteps.of(_over_all(b.busy_ns, rank) for b in bubbles)
    if not over.is_above_one:
        return None
    least_gain = max(_WORTH, over.noise / over.median)
    edges = (0, *accumulate(layers_per_stage))
    expected = [StageCost.of_layers(layers[edges[s] : edges[s + 1]]) for s in range(placement.num_stages)]
    over_profile = _over_profile(of_rank, expected, measured, schedule)
    slowness = _slowness(over_profile)
    costs = rescale(
        layers,
        layers_per_stage=layers_per_stage,
        measured=[
            {kind: round(time / slowness[owner]) for kind, time in kinds.items()}
            for kinds, owner in zip(measured, placement.ranks, strict=True)
        ],
    )
    found = recut(costs, schedule=schedule, present=layers_per_stage, slowness=slowness, links=links)
    cause = Cause.COMPUTE if busy[rank] >= _BUSY else Cause.WAITING
    better = found if cause is Cause.COMPUTE and found.gain >= least_gain else None
    stage = max(placement.stages_of(Rank(rank)), key=lambda s: totals[s])
    return SlowStage(
        stage=stage,
        rank=rank,
        layers=tuple(layer.name for layer in layers[edges[stage] : edges[stage + 1]]),
        num_steps=over.num_steps,
        factor=factor,
        device_factor=slowness[rank],
        cause=cause,
        busy_fraction=busy[rank],
        rank_busy_fractions=tuple(busy),
        rank_over_profile=over_profile,
        layers_per_stage=tuple(layers_per_stage),
        better_layers_per_stage=better.layers_per_stage if better else None,
        step_ns=round(median(b.makespan_ns for b in bubbles)),
        predicted_step_ns=found.present_ns * accumulation,
        better_step_ns=better.best_ns * accumulation if better else None,
        gain=better.gain if better else 0.0,
        least_gain=least_gain,
    )


def _over_profile(
    of_rank: Sequence[int],
    expected: Sequence[StageCost],
    measured: Sequence[Mapping[Kind, int]],
    schedule: Schedule,
) -> tuple[float | None, ...]:
    """Measured over expected of each rank."""
    ratios: list[float | None] = []
    for rank, time in enumerate(of_rank):
        stages = schedule.placement.stages_of(Rank(rank))
        hoped = sum(expected[stage].of(kind) for stage in stages for kind in measured[stage])
        ratios.append(time / hoped if hoped else None)
    return tuple(ratios)


def _slowness(over_profile: Sequence[float | None]) -> tuple[float, ...]:
    """Measured over expected of each rank, over that of the usual rank; 1.0 where it does not stand out.

    Not measured over expected alone: on a busy machine every rank takes longer than the profile says.
    """
    ratios = [ratio or 0.0 for ratio in over_profile]
    usual = median_low(ratios)
    against = [ratio / usual if usual else 1.0 for ratio in ratios]
    return tuple(factor if factor >= _DEVICE else 1.0 for factor in against)


def _over_all(values: Sequence[float], index: int) -> float:
    """One of several over the mean of all: at most as many as they are, where `_over_others` has no bound and a rank
    that does next to nothing would make any spread of it."""
    mean = fmean(values)
    return values[index] / mean if mean else 1.0


def _over_others(values: Sequence[float], index: int) -> float:
    """One of several over the mean of the others. Infinite where the others are nothing and it is not."""
    value, mean = values[index], fmean([*values[:index], *values[index + 1 :]])
    return value / mean if mean else float("inf") if value else 1.0
