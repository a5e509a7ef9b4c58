"""What a schedule must be to be run, beyond valid: a drawing may be of more than the runtime does."""

from __future__ import annotations

from fullbore.errors import ScheduleError
from fullbore.ids import StageIndex
from fullbore.ir.schedule import Schedule

__all__ = ["require_runnable"]


def require_runnable(schedule: Schedule) -> None:
    """Raises `ScheduleError` for what can be drawn and simulated only.

    A rank that held a stage and its mirror would hold the same layers twice, as two modules or as one that both
    streams run, which is neither. A stage without work would have lanes that training does not open, and evaluation,
    which takes the streams in turn, wants.
    """
    placement = schedule.placement
    if not any(action.kind.makes_input_gradient for order in schedule.orders for action in order):
        raise ScheduleError(f"{schedule.name} has forwards only; to be trained with, a schedule has backwards")
    if schedule.num_slices > 1:
        raise ScheduleError(
            f"{schedule.name} cuts every microbatch into {schedule.num_slices} slices, which can be drawn and "
            "simulated; to run, a schedule has whole microbatches"
        )
    if placement.num_streams == 1:
        return
    for stage in map(StageIndex, range(placement.stages_per_stream)):
        mirror = placement.mirror_of(stage)
        assert mirror is not None, "two streams have mirrors"
        if placement.rank_of(stage) == placement.rank_of(mirror):
            raise ScheduleError(
                f"to run, the two copies of a stage are on two ranks, and {schedule.name} has stage {stage} and its "
                f"mirror, stage {mirror}, on rank {placement.rank_of(stage)}; use an even number of ranks "
                f"(num_ranks={schedule.num_ranks})"
            )
    idle = sorted(set(range(schedule.num_stages)) - {action.stage for order in schedule.orders for action in order})
    if idle:
        raise ScheduleError(
            f"to run, both streams have microbatches, and {schedule.name} gives the stages {idle} nothing to do; "
            "send a microbatch each way, or use a schedule with one stream"
        )
