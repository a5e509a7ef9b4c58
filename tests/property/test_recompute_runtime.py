"""Every registered schedule with recomputations ahead of the backward, with the real executor, under NCCL's rules."""

from __future__ import annotations

import random

import pytest
import torch

from fullbore.ids import StageIndex
from fullbore.ir.action import Kind
from fullbore.schedules.recompute_ahead import recompute_ahead
from fullbore.simulate.memory import peak_activations
from fullbore.timeline.span import Row
from tests.support.in_memory import random_cases, run_alone, run_on_threads
from tests.support.runnable import RUNNABLE

CASES = random_cases(60, names=RUNNABLE, seed=24)


@pytest.mark.parametrize("case", range(0, 60, 20))
def test_gradients_activations_and_second_forwards_are_as_the_schedule_says(case: int) -> None:
    """On all stages, and on some: the others recompute inside their backward."""
    for number, one in enumerate(CASES[case : case + 20]):
        whole = one.schedule
        stages = [StageIndex(stage) for stage in range(whole.num_stages)]
        chosen = stages if number % 2 else random.Random(one.seed).sample(stages, k=(len(stages) + 1) // 2)
        schedule = recompute_ahead(whole, stages=chosen)
        outcome = run_on_threads(schedule, seed=one.seed, longest_delay_s=0.0008, recompute=True)
        assert not outcome.errors, f"{one}: {outcome.errors[0]}"
        reference = run_alone(schedule.placement.stages_per_stream, schedule.num_microbatches)
        assert outcome.loss == pytest.approx(reference.loss, rel=1e-12)
        assert outcome.gradients.keys() == reference.gradients.keys()
        for place, gradient in reference.gradients.items():
            torch.testing.assert_close(outcome.gradients[place], gradient, rtol=1e-12, atol=1e-14)
        assert outcome.peak_activations == peak_activations(schedule) == peak_activations(whole)
        backwards = [a for order in schedule.orders for a in order if a.kind.makes_input_gradient]
        assert sorted(outcome.recomputed) == sorted(
            (Row.COMPUTE if action.stage in chosen else Row.NESTED, str(action.of_kind(Kind.RECOMPUTE)))
            for action in backwards
        )


def test_the_cases_are_of_every_schedule() -> None:
    assert {case.name for case in CASES} == set(RUNNABLE)
