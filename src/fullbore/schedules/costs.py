"""ScheduleCosts: what a schedule is made for beside its sizes: stage times, transfer times and room for activations.

Most schedules are the same whatever the costs are. Those that are not (`ScheduleEntry.cost_driven`) get this value;
with nothing known, forward, input gradient and weight gradient take one tick each, transfers none, and memory has no
cap but the schedule's own.

Memory is counted in shares, 1 = one microbatch's activations on one rank's whole share of the model: a forward of one
of v chunks keeps 1/v of it until its weight gradient is done. ``input_backward_frees`` is the part of it that the
backward for the input already frees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from fullbore.costs.delays import boundary_delays, require_costs
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.errors import ScheduleError
from fullbore.ir.placement import Placement

__all__ = ["ScheduleCosts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCosts:
    """Integers of one unit for all times; exact fractions for memory."""

    stages: tuple[StageCost, ...]
    """What one microbatch takes on each stage."""

    delays: tuple[int, ...]
    """How long a message is under way over each boundary s|s+1, either way; 0 where both stages are on one rank."""

    memory_cap: tuple[Fraction, ...] | None = None
    """Most shares each rank may keep; None: as many as the schedule keeps by itself."""

    input_backward_frees: Fraction = Fraction(0)
    """Part of an activation that is free after the backward for the input; the rest stays until the weights'."""

    def __post_init__(self) -> None:
        if not 0 <= self.input_backward_frees <= 1:
            raise ScheduleError(
                f"the backward for the input frees a part of an activation, from 0 to 1 "
                f"(given {float(self.input_backward_frees):g})"
            )
        if self.memory_cap is not None and min(self.memory_cap) <= 0:
            raise ScheduleError(f"a memory cap is above 0 shares (given {float(min(self.memory_cap)):g})")

    @classmethod
    def of(
        cls,
        placement: Placement,
        *,
        stages: Sequence[StageCost] = (),
        links: Sequence[Link] = (),
        message_bytes: Sequence[int] | int = 0,
        memory_cap: Sequence[Fraction] | Fraction | None = None,
        input_backward_frees: Fraction = Fraction(0),
    ) -> ScheduleCosts:
        """The same from what a simulation takes; whatever is left out has its default.

        Args:
            stages: one for each stage; none: one tick for each kind.
            links, message_bytes: as in `fullbore.costs.delays.boundary_delays`.
            memory_cap: shares, one number for all ranks or one for each.

        Raises:
            CostsError: not one cost a stage, or not one link or size a boundary.
            ScheduleError: not one cap a rank, or a number out of its range.
        """
        held = tuple(stages) or (StageCost(1, 1, 1),) * placement.num_stages
        require_costs(held, num_stages=placement.num_stages)
        caps: tuple[Fraction, ...] | None = None
        if isinstance(memory_cap, Fraction):
            caps = (memory_cap,) * placement.num_ranks
        elif memory_cap is not None:
            caps = tuple(memory_cap)
            if len(caps) != placement.num_ranks:
                raise ScheduleError(
                    f"a memory cap has one number a rank, {placement.num_ranks} of them (given {len(caps)})"
                )
        return cls(
            stages=held,
            delays=boundary_delays(placement, links=links, message_bytes=message_bytes),
            memory_cap=caps,
            input_backward_frees=input_backward_frees,
        )
