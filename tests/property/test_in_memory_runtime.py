"""Every registered schedule, with the real executor, under NCCL's rules: FIFO, rendezvous, no tags."""

from __future__ import annotations

import pytest
import torch

from fullbore.errors import TransferStalled
from fullbore.simulate.memory import peak_activations
from fullbore.synthesis.catalogue import CATALOGUE
from tests.support.held import peak_held_bytes
from tests.support.in_memory import both_directions_on_one, held_by_linear, random_cases, run_alone, run_on_threads
from tests.support.runnable import RUNNABLE

CASES = random_cases(200, names=RUNNABLE, seed=20)


@pytest.mark.parametrize("case", range(0, 200, 20))
def test_random_delays_never_hang_and_never_change_a_bit(case: int) -> None:
    for one in CASES[case : case + 20]:
        schedule = one.schedule
        outcome = run_on_threads(schedule, seed=one.seed, longest_delay_s=0.0008)
        assert not outcome.errors, f"{one}: {outcome.errors[0]}"
        reference = run_alone(schedule.placement.stages_per_stream, schedule.num_microbatches)
        assert outcome.loss == pytest.approx(reference.loss, rel=1e-12)
        assert outcome.gradients.keys() == reference.gradients.keys()
        for place, gradient in reference.gradients.items():
            torch.testing.assert_close(outcome.gradients[place], gradient, rtol=1e-12, atol=1e-14)
        assert outcome.peak_activations == peak_activations(schedule)
        assert outcome.peak_held_bytes == peak_held_bytes(schedule, held=held_by_linear(schedule))


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_both_directions_on_one_communicator_hang(ranks: int) -> None:
    """The test above can fail: with one communicator a rank pair, plain 1F1B deadlocks."""
    schedule = CATALOGUE["1f1b"].build(ranks, num_microbatches=8)
    outcome = run_on_threads(schedule, communicator_of=both_directions_on_one, timeout_s=0.5)
    assert outcome.errors
    assert isinstance(outcome.errors[0], TransferStalled)


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_shallow_receive_depth_is_enough(name: str) -> None:
    schedule = CATALOGUE[name].build(4, num_microbatches=8)
    assert not run_on_threads(schedule, prefetch=1, longest_delay_s=0.0005).errors


def test_the_cases_have_several_stages_a_rank_and_options() -> None:
    assert {case.name for case in CASES} == set(RUNNABLE)
    assert {case.sizes.num_chunks for case in CASES} == {1, 2, 3}
    assert {case.sizes.options.get("group_size", 0) > case.sizes.num_ranks for case in CASES} == {True, False}


@pytest.mark.parametrize(("ranks", "expected"), [(2, (2, 1)), (4, (4, 3, 2, 1))])
def test_activations_alive_under_1f1b_do_not_grow_with_microbatches(ranks: int, expected: tuple[int, ...]) -> None:
    """Known from DeepSpeed #4602: min(p - rank, m) on every rank, whatever m is; all forwards first keeps m."""
    for microbatches in (ranks, 2 * ranks, 6 * ranks):
        one = run_on_threads(CATALOGUE["1f1b"].build(ranks, num_microbatches=microbatches))
        assert one.peak_activations == expected
        all_first = run_on_threads(CATALOGUE["gpipe"].build(ranks, num_microbatches=microbatches))
        assert all_first.peak_activations == (microbatches,) * ranks
    assert run_on_threads(CATALOGUE["1f1b"].build(ranks, num_microbatches=1)).peak_activations == (1,) * ranks
