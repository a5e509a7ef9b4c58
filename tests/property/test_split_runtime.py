"""Schedules that split backwards, with the real executor, under NCCL's rules, and engines that wait."""

from __future__ import annotations

import random
from itertools import product

import pytest
import torch

from fullbore.costs.stage import StageCost
from fullbore.errors import TransferStalled
from fullbore.ids import MicrobatchIndex, StageIndex
from fullbore.ir.action import Kind
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Schedule
from fullbore.runtime.emulated import EmulatedEngine
from fullbore.simulate.memory import peak_activations
from tests.property.strategies import shuffled
from tests.support.held import peak_held_bytes
from tests.support.in_memory import both_directions_on_one, held_by_linear, run_alone, run_on_threads
from tests.support.split_schedules import mixed, one_forward_one_input, v_shaped
from tests.support.two_ways import shuffled_streams
from tests.timetable import schedule_of


def cases() -> list[Schedule]:
    """1F1B split and half split, in a V, and 60 valid orders that nobody would write, over several placements; and such
    orders over two streams."""
    source = random.Random(3)
    known = [make(p, m) for make in (one_forward_one_input, mixed) for p in (1, 2, 4, 8) for m in (1, 3, 8)]
    places = [Placement.loop, Placement.snake]
    drawn = [
        shuffled(
            source.choice(places)(source.randint(1, 4), num_chunks=source.randint(1, 3)),
            num_microbatches=source.randint(1, 7),
            split=True,
            seed=source.randrange(10**6),
        )
        for _ in range(60)
    ]
    two_ways = [
        shuffled_streams(Placement.bidirectional(p), num_microbatches=m, split=split, seed=p * m)
        for p, m, split in product((1, 2, 3, 4), (2, 5), (False, True))
    ]
    return [*known, *(v_shaped(m) for m in (1, 5)), *drawn, *two_ways]


CASES = cases()


@pytest.mark.parametrize("part", range(6))
def test_random_delays_never_hang_and_gradients_activations_and_held_bytes_are_as_computed(part: int) -> None:
    for number, schedule in list(enumerate(CASES))[part::6]:
        outcome = run_on_threads(schedule, seed=number, longest_delay_s=0.0008)
        assert not outcome.errors, f"{schedule}: {outcome.errors[0]}"
        reference = run_alone(schedule.placement.stages_per_stream, schedule.num_microbatches)
        assert outcome.loss == pytest.approx(reference.loss, rel=1e-12)
        assert outcome.gradients.keys() == reference.gradients.keys()
        for place, gradient in reference.gradients.items():
            torch.testing.assert_close(outcome.gradients[place], gradient, rtol=1e-12, atol=1e-14)
        assert outcome.peak_activations == peak_activations(schedule)
        assert outcome.peak_held_bytes == peak_held_bytes(schedule, held=held_by_linear(schedule))


def test_what_held_bytes_are_compared_with_counts_each_microbatch_from_its_i_to_its_w() -> None:
    held = {StageIndex(stage): 10**stage for stage in range(4)}
    assert peak_held_bytes(one_forward_one_input(4, 8), held=held) == (1, 20, 300, 4000)
    assert peak_held_bytes(one_forward_one_input(2, 5, lag=9), held=held) == (5, 50)
    assert peak_held_bytes(mixed(2, 5), held=held) == (2, 20)
    assert peak_held_bytes(v_shaped(3), held=held) == (3003, 330)
    whole = schedule_of([0], ["0F0 0B0"], num_microbatches=1)
    assert peak_held_bytes(whole, held=held) == (0,), "a whole backward holds nothing"


def test_in_the_order_of_the_reference_not_a_bit_differs() -> None:
    schedule = one_forward_one_input(4, 7)
    outcome, reference = run_on_threads(schedule), run_alone(4, 7)
    assert all(torch.equal(outcome.gradients[stage], gradient) for stage, gradient in reference.gradients.items())


@pytest.mark.parametrize("schedule", [one_forward_one_input(4, 8), v_shaped(4)], ids=["1f1i", "v"])
def test_a_shallow_receive_depth_is_enough(schedule: Schedule) -> None:
    assert not run_on_threads(schedule, prefetch=1, longest_delay_s=0.0005).errors


def test_both_directions_on_one_communicator_hang() -> None:
    outcome = run_on_threads(one_forward_one_input(4, 8), communicator_of=both_directions_on_one, timeout_s=0.5)
    assert isinstance(outcome.errors[0], TransferStalled)


def test_an_emulated_stage_waits_for_each_half_and_is_live_until_the_second(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("fullbore.runtime.emulated.time.sleep", waited.append)
    engine = EmulatedEngine(StageCost(3_000_000, 5_000_000, 2_000_000), input_bytes=8, output_bytes=4)
    first = MicrobatchIndex(0)
    assert engine.kinds == set(Kind)
    engine.forward(first, {}, None)
    (gradient,) = engine.backward_input(first, None) or ()
    assert gradient.numel() == 8
    assert (engine.num_live, waited) == (1, [0.003, 0.005])
    engine.backward_weight(first)
    assert (engine.num_live, waited) == (0, [0.003, 0.005, 0.002])
