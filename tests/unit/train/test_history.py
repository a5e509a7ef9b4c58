"""What steps come to at the end, where ranks hold several stages."""

from __future__ import annotations

from typing import Any, cast

import pytest

from fullbore.config.run import PipelineConfig, RunConfig
from fullbore.costs.layer import LayerCost
from fullbore.costs.stage import StageCost
from fullbore.ids import StageIndex
from fullbore.plan.resolve import resolve
from fullbore.runtime.mesh import Mesh
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.clock import ClockOffset
from fullbore.timeline.span import Timeline
from fullbore.train.history import History


class Everyone:
    """In place of a mesh: every rank's value, worked out here."""

    clock = ClockOffset(0, 0)

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def gather_on_first(self, mine: Any) -> list[Any]:
        first = _Alone()
        for rank in range(self._timeline.num_ranks):
            History().account(_spans(self._timeline, rank), num_ranks=2, mesh=cast(Mesh, first))
        assert mine in first.values
        return first.values


class _Alone:
    """Writes down what a rank gives away, and gives it nothing back, as every rank but the first is given nothing."""

    clock = ClockOffset(0, 0)

    def __init__(self) -> None:
        self.values: list[Any] = []

    def gather_on_first(self, mine: Any) -> list[Any]:
        self.values.append(mine)
        return []


def _spans(timeline: Timeline, rank: int) -> Any:
    return tuple(span for span in timeline.spans if span.rank == rank)


def test_the_bottleneck_is_a_stage_and_the_bubble_is_the_timelines() -> None:
    """Stage 2 is rank 0's second: the busiest rank's number would say 0, or 1."""
    schedule = get("interleaved-1f1b").build(2, num_microbatches=4)
    timeline = simulate(
        schedule, costs=[StageCost(2, 2, 0), StageCost(6, 6, 0), StageCost(7, 7, 0), StageCost(6, 6, 0)]
    )
    history = History()
    bubble = history.account(_spans(timeline, 1), num_ranks=2, mesh=cast(Mesh, Everyone(timeline)))
    assert bubble == pytest.approx(bubble_of(timeline).bubble_fraction)
    assert history.stage_ns == [{0: 16, 1: 48, 2: 56, 3: 48}]
    history.step_ns.append(10)
    config = RunConfig(pipeline=PipelineConfig(schedule="interleaved-1f1b", microbatches=4, partition="equal"))
    resolved = resolve(config, costs=None, layer_names=["a", "b", "c", "d"])
    assert history.result(run_dir="x", resolved=resolved, problems=[]).bottleneck_stage == 2


def test_ranks_other_than_the_first_keep_nothing() -> None:
    timeline = simulate(get("1f1b").build(2, num_microbatches=4), costs=[StageCost(2, 2, 0)] * 2)
    history = History()
    assert history.account(_spans(timeline, 1), num_ranks=2, mesh=cast(Mesh, _Alone())) is None
    assert not [*history.recent, *history.stage_ns, *history.bubbles]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("num_steps", [2, 30])
def test_the_slow_stage_is_that_of_the_last_steps(num_steps: int, ahead: bool) -> None:
    """Not of the first, which warms up: there rank 0 was slow. Recomputation is part of what a layer should take, and
    goes where its layer goes: rank 0 has none now."""
    schedule = get("1f1b").build(2, num_microbatches=4)
    costs = [StageCost(20, 20, 20, 0), StageCost(60, 60, 60, 60)]
    if ahead:
        usual = simulate(recompute_ahead(schedule, stages=[StageIndex(1)]), costs=costs)
    else:
        usual = simulate(schedule, costs=[cost.recomputing_inside for cost in costs])
    first = simulate(schedule, costs=[StageCost(900, 900, 900), StageCost(20, 20, 20)])
    history = History()
    for timeline in [first] + [usual] * (num_steps - 1):
        history.account(_spans(timeline, 1), num_ranks=2, mesh=cast(Mesh, Everyone(timeline)))
        history.step_ns.append(10)
    layers = [LayerCost(f"layers.{i}", 10, 10, 10) for i in range(8)]
    config = RunConfig(
        pipeline=PipelineConfig(
            microbatches=4,
            partition=(2, 6),
            recompute=[f"layers.{i}" for i in range(2, 8)],  # type: ignore[arg-type]
            recompute_ahead=ahead,
        )
    )
    resolved = resolve(config, costs=layers, layer_names=[layer.name for layer in layers])
    found = history.result(run_dir="x", resolved=resolved, problems=[], costs=layers).slow_stage
    assert found is not None
    assert (found.stage, found.factor, found.device_factor) == (1, 4.0, 1.0)
    assert found.better_layers_per_stage == (4, 4)
    assert (
        found.better_step_ns
        == simulate(
            recompute_ahead(schedule) if ahead else schedule,
            costs=[
                cost if ahead else cost.recomputing_inside for cost in (StageCost(40, 40, 40, 20), StageCost(*[40] * 4))
            ],
        ).compute_end_ns
    )
    assert len(history.recent) == min(num_steps - 1, 20)
