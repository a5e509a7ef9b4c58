"""What a pipeline's arguments mean: the schedule behind a name, the layers at which stages begin, the loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Literal

from fullbore.errors import ConfigError, ModelError, ScheduleError
from fullbore.ir.recipe import Layout
from fullbore.ir.runnable import require_runnable
from fullbore.ir.schedule import Schedule
from fullbore.ir.validate import validate
from fullbore.models.layered import LayeredModel, Objective
from fullbore.partition.equal import equal
from fullbore.partition.holding import stages_holding
from fullbore.runtime.device import Device
from fullbore.runtime.environment import world_size
from fullbore.runtime.mesh import Mesh
from fullbore.schedules.costs import ScheduleCosts
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.shown import shown
from fullbore.synthesis.auto import cap_of_a_run
from fullbore.synthesis.catalogue import get, require_can_run

__all__ = [
    "mesh_of_world",
    "order_and_cut",
    "required_objective",
    "schedule_for",
    "with_recomputations",
]


def order_and_cut(
    model: LayeredModel,
    *,
    schedule: str | Schedule,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int | None,
    options: Mapping[str, int] | None,
    cut: Literal["equal"] | Sequence[int],
    ahead: Sequence[str] | None,
) -> tuple[Schedule, tuple[int, ...]]:
    """What the ranks run, and the first layer of each stage of a stream with the number of layers at the end.

    Args:
        ahead: layers to recompute in actions of their own; None: not so.

    Raises:
        ConfigError, PartitionError, ScheduleError: they do not fit together.
    """
    order = schedule_for(
        schedule, num_ranks=num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, options=options
    )
    edges = _edges(model, cut=cut, num_stages=order.placement.stages_per_stream)
    if ahead is not None:
        order = with_recomputations(order, layer_names=model.layer_names, edges=edges, recompute=ahead)
    return order, edges


def schedule_for(
    schedule: str | Schedule,
    *,
    num_ranks: int,
    num_microbatches: int,
    num_chunks: int | None,
    options: Mapping[str, int] | None,
) -> Schedule:
    """The registered schedule of that name for these sizes, or the given one if it is for them.

    Raises:
        ScheduleError: there is no such schedule, or not for these sizes, or it can be drawn and simulated only.
    """
    if isinstance(schedule, str):
        entry = get(schedule)
        require_can_run(entry)
        sizes = entry.sizes(num_ranks, num_microbatches=num_microbatches, num_chunks=num_chunks, options=options)
        found = entry.make(sizes, ScheduleCosts.of(entry.place(sizes), memory_cap=cap_of_a_run(entry, sizes)))
        require_runnable(found)
        return found
    validate(schedule)
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


def _edges(model: LayeredModel, *, cut: Literal["equal"] | Sequence[int], num_stages: int) -> tuple[int, ...]:
    """First layer of each stage of a stream, and the number of layers at the end.

    Raises:
        ConfigError, PartitionError: counts that do not fit the model or the stages.
    """
    num_layers = len(model.layer_names)
    counts = equal(num_layers, num_stages=num_stages) if isinstance(cut, str) and cut == "equal" else _counts(cut)
    if len(counts) != num_stages or sum(counts) != num_layers or min(counts, default=0) < 1:
        raise ConfigError(
            f"layers_per_stage needs {num_stages} counts of at least 1 that add up to {num_layers} layers "
            f"(given {list(counts)}, {sum(counts)} layers)"
        )
    edges = [0]
    for count in counts:
        edges.append(edges[-1] + count)
    return tuple(edges)


def with_recomputations(
    schedule: Schedule, *, layer_names: Sequence[str], edges: Sequence[int], recompute: Sequence[str]
) -> Schedule:
    """An R before each backward of the stages that have a layer to recompute; as it is where it has them already.
    Pairs come apart: a rank runs one action after the other, and an R right before its backward keeps least.

    Raises:
        ConfigError: nothing recomputes.
    """
    if not recompute:
        raise ConfigError(
            "recompute_ahead runs the recomputation of layers before their backward, and no layer recomputes; name "
            "layers in recompute, or leave it out"
        )
    if schedule.recomputes:
        return schedule
    counts = [end - first for first, end in pairwise(edges)]
    placement = schedule.placement
    held = stages_holding(recompute, layer_names=layer_names, layers_per_stage=counts, placement=placement)
    return recompute_ahead(schedule.in_turn(), stages=held)


def required_objective(given: Objective | None, model: LayeredModel) -> Objective:
    """What is summed and counted: what the caller gives, or what the model brings.

    Raises:
        ConfigError: something else than an objective.
        ModelError: there is none.
    """
    objective = given if given is not None else model.objective
    if objective is None:
        raise ModelError(
            f"this model brings no loss ({model.description}); give objective=Objective(loss_sum=..., count=...)"
        )
    if not isinstance(objective, Objective):
        raise ConfigError(
            "objective is a fullbore.Objective(loss_sum=..., count=...), which also says how many items count "
            f"(given a {type(objective).__name__})"
        )
    return objective


def mesh_of_world(schedule: str | Schedule, device: Device, timeout_s: float) -> Mesh:
    """The ranks that the environment speaks of, or as many as the given schedule has."""
    ranks = schedule.num_ranks if isinstance(schedule, Schedule) else world_size()
    return Mesh(Layout(pipeline=ranks), device=device, timeout_s=timeout_s)


def _counts(given: object) -> tuple[int, ...]:
    counts = tuple(given) if isinstance(given, Iterable) else ()
    if not counts or not all(isinstance(count, Integral) and not isinstance(count, bool) for count in counts):
        raise ConfigError(
            f'layers_per_stage is "equal" or a whole number of layers for each stage (given {shown(repr(given))}); a '
            "cut by measured times is what `fullbore partition` gives"
        )
    return tuple(map(int, counts))
