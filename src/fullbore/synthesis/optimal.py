"""Optimal: a constraint solver improves an order, or proves that there is no better one. For small instances.

The model has an interval for every action: no two overlap on a rank, messages take their delays, actions of one kind
run in the order of the microbatches (which loses nothing, see `fullbore.synthesis.instance`), activations are a
cumulative resource from the start of a forward to the end of its backward for the weights. It starts from the order it
is given, so it never returns a worse one. Solved by CP-SAT of OR-tools, which is an extra: ``fullbore[optimal]``.

Seen on two cores: 4 ranks and 16 microbatches are solved in seconds, 8 and 32 in a minute if memory is ample, and under
a tight cap not at all. What the solver has proven until the time is up is a bound in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fullbore.errors import ConfigError
from fullbore.synthesis.instance import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Instance, Orders, WaitCycle, last_ends

__all__ = ["Proof", "solve"]


@dataclass(frozen=True, slots=True)
class Proof:
    """What the solver has found and proven."""

    orders: Orders
    makespan: int
    lower_bound: int
    """No order is faster; equal to the makespan where this one is proven optimal."""


def solve(instance: Instance, *, orders: Orders, lower_bound: int, seconds: float, num_workers: int = 2) -> Proof:
    """Improve ``orders`` for at most so many seconds.

    Args:
        orders: a valid order to begin with.
        lower_bound: a bound already proven.

    Raises:
        ConfigError: OR-tools is not installed.
    """
    cp_model = _solver()
    known = last_ends(instance, orders)
    makespan = max(ends[-1] for ends in known)
    m, durations, delays = instance.num_microbatches, instance.durations, instance.delays
    last = instance.num_stages - 1
    model = cp_model.CpModel()
    starts = [
        [model.new_int_var(0, makespan - durations[code], "") for _ in range(m)] for code in range(len(durations))
    ]
    for code, ends in enumerate(known):
        for variable, end in zip(starts[code], ends, strict=True):
            model.add_hint(variable, end - durations[code])
    for rank, stages in enumerate(instance.stages):
        codes = [3 * stage + kind for stage in stages for kind in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)]
        model.add_no_overlap(
            model.new_fixed_size_interval_var(start, durations[code], "") for code in codes for start in starts[code]
        )
        _hold_memory(model, instance, rank, starts, makespan)
    end_of_all = model.new_int_var(lower_bound, makespan, "")
    for code, mine in enumerate(starts):
        stage, kind = divmod(code, 3)
        source, delay = code - 1, 0
        if kind == FORWARD:
            source, delay = code - 3, delays[stage - 1] if stage else 0
        elif kind == BACKWARD_INPUT and stage < last:
            source, delay = code + 3, delays[stage]
        for index, start in enumerate(mine):
            if source >= 0:
                model.add(start >= starts[source][index] + durations[source] + delay)
            if index:
                model.add(start >= mine[index - 1] + durations[code])
        model.add(end_of_all >= mine[-1] + durations[code])
    model.minimize(end_of_all)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = num_workers
    status = solver.solve(model)
    proven = max(lower_bound, round(solver.best_objective_bound))
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Proof(orders, makespan, min(proven, makespan))
    times = [[int(solver.value(start)) for start in mine] for mine in starts]
    found = _sorted(instance, times)
    try:
        better = max(ends[-1] for ends in last_ends(instance, found))
    except WaitCycle:  # among actions that take no time
        better = makespan
    return (
        Proof(found, better, min(proven, better))
        if better < makespan
        else Proof(orders, makespan, min(proven, makespan))
    )


def _solver() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ConfigError(
            "proving an order optimal needs OR-tools, which is not installed; pip install 'fullbore[optimal]'"
        ) from error
    return cp_model


def _hold_memory(model: Any, instance: Instance, rank: int, starts: list[list[Any]], horizon: int) -> None:
    """What a forward takes is kept in two parts: to the end of one backward and to the end of the other."""
    m, stages = instance.num_microbatches, instance.stages[rank]
    if instance.caps[rank] >= m * len(stages) * instance.unit:
        return
    intervals, amounts = [], []
    for kind, amount in ((BACKWARD_INPUT, instance.early), (BACKWARD_WEIGHT, instance.unit - instance.early)):
        if not amount:
            continue
        for stage in stages:
            code = 3 * stage + kind
            for start, freed in zip(starts[3 * stage], starts[code], strict=True):
                length = model.new_int_var(0, horizon, "")
                end = model.new_int_var(0, horizon, "")
                model.add(end == freed + instance.durations[code])
                intervals.append(model.new_interval_var(start, length, end, ""))
                amounts.append(amount)
    model.add_cumulative(intervals, amounts, instance.caps[rank])


def _sorted(instance: Instance, times: list[list[int]]) -> Orders:
    """The orders in which the actions start; where some take no time, the earlier in the chain first."""
    found = []
    for stages in instance.stages:
        mine = [
            (time, time + instance.durations[code], kind, code)
            for stage in stages
            for kind in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
            for code in (3 * stage + kind,)
            for time in times[code]
        ]
        found.append(tuple(code for *_, code in sorted(mine)))
    return tuple(found)
