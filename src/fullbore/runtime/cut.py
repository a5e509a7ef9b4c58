"""What a pipeline's arguments mean: the schedule behind a name, and the layers at which stages begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from fullbore.errors import ConfigError, ScheduleError
from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Kind
from fullbore.ir.runnable import require_runnable
from fullbore.ir.schedule import Schedule
from fullbore.models.layered import LayeredModel
from fullbore.partition.equal import equal
from fullbore.schedules.costs import ScheduleCosts
from fullbore.synthesis.auto import cap_of_a_run
from fullbore.synthesis.catalogue import get

__all__ = ["edges_of", "schedule_for", "split_microbatches"]


def schedule_for(
    schedule: str | Schedule,
    num_ranks: int,
    num_microbatches: int,
    *,
    num_chunks: int | None,
    options: Mapping[str, int] | None,
) -> Schedule:
    """The registered schedule of that name for these sizes, or the given one if it is for them.

    Raises:
        ScheduleError: there is no such schedule, or not for these sizes, or it can be drawn and simulated only.
    """
    if isinstance(schedule, str):
        entry = get(schedule)
        sizes = entry.sizes(num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, options=options)
        found = entry.make(sizes, ScheduleCosts.of(entry.place(sizes), memory_cap=cap_of_a_run(entry, sizes)))
        require_runnable(found)
        return found
    if num_chunks is not None or options:
        raise ScheduleError(
            f"a Schedule already says its stages per rank and its order (schedule={schedule.name!r}, "
            f"num_chunks={num_chunks}, schedule_options={dict(options or {})}); leave out both, or give a name"
        )
    if (schedule.num_ranks, schedule.num_microbatches) != (num_ranks, num_microbatches):
        raise ScheduleError(
            f"the schedule is for {schedule.num_ranks} ranks and {schedule.num_microbatches} microbatches; "
            f"this pipeline has {num_ranks} and {num_microbatches}"
        )
    require_runnable(schedule)
    return schedule


def edges_of(
    model: LayeredModel, layers_per_stage: Literal["equal"] | Sequence[int], num_stages: int
) -> tuple[int, ...]:
    """First layer of each stage of a stream, and the number of layers at the end.

    Raises:
        ConfigError, PartitionError: counts that do not fit the model or the stages.
    """
    num_layers = len(model.layer_names)
    counts = equal(num_layers, num_stages=num_stages) if layers_per_stage == "equal" else tuple(layers_per_stage)
    if len(counts) != num_stages or sum(counts) != num_layers or min(counts, default=0) < 1:
        raise ConfigError(
            f"layers_per_stage needs {num_stages} counts of at least 1 that add up to {num_layers} layers "
            f"(given {list(counts)}, {sum(counts)} layers)"
        )
    edges = [0]
    for count in counts:
        edges.append(edges[-1] + count)
    return tuple(edges)


def split_microbatches(schedule: Schedule, stage: StageIndex) -> frozenset[MicrobatchIndex]:
    """The microbatches whose backward on this stage is split into I and W."""
    order = schedule.orders[schedule.placement.rank_of(stage)]
    return frozenset(a.microbatch for a in order if a.stage == stage and a.kind is Kind.BACKWARD_INPUT)
