"""Partition: which layers each stage holds, what each stage then takes, and one sentence on what decided it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise

from fullbore.costs.layer import LayerCost
from fullbore.costs.memory import StageMemory
from fullbore.errors import PartitionError
from fullbore.ids import Rank
from fullbore.ir.placement import Placement
from fullbore.partition.least_memory import least_memory
from fullbore.partition.min_max import Allowed, min_max
from fullbore.partition.objective import PartitionObjective
from fullbore.partition.reason import reason_of

__all__ = ["NothingFits", "Partition", "evaluate", "solve", "within"]


class NothingFits(PartitionError):
    """No cut stays within the memory limit. The answer is no, not an error of the caller."""

    def __init__(self, message: str, *, nearest_bytes: int) -> None:
        super().__init__(message)
        self.nearest_bytes = nearest_bytes
        """The least limit for which a cut is known."""

    def __reduce__(self) -> tuple[object, ...]:
        return (partial(type(self), nearest_bytes=self.nearest_bytes), (self.args[0],))


@dataclass(frozen=True, slots=True)
class Partition:
    """Stages in model order, of one stream. Times are of one microbatch, forward and whole backward."""

    layers_per_stage: tuple[int, ...]
    boundaries: tuple[int, ...]
    """The first layer of each stage."""

    stage_time_ns: tuple[int, ...]
    bottleneck_stage: int
    """The first of the slowest stages."""

    bottleneck_ns: int
    imbalance: float
    """Slowest stage over mean stage; 1.0 is even, and 1.0 where all times are 0."""

    stage_memory_bytes: tuple[int, ...]
    """Parameters, optimizer state and the activations of the microbatches in flight."""

    stage_parameters: tuple[int, ...]
    """Counted over the layers that are there: they add up to the model's."""

    objective: PartitionObjective | None
    """What was made even; None where the counts were given."""

    reason: str
    rank_time_ns: tuple[int, ...]
    """The sum over a rank's chunks; the stage times where a rank has one stage. Where there are two streams, of one
    microbatch each way."""

    @property
    def balance(self) -> float:
        """Mean rank over busiest rank: the share of the time that a rank works in a full pipe, on average."""
        return self.speedup / len(self.rank_time_ns)

    @property
    def speedup(self) -> float:
        """Times as fast as one device, in a full pipe: all work over the busiest rank's, never just p."""
        busiest = max(self.rank_time_ns)
        return sum(self.rank_time_ns) / busiest if busiest else float(len(self.rank_time_ns))


def solve(
    layers: Sequence[LayerCost],
    *,
    num_stages: int,
    objective: PartitionObjective = PartitionObjective.TIME,
    in_flight: Sequence[int] = (),
    memory_bytes: int | None = None,
) -> Partition:
    """The cut with the least bottleneck. ``in_flight``: microbatches whose activations each stage keeps at once, 1
    where not given. `fullbore.partition.best.best_partition` also looks at the schedule.

    Raises:
        NothingFits: no cut whose every stage fits ``memory_bytes``; tells the least limit that has one.
        PartitionError: fewer layers than stages.
    """
    weights = [objective.weight(layer) for layer in layers]
    kept = [_kept(in_flight, stage) for stage in range(num_stages)]
    if memory_bytes is not None and len(layers) >= num_stages > 0:
        nearest = least_memory(layers, in_flight=kept)
        if nearest > memory_bytes:
            raise NothingFits(
                f"no cut into {num_stages} stages keeps every stage within {memory_bytes} bytes; the least that has "
                f"one is {nearest} bytes ({nearest / 2**20:.1f} MiB): allow that much, or use more stages, smaller "
                f"microbatches or recomputation",
                nearest_bytes=nearest,
            )
    counts = min_max(weights, num_stages=num_stages, allowed=within(layers, kept, memory_bytes))
    decided = None if memory_bytes is None else "no cut within the memory limit has a faster slowest stage"
    return evaluate(layers, layers_per_stage=counts, objective=objective, in_flight=in_flight, decided=decided)


def evaluate(
    layers: Sequence[LayerCost],
    *,
    layers_per_stage: Sequence[int],
    objective: PartitionObjective | None = None,
    in_flight: Sequence[int] = (),
    placement: Placement | None = None,
    decided: str | None = None,
) -> Partition:
    """What the stages of a given cut take. Raises `PartitionError` where counts and layers do not match.

    Args:
        in_flight: as for `solve`.
        placement: of the stages; none: each has a rank of its own.
        decided: what decided the cut, where more than the slowest stage did.
    """
    counts = tuple(layers_per_stage)
    if sum(counts) != len(layers) or min(counts, default=0) < 1:
        raise PartitionError(
            f"layers per stage are at least 1 each and add up to the number of layers "
            f"(given {list(counts)}, which add up to {sum(counts)}; the model has {len(layers)})"
        )
    edges = (0, *accumulate(counts))
    held = [layers[first:end] for first, end in pairwise(edges)]
    times = tuple(sum(layer.time_ns for layer in stage) for stage in held)
    slowest = times.index(max(times))
    mean = sum(times) / len(times)
    placed = Placement.linear(len(counts)) if placement is None else placement
    return Partition(
        layers_per_stage=counts,
        boundaries=edges[:-1],
        stage_time_ns=times,
        bottleneck_stage=slowest,
        bottleneck_ns=times[slowest],
        imbalance=times[slowest] / mean if mean else 1.0,
        stage_memory_bytes=tuple(
            StageMemory.of_layers(stage).with_in_flight(_kept(in_flight, index)) for index, stage in enumerate(held)
        ),
        stage_parameters=tuple(sum(layer.parameters for layer in stage) for stage in held),
        objective=objective,
        reason=reason_of(held, objective=objective, decided=decided),
        rank_time_ns=tuple(
            sum(times[placed.place_of(stage)] for stage in placed.stages_of(Rank(rank)))
            for rank in range(placed.num_ranks)
        ),
    )


def within(layers: Sequence[LayerCost], in_flight: Sequence[int], memory_bytes: int | None) -> Allowed | None:
    """Which stages may hold which layers: the limit depends on how many microbatches each stage keeps at once."""
    if memory_bytes is None:
        return None
    each = [StageMemory.of_layers([layer]) for layer in layers]
    fixed = (0, *accumulate(memory.fixed_bytes for memory in each))
    kept = (0, *accumulate(memory.activation_bytes for memory in each))

    def allowed(stage: int, first: int, end: int) -> bool:
        return fixed[end] - fixed[first] + (kept[end] - kept[first]) * in_flight[stage] <= memory_bytes

    return allowed


def _kept(in_flight: Sequence[int], stage: int) -> int:
    return in_flight[stage] if stage < len(in_flight) else 1
