"""Which stage is slow, why, and what a better cut would give: from timelines whose truth is known.

The steps are simulated, so what a device or a layer takes is known exactly, and so is what any other cut would take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest

from fullbore.costs.layer import LayerCost
from fullbore.costs.links import Link
from fullbore.costs.stage import StageCost
from fullbore.diagnose.slow_stage import Cause, SlowStage, find_slow_stage
from fullbore.ids import MicrobatchIndex, Rank, StageIndex
from fullbore.ir.action import Compute, Kind, Message
from fullbore.ir.flow import flow, made_by, needed_by
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.schedules.registry import get
from fullbore.simulate.engine import simulate
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.shift import repeated
from fullbore.timeline.span import Row, Span, Timeline
from tests.support.two_ways import shuffled_streams


def layers_of(*times: int) -> list[LayerCost]:
    """Forward t, backward 2 t."""
    return [LayerCost(f"layers.{index}", time, time, time, output_bytes=1000) for index, time in enumerate(times)]


def run_of(
    layers: Sequence[LayerCost],
    counts: Sequence[int],
    schedule: Schedule,
    *,
    slowness: Sequence[float] = (),
    links: Sequence[Link] = (),
) -> Timeline:
    """The step that these layers take on ranks of this speed."""
    ranks = schedule.placement.ranks
    held = [layers[first:end] for first, end in pairwise((0, *accumulate(counts)))]
    costs = [
        StageCost.of_layers(stage).slowed(slowness[ranks[index]] if slowness else 1.0)
        for index, stage in enumerate(held)
    ]
    sizes = [stage[-1].output_bytes for stage in held[:-1]]
    return simulate(schedule, costs=costs, links=links, message_bytes=sizes)


def pass_ns(timeline: Timeline) -> int:
    return bubble_of(timeline).makespan_ns


def found_in(
    step: Timeline, layers: Sequence[LayerCost], counts: Sequence[int], schedule: Schedule, links: Sequence[Link] = ()
) -> SlowStage:
    found = find_slow_stage([step], layers=layers, layers_per_stage=counts, schedule=schedule, links=links)
    assert found is not None
    return found


EIGHT = layers_of(*[5000] * 8)
FOUR_RANKS = get("1f1b").build(4, num_microbatches=8)


def test_a_slow_device_is_named_and_layers_move_away_from_it_at_their_price_elsewhere() -> None:
    slowness = (1, 1, 2, 1)
    step = run_of(EIGHT, [2, 2, 2, 2], FOUR_RANKS, slowness=slowness)
    found = found_in(step, EIGHT, [2, 2, 2, 2], FOUR_RANKS)
    assert (found.stage, found.rank, found.layers) == (2, 2, ("layers.4", "layers.5"))
    assert (found.factor, found.device_factor, found.cause) == (2.0, 2.0, Cause.COMPUTE)
    assert found.better_layers_per_stage == (3, 2, 1, 2)
    assert found.step_ns == found.predicted_step_ns == pass_ns(step)
    after = pass_ns(run_of(EIGHT, [3, 2, 1, 2], FOUR_RANKS, slowness=slowness))
    assert found.better_step_ns == after
    assert found.gain == pytest.approx(1 - after / pass_ns(step))
    assert found.busy_fraction == found.rank_busy_fractions[2] == pytest.approx(8 * 60_000 / pass_ns(step))


def test_costly_layers_stay_costly_wherever_they_go() -> None:
    """5 forward and 10 backward a layer, layers 4 and 5 twice that. In milliseconds Megatron-LM's 1F1B took 584 to 592,
    and 473 with [3, 2, 1, 2] layers."""
    layers = layers_of(*[5000] * 4, *[10_000] * 2, *[5000] * 2)
    step = run_of(layers, [2, 2, 2, 2], FOUR_RANKS)
    found = found_in(step, layers, [2, 2, 2, 2], FOUR_RANKS)
    assert (found.stage, found.factor, found.device_factor) == (2, 2.0, 1.0)
    assert found.better_layers_per_stage == (3, 2, 1, 2)
    assert (found.predicted_step_ns, found.better_step_ns) == (550_000, 435_000)


def test_the_same_measurement_means_another_cut_for_a_device_than_for_layers() -> None:
    """Stage 1 takes four times as long: as a device it keeps one layer, as layers they are what they are."""
    schedule = get("1f1b").build(2, num_microbatches=8)
    cheap, dear = layers_of(10, 10, 10, 10), layers_of(10, 10, 40, 40)
    step = run_of(dear, [2, 2], schedule)
    assert step == run_of(cheap, [2, 2], schedule, slowness=(1, 4))
    assert found_in(step, cheap, [2, 2], schedule).better_layers_per_stage == (3, 1)
    assert found_in(step, cheap, [2, 2], schedule).better_step_ns == pass_ns(
        run_of(cheap, [3, 1], schedule, slowness=(1, 4))
    )
    assert found_in(step, dear, [2, 2], schedule).better_step_ns == pass_ns(run_of(dear, [3, 1], schedule))


def test_a_machine_that_is_slower_than_the_profile_everywhere_has_no_slow_device() -> None:
    step = run_of(layers_of(14, 14, 14, 14, 14, 14), [1, 1, 1, 3], FOUR_RANKS)
    found = found_in(step, layers_of(10, 10, 10, 10, 10, 10), [1, 1, 1, 3], FOUR_RANKS)
    assert (found.stage, found.factor, found.device_factor) == (3, 3.0, 1.0)
    assert found.better_layers_per_stage == (2, 2, 1, 1)


def test_two_slow_devices_are_both_known() -> None:
    slowness = (1, 2, 3, 1)
    step = run_of(EIGHT, [2, 2, 2, 2], FOUR_RANKS, slowness=slowness)
    found = found_in(step, EIGHT, [2, 2, 2, 2], FOUR_RANKS)
    assert (found.stage, found.device_factor) == (2, 3.0)
    assert found.better_layers_per_stage is not None
    after = run_of(EIGHT, found.better_layers_per_stage, FOUR_RANKS, slowness=slowness)
    assert found.better_step_ns == pass_ns(after)


@pytest.mark.parametrize(
    ("microbatches", "layer", "present", "better", "now", "after"),
    [(4, 100, (1, 3), (2, 2), 3900, 3000), (8, 25, (4, 4, 4, 8), (5, 5, 5, 5), 5700, 4125)],
)
def test_what_imbalance_costs_is_the_difference_to_the_even_pipe(
    microbatches: int, layer: int, present: tuple[int, ...], better: tuple[int, ...], now: int, after: int
) -> None:
    """F = (1, 3), B = (2, 6): of 39, 9 are imbalance. F = (1, 1, 1, 2), B twice that: 57, and 41.25 even."""
    schedule = get("1f1b").build(len(present), num_microbatches=microbatches)
    layers = layers_of(*[layer] * sum(present))
    found = found_in(run_of(layers, present, schedule), layers, present, schedule)
    assert (found.stage, found.better_layers_per_stage) == (len(present) - 1, better)
    assert (found.predicted_step_ns, found.better_step_ns) == (now, after)
    assert found.gain == pytest.approx(1 - after / now)


def test_one_layer_that_is_a_stage_by_itself_leaves_nothing_to_gain() -> None:
    """A planner multiplied by eight ranks though the head sets the rhythm (aiconfigurator #1459)."""
    times = [3153, *[3150] * 6, 3901]
    layers = [LayerCost("head" if i == 7 else f"layers.{i}", time, 0, time) for i, time in enumerate(times)]
    schedule = get("1f1b").build(8, num_microbatches=64)
    found = found_in(run_of(layers, [1] * 8, schedule), layers, [1] * 8, schedule)
    assert (found.stage, found.layers, found.cause) == (7, ("head",), Cause.COMPUTE)
    assert found.factor == pytest.approx(3901 / ((3153 + 6 * 3150) / 7))
    assert (found.better_layers_per_stage, found.better_step_ns, found.gain) == (None, None, 0.0)


def busy(*shares: tuple[int, int]) -> Timeline:
    """One microbatch over two ranks in a pass of 1000: forward and backward of each take these times."""
    (f0, b0), (f1, b1) = shares
    return Timeline.of(
        [
            _span(0, Kind.FORWARD, 0, f0),
            _span(1, Kind.FORWARD, 400, 400 + f1),
            _span(1, Kind.BACKWARD, 720 - b1, 720),
            _span(0, Kind.BACKWARD, 1000 - b0, 1000),
        ],
        num_ranks=2,
    )


def _span(stage: int, kind: Kind, start: int, end: int) -> Span:
    action = Compute(StageIndex(stage), kind, MicrobatchIndex(0))
    return Span(Rank(stage), Row.COMPUTE, action, None, start, end)


def test_two_stages_far_from_busy_wait_and_one_near_busy_computes() -> None:
    """Busy shares of 40.5 and 18.7 % are another case than 16.9 and 71.4 % (mesh-llm #1026)."""
    schedule = get("1f1b").build(2, num_microbatches=1)
    layers = layers_of(100, 100, 100, 100)
    waits = found_in(busy((135, 270), (62, 125)), layers, [3, 1], schedule)
    assert (waits.stage, waits.cause, waits.better_layers_per_stage) == (0, Cause.WAITING, None)
    assert waits.rank_busy_fractions == (0.405, 0.187)
    assert waits.step_ns == 1000
    assert waits.predicted_step_ns == pytest.approx(405 + 187, abs=2), "computing explains less than two thirds"
    computes = found_in(busy((56, 113), (238, 476)), layers, [1, 3], schedule)
    assert (computes.stage, computes.cause) == (1, Cause.COMPUTE)
    assert computes.factor == pytest.approx(71.4 / 16.9)


def test_too_few_microbatches_are_no_slow_stage() -> None:
    schedule = get("1f1b").build(4, num_microbatches=1)
    found = found_in(run_of(EIGHT, [2, 2, 2, 2], schedule, slowness=(1, 1, 2, 1)), EIGHT, [2, 2, 2, 2], schedule)
    assert (found.cause, found.better_layers_per_stage) == (Cause.WAITING, None)
    assert found.step_ns == found.predicted_step_ns, "filling and draining explain it"


def test_even_stages_behind_a_slow_link_are_not_called_slow() -> None:
    links = [Link(), Link(40_000), Link()]
    step = run_of(EIGHT, [2, 2, 2, 2], FOUR_RANKS, links=links)
    assert pass_ns(step) > 1.5 * pass_ns(run_of(EIGHT, [2, 2, 2, 2], FOUR_RANKS))
    assert find_slow_stage([step], layers=EIGHT, layers_per_stage=[2, 2, 2, 2], schedule=FOUR_RANKS) is None


def test_known_links_are_part_of_what_is_predicted() -> None:
    links, slowness = [Link(3000), Link(2000, 10**9), Link(1000)], (1, 1, 2, 1)
    step = run_of(EIGHT, [2, 2, 2, 2], FOUR_RANKS, slowness=slowness, links=links)
    found = found_in(step, EIGHT, [2, 2, 2, 2], FOUR_RANKS, links)
    assert found.predicted_step_ns == pass_ns(step)
    assert found.better_layers_per_stage is not None
    after = run_of(EIGHT, found.better_layers_per_stage, FOUR_RANKS, slowness=slowness, links=links)
    assert found.better_step_ns == pass_ns(after)


@pytest.mark.parametrize("name", ["interleaved-1f1b", "looped-bfs"])
def test_of_several_stages_a_rank_the_sum_decides_and_the_longest_is_named(name: str) -> None:
    schedule = get(name).build(2, num_microbatches=4)
    layers = layers_of(*[100] * 8)
    counts, slowness = [2, 1, 2, 3], (1, 2)
    step = run_of(layers, counts, schedule, slowness=slowness)
    found = found_in(step, layers, counts, schedule)
    assert (found.stage, found.rank, found.device_factor) == (3, 1, 2.0)
    assert found.factor == 2.0, "four layers each, at twice the time"
    assert found.predicted_step_ns == pass_ns(step)
    assert found.better_layers_per_stage is not None
    after = run_of(layers, found.better_layers_per_stage, schedule, slowness=slowness)
    assert found.better_step_ns == pass_ns(after) < pass_ns(step)


def test_every_pass_of_a_step_counts() -> None:
    one = run_of(EIGHT, [2, 2, 2, 2], FOUR_RANKS, slowness=(1, 1, 2, 1))
    step = repeated(one, times=3, num_microbatches=8)
    found = find_slow_stage([step], layers=EIGHT, layers_per_stage=[2, 2, 2, 2], schedule=FOUR_RANKS, accumulation=3)
    assert found is not None
    assert found.step_ns == found.predicted_step_ns == 3 * pass_ns(one)
    assert found.better_step_ns == 3 * pass_ns(run_of(EIGHT, [3, 2, 1, 2], FOUR_RANKS, slowness=(1, 1, 2, 1)))


def test_one_odd_step_of_eight_does_not_change_the_finding() -> None:
    usual = run_of(EIGHT, [2, 2, 2, 2], FOUR_RANKS, slowness=(1, 1, 2, 1))
    odd = run_of(EIGHT, [2, 2, 2, 2], FOUR_RANKS, slowness=(9, 1, 1, 1))
    alone = found_in(usual, EIGHT, [2, 2, 2, 2], FOUR_RANKS)
    eight = [usual, odd, *[usual] * 6]
    found = find_slow_stage(eight, layers=EIGHT, layers_per_stage=[2, 2, 2, 2], schedule=FOUR_RANKS)
    assert found == replace(alone, num_steps=8)
    assert find_slow_stage(eight[:3], layers=EIGHT, layers_per_stage=[2, 2, 2, 2], schedule=FOUR_RANKS) is None, (
        "of three steps one says that rank 0 is slow"
    )


@pytest.mark.parametrize(
    ("second_rank", "is_slow"),
    [((1.3, 1.0, 1.25), False), ((1.3, 1.25, 1.28), True), ((1.3, 1.12), False), ((1.3,), True)],
)
def test_steps_that_differ_by_more_than_the_stages_name_none(second_rank: tuple[float, ...], is_slow: bool) -> None:
    """A tiny model for a few steps on a busy machine: by the medians stage 1 is slow in each of these runs."""
    schedule = get("1f1b").build(2, num_microbatches=8)
    layers = layers_of(*[10_000] * 8)
    steps = [run_of(layers, [4, 4], schedule, slowness=(1, slow)) for slow in second_rank]
    found = find_slow_stage(steps, layers=layers, layers_per_stage=[4, 4], schedule=schedule)
    assert (found is not None) is is_slow
    if found is not None:
        assert (found.stage, found.num_steps) == (1, len(second_rank))


@pytest.mark.parametrize("slowness", [(4, 6, 12), (3.9, 10.2), (25, 27, 30)])
def test_a_stage_beside_one_that_does_next_to_nothing_is_named_however_the_factor_varies(
    slowness: tuple[float, ...],
) -> None:
    """How many times as long it takes depends on a small number; that it does nearly everything, every step says."""
    schedule = get("1f1b").build(2, num_microbatches=8)
    layers = layers_of(*[10_000] * 8)
    steps = [run_of(layers, [4, 4], schedule, slowness=(1, slow)) for slow in slowness]
    found = find_slow_stage(steps, layers=layers, layers_per_stage=[4, 4], schedule=schedule)
    assert found is not None
    assert (found.stage, found.better_layers_per_stage) == (1, (7, 1))
    assert found.least_gain < found.gain


def test_a_gain_that_is_smaller_than_the_noise_proposes_no_cut() -> None:
    """One layer away from a steadily slow device gains 8 %; where the slowness swings by a quarter, that is noise."""
    schedule = get("1f1b").build(2, num_microbatches=8)
    layers = layers_of(*[10_000] * 12)

    def run(*slowness: float) -> SlowStage:
        steps = [run_of(layers, [6, 6], schedule, slowness=(1, slow)) for slow in slowness]
        found = find_slow_stage(steps, layers=layers, layers_per_stage=[6, 6], schedule=schedule)
        assert found is not None
        return found

    steady, varying = run(1.3, 1.3, 1.3), run(1.15, 1.3, 1.45)
    assert (steady.better_layers_per_stage, steady.least_gain) == ((7, 5), 0.01)
    assert (varying.better_layers_per_stage, varying.better_step_ns, varying.gain) == (None, None, 0.0)
    assert varying.least_gain == pytest.approx(2 * (1.17834 - 1.07586) / 3**0.5 / 1.13043, rel=1e-3)
    assert steady.gain < varying.least_gain


@pytest.mark.parametrize(("over", "is_slow"), [(1.08, False), (1.12, True)])
def test_a_tenth_above_the_others_is_slow(over: float, is_slow: bool) -> None:
    layers = layers_of(10_000, 10_000, round(10_000 * over), 10_000)
    step = run_of(layers, [1, 1, 1, 1], FOUR_RANKS)
    found = find_slow_stage([step], layers=layers, layers_per_stage=[1, 1, 1, 1], schedule=FOUR_RANKS)
    assert (found is not None) is is_slow


def test_medians_that_the_steps_do_not_bear_out_name_no_stage() -> None:
    """A busy machine: most microbatches of stage 0 take 1.3 times as long as those of stage 1, and a few of stage 1
    so much longer that its rank is the busier one. Nobody waits for rank 0."""
    schedule = get("1f1b").build(2, num_microbatches=8)
    layers = layers_of(5, 5, 5, 5)
    usual = {"0F": [13] * 8, "0B": [26] * 8, "1F": [10] * 8, "1B": [20] * 8}
    steady = of_durations(usual, schedule)
    assert found_in(steady, layers, [2, 2], schedule).stage == 0
    for late in (90, 130):
        step = of_durations({**usual, "1B": [20] * 5 + [20, 30, late]}, schedule)
        assert find_slow_stage([step], layers=layers, layers_per_stage=[2, 2], schedule=schedule) is None


def test_of_two_slow_ranks_the_one_that_is_far_from_the_busiest_is_not_named() -> None:
    """By its medians rank 1 is the slowest of three; rank 2 is a quarter busier still, and waits for nobody."""
    schedule = get("1f1b").build(3, num_microbatches=8)
    layers = layers_of(5, 5, 5)
    times = {"0F": [3] * 8, "0B": [7] * 8, "1F": [10] * 8, "1B": [22] * 8, "2F": [10] * 8}
    late = of_durations({**times, "2B": [20] * 5 + [20, 60, 90]}, schedule)
    assert find_slow_stage([late], layers=layers, layers_per_stage=[1, 1, 1], schedule=schedule) is None
    even = of_durations({**times, "2B": [20] * 8}, schedule)
    found = found_in(even, layers, [1, 1, 1], schedule)
    assert (found.stage, found.waiting_ranks) == (1, (0,)), "rank 2 is as busy, and does not wait"


def test_measured_over_profiled_time_is_told_of_every_rank() -> None:
    step = run_of(EIGHT, [1, 5, 1, 1], FOUR_RANKS, slowness=(3, 1, 1, 1))
    found = found_in(step, EIGHT, [1, 5, 1, 1], FOUR_RANKS)
    assert (found.rank, found.device_factor, found.rank_over_profile) == (1, 1.0, (3.0, 1.0, 1.0, 1.0))


def test_what_has_no_other_rank_or_holds_layers_twice_is_not_compared() -> None:
    alone = Schedule("one", Placement.linear(1), 1, ())
    both_ways = shuffled_streams(Placement.bidirectional(2), num_microbatches=2, split=False, seed=0)
    for schedule, counts in ((alone, [4]), (both_ways, [1, 1, 1, 1])):
        found = find_slow_stage([], layers=layers_of(1, 1, 1, 1), layers_per_stage=counts, schedule=schedule)
        assert found is None


def test_costs_that_say_nothing_still_give_an_answer() -> None:
    """All expected times are 0: what was measured is shared out among the layers of a stage."""
    nothing = layers_of(*[0] * 8)
    step = run_of(EIGHT, [2, 2, 2, 2], FOUR_RANKS, slowness=(1, 1, 2, 1))
    found = found_in(step, nothing, [2, 2, 2, 2], FOUR_RANKS)
    assert (found.stage, found.device_factor, found.predicted_step_ns) == (2, 1.0, pass_ns(step))
    assert found.rank_over_profile == (None, None, None, None)


RECORDED_MS = {
    "0F": (7.6, 6.9, 7.3, 7.1, 7.1, 7.2, 7.2, 7.3),
    "0B": (12.8, 12.5, 12.8, 12.9, 13.2, 12.8, 13.3, 13.7),
    "1F": (69.2, 47.0, 44.4, 44.0, 44.0, 43.6, 44.6, 44.4),
    "1B": (89.7, 82.6, 80.8, 81.0, 81.2, 82.1, 82.1, 81.4),
}
"""What one step took: embedding, eight blocks and head of a Llama, cut [2, 8] by hand, on two cores."""


def test_of_a_real_run_with_a_bad_cut_the_better_one_and_its_gain_are_known() -> None:
    """Its pass took 1071 ms; a run of the same model cut [5, 5] took 704 ms."""
    schedule = get("1f1b").build(2, num_microbatches=8)
    block = {"forward_ns": 7_000_000, "backward_input_ns": 8_000_000, "backward_weight_ns": 3_600_000}
    layers = [
        LayerCost("embed", 200_000, 0, 500_000),
        *(LayerCost(f"layers.{index}", **block) for index in range(8)),
        LayerCost("head", 800_000, 900_000, 800_000),
    ]
    step = of_durations(RECORDED_MS, schedule)
    assert pass_ns(step) / 1e6 == pytest.approx(1071, rel=0.01), "waiting is what the order makes of these durations"
    found = found_in(step, layers, [2, 8], schedule)
    assert (found.stage, found.layers[-1], found.cause, found.device_factor) == (1, "head", Cause.COMPUTE, 1.0)
    assert found.better_layers_per_stage == (5, 5)
    assert found.gain == pytest.approx(1 - 704 / 1071, abs=0.03)


def of_durations(times_ms: Mapping[str, Sequence[float]], schedule: Schedule) -> Timeline:
    """The step in which every action takes its own time and waits for what it needs."""
    free, arrival, spans = [0] * schedule.num_ranks, dict[Message, int](), []
    for step in flow(schedule).steps:
        action, needed = step.action, needed_by(step.action, schedule.placement)
        start = max(free[step.rank], arrival[needed] if needed is not None else 0)
        end = start + round(times_ms[f"{action.stage}{action.kind}"][action.microbatch] * 1e6)
        free[step.rank] = end
        spans.append(Span(step.rank, Row.COMPUTE, action, None, start, end))
        made = made_by(action, schedule.placement)
        if made is not None:
            arrival[made] = end
    return Timeline.of(spans, num_ranks=schedule.num_ranks)
