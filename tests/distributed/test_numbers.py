"""The numbers on real ranks: what users of other systems found wrong in silence, each with its right value."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.support import chains, number_ranks
from tests.support.number_ranks import Half, Skipped
from tests.support.scenarios import run_scenarios
from tests.support.trained_run import Run

SCENARIOS = (
    number_ranks.auxiliary_losses,
    number_ranks.sum_over_a_given_count,
    number_ranks.tied_copies,
    number_ranks.clipped_in_float32,
    number_ranks.every_part_trains,
    number_ranks.frozen_stages,
    number_ranks.frozen_afterwards,
    number_ranks.trees,
    number_ranks.peaks,
    number_ranks.narrow_gradients,
    number_ranks.a_step_is_skipped,
    number_ranks.float16,
    number_ranks.bytes_by_microbatches,
)


@pytest.fixture(scope="module")
def seen() -> dict[str, list[Any]]:
    return run_scenarios(*SCENARIOS, num_ranks=2)


def assert_parity(by_rank: list[Run], *, within: float = 1e-9) -> None:
    """Losses on every rank; every gradient of the first step and every parameter after the last, on some rank."""
    expected = by_rank[0].expected
    assert {name for run in by_rank for name in run.seen.parameters} == set(expected.parameters)
    assert {name for run in by_rank for name in run.seen.gradients} == set(expected.gradients)
    for run in by_rank:
        assert run.seen.losses == pytest.approx(expected.losses, rel=within)
        for ours, theirs in (
            (run.seen.gradients, expected.gradients),
            (run.seen.parameters, expected.parameters),
            (run.seen.buffers, expected.buffers),
        ):
            for name, tensor in ours.items():
                error = (tensor - theirs[name]).abs().max() / theirs[name].abs().max()
                assert error <= within, (name, float(error))


def test_an_auxiliary_loss_of_a_middle_layer_trains_it_for_every_number_of_microbatches(
    seen: dict[str, list[Any]],
) -> None:
    """Automodel PR #1412, torchtitan PR #2061: dropped on middle stages, or growing with m."""
    for microbatches in (1, 4):
        assert_parity([by_m[microbatches] for by_m in seen["auxiliary_losses"]])
    one, four = (seen["auxiliary_losses"][0][m] for m in (1, 4))
    assert one.seen.losses == pytest.approx(four.seen.losses, rel=1e-9)
    assert one.norms == pytest.approx(four.norms, rel=1e-9)


def test_a_sum_over_a_count_that_the_user_gives_is_divided_before_backward(seen: dict[str, list[Any]]) -> None:
    """torchtitan #2972: the loss was right, 270, and the gradients four times too large, 1080 and 720."""
    gradients = {}
    for loss, mine in seen["sum_over_a_given_count"]:
        assert loss == 270.0
        gradients |= {name: gradient.item() for name, gradient in mine.items()}
    assert gradients == pytest.approx({"0.weight": 270.0, "1.weight": 180.0})


def test_copies_of_a_tied_weight_stay_equal_bit_by_bit_and_count_once(seen: dict[str, list[Any]]) -> None:
    """Megatron-LM #656, #299: after some steps the embedding on the first and last stage were two tensors."""
    by_rank: list[Run] = seen["tied_copies"]
    assert all(run.copies_equal == (True,) * 20 for run in by_rank)
    assert all("0.weight" in run.seen.parameters for run in by_rank), "both stages hold it"
    assert_parity(by_rank)
    assert sum(run.num_states for run in by_rank) == len(by_rank[0].expected.parameters) == 25


def test_clipping_in_every_step_stays_within_the_tolerance(seen: dict[str, list[Any]]) -> None:
    """torchtitan PR #4312, #4711: the norm's last digits leak into float32 weights; equal bits are not promised."""
    by_rank: list[Run] = seen["clipped_in_float32"]
    for run in by_rank:
        assert all(norm > 0.05 for norm in run.norms), "the clip is active"
        assert run.norms == by_rank[0].norms
    assert_parity(by_rank, within=1e-5)


def test_every_weight_of_every_stage_changes(seen: dict[str, list[Any]]) -> None:
    """Lightning #5644: the loss fell, and only rank 0's part ever changed."""
    by_rank: list[Run] = seen["every_part_trains"]
    assert [(run.changed, run.num_weights) for run in by_rank] == [(13, 13), (13, 13)]
    assert_parity(by_rank)


@pytest.mark.parametrize("which", ["tanh", "last", "first", "between"])
def test_stages_without_trainable_weights_run(which: str, seen: dict[str, list[Any]]) -> None:
    """DeepSpeed #1522, #5078: they hung or crashed in the norm or in the optimizer. Clip on."""
    by_rank: list[Run] = [cases[which] for cases in seen["frozen_stages"]]
    assert_parity(by_rank)
    trained = {"tanh": (4, 0), "last": (4, 0), "first": (0, 4), "between": (2, 2)}[which]
    assert tuple(run.changed for run in by_rank) == trained
    assert tuple(len(run.seen.gradients) for run in by_rank) == trained
    assert by_rank[0].norms == by_rank[1].norms
    assert all(norm > 0 for norm in by_rank[0].norms)


def test_freezing_after_the_pipeline_is_built_is_refused_on_every_rank(seen: dict[str, list[Any]]) -> None:
    """What crosses between stages is settled by then: an unfrozen first stage would get no gradient, silently."""
    (frozen_0, unfrozen_0), (frozen_1, unfrozen_1) = seen["frozen_afterwards"]
    assert frozen_1.startswith(
        "ConfigError: weights are frozen before the pipeline is built, but 1.weight was trainable"
    )
    assert unfrozen_0.startswith(
        "ConfigError: weights are frozen before the pipeline is built, but 0.weight was frozen"
    )
    for other, (rank, told) in ((frozen_0, (1, frozen_1)), (unfrozen_1, (0, unfrozen_0))):
        assert other == told.replace("ConfigError: ", f"ConfigError: rank {rank} refuses this step: ", 1)


CUTS = [(name, cut) for name in chains.CHAINS for cut in range(1, 4) if (name, cut) != ("everything", 3)]


@pytest.mark.parametrize(("name", "cut"), CUTS)
def test_what_later_layers_read_travels_along_the_pipe(name: str, cut: int, seen: dict[str, list[Any]]) -> None:
    """pytorch #127964: stages can only talk to neighbours; fairscale PR #243: a ReLU in place at a cut."""
    by_rank: list[Run] = [found[name, cut] for found in seen["trees"]]
    assert_parity(by_rank)


def test_activations_alive_are_those_of_the_schedule(seen: dict[str, list[Any]]) -> None:
    """DeepSpeed #4602: min(p - rank, m), so a second microbatch costs memory on the first stage."""
    first, last = seen["peaks"]
    assert [(first["1f1b", m], last["1f1b", m]) for m in (1, 2, 8)] == [(1, 1), (2, 1), (2, 1)]
    assert [(first["gpipe", m], last["gpipe", m]) for m in (1, 2, 8)] == [(1, 1), (2, 2), (8, 8)]


def test_activations_alive_on_four_ranks() -> None:
    by_rank = run_scenarios(number_ranks.peaks, num_ranks=4)["peaks"]
    assert [peaks["1f1b", 8] for peaks in by_rank] == [4, 3, 2, 1]
    assert [peaks["gpipe", 8] for peaks in by_rank] == [8, 8, 8, 8]


def test_bfloat16_gradients_of_many_microbatches_lose_nothing(seen: dict[str, list[Any]]) -> None:
    """64 equal ones: added in bfloat16 they lose 0.8 %; each one's own rounding is 0.4 % at most, and here the same."""
    assert all(error < 1e-6 for error in seen["narrow_gradients"])


@pytest.mark.parametrize("where", ["input", "gradient of stage 1", "target"])
def test_a_step_that_is_not_finite_changes_nothing_on_any_rank(where: str, seen: dict[str, list[Any]]) -> None:
    """Megatron-DeepSpeed PR #434: one NaN in one microbatch, and all weights were NaN. Statistics come back too."""
    for by_case in seen["a_step_is_skipped"]:
        skipped: Skipped = by_case[where]
        assert skipped.finite == (True, False, True)
        assert skipped.untouched
        assert skipped.went_on
        assert set(skipped.counters) == {2.0}


def test_float16_finds_its_scale_on_all_ranks_together_and_learns(seen: dict[str, list[Any]]) -> None:
    """Overflow anywhere skips everywhere and halves; gradients and masters are float32."""
    first, last = seen["float16"]
    half: Half = first
    assert (first.losses, first.scales, first.finite, first.state) == (
        last.losses,
        last.scales,
        last.finite,
        last.state,
    )
    skipped = half.finite.index(True)
    assert 0 < skipped < 12, "it began too high"
    assert sum(half.finite) >= 4
    for scale, finite, following in zip(half.scales, half.finite, half.scales[1:], strict=False):
        assert following == scale * (1 if finite else 0.5)
    assert half.losses[: skipped + 1] == (half.losses[0],) * (skipped + 1), "no weight moved before"
    assert half.losses[0] == pytest.approx(math.log(97), abs=0.5)
    assert half.losses[-1] < half.losses[0] - 0.2
    assert half.dtypes == {torch.float32}
    assert half.state["scale"] == half.scales[-1] * (1 if half.finite[-1] else 0.5)


def test_memory_of_gradients_is_one_copy_and_activations_fall_as_microbatches_shrink(
    seen: dict[str, list[Any]],
) -> None:
    """marin #6532: at a fixed batch, parameter-sized copies were kept for each microbatch."""
    for by_m in seen["bytes_by_microbatches"]:
        assert all(gradients == parameters == 2 * 1024 * 1025 * 4 for gradients, parameters, _ in by_m.values())
        kept = [by_m[m][2] for m in (4, 8, 16, 32)]
        assert all(0 < more * 0.55 > less for more, less in pairwise(kept)), kept
