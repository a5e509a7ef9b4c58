"""Batches of every form on two real ranks: known faults of other systems, each with its right value."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fullbore.costs.stage import StageCost
from fullbore.errors import ScheduleError
from fullbore.schedules.registry import REGISTRY
from fullbore.simulate.engine import simulate
from fullbore.timeline.bubble import bubble_of
from tests.support import batch_ranks, evaluation_ranks, refusal_ranks
from tests.support.command import ROOT, run
from tests.support.evaluation_ranks import Evaluated
from tests.support.one_process import Trained
from tests.support.scenarios import run_scenarios

SCENARIOS = (
    batch_ranks.eight_samples_in_three,
    batch_ranks.ten_one_and_none,
    batch_ranks.labels_10_1_0,
    batch_ranks.nothing_counts,
    batch_ranks.nine_then_five,
    batch_ranks.shapes_of_rounds,
    batch_ranks.a_chain_of_uneven_lengths,
    batch_ranks.packed_documents,
    batch_ranks.views_of_other_numbers,
    batch_ranks.a_tied_sparse_embedding,
    refusal_ranks.two_samples_for_four,
    refusal_ranks.each_rank_draws,
    refusal_ranks.frozen_on_one_rank,
    refusal_ranks.one_rank_fails,
    evaluation_ranks.evaluated_in_between,
    evaluation_ranks.not_evaluated,
    evaluation_ranks.narrow_evaluation,
    evaluation_ranks.outputs_of_a_step,
)


@pytest.fixture(scope="module")
def seen() -> dict[str, list[Any]]:
    return run_scenarios(*SCENARIOS, num_ranks=2)


def assert_parity(by_rank: list[Trained]) -> None:
    """Every loss on every rank, and every gradient of the model on some rank."""
    held = {name for trained in by_rank for name in trained.gradients}
    assert held == set(by_rank[0].expected)
    for trained in by_rank:
        assert trained.losses == pytest.approx(trained.expected_losses, rel=1e-12)
        for name, gradient in trained.gradients.items():
            torch.testing.assert_close(gradient, trained.expected[name], rtol=1e-9, atol=1e-15)
            assert gradient.abs().max() > 0, name


def test_eight_samples_in_three_microbatches_are_exact(seen: dict[str, list[Any]]) -> None:
    """pytorch #126600: losses 1 to 8 have mean 4.5; 4.8333 is the mean of means, 4.8889 counts a repeated row."""
    for loss, shapes, gradient in seen["eight_samples_in_three"]:
        assert loss == 4.5
        assert shapes == [[3, 1], [3, 1], [2, 1]]
        assert gradient == pytest.approx(4.5)


def test_fewer_samples_than_microbatches_are_refused_with_what_would_do(seen: dict[str, list[Any]]) -> None:
    """pytorch #126600, PiPPy PR #795: no empty microbatch; the pipeline is as before."""
    for said, loss in seen["two_samples_for_four"]:
        assert "2 samples do not make 4 microbatches; use 4 samples or more, or at most 2 microbatches" in said
        assert loss == 1.0


def test_the_loss_is_a_mean_over_tokens_and_not_over_microbatches(seen: dict[str, list[Any]]) -> None:
    """transformers #24725: 15 / 11 and not 3.0; what has no counted token adds nothing, and no NaN."""
    for loss, gradient in seen["ten_one_and_none"]:
        assert loss == pytest.approx(15 / 11)
        assert gradient == pytest.approx(15 / 11)
    assert_parity(seen["labels_10_1_0"])


def test_a_batch_without_a_counted_token_gives_zero(seen: dict[str, list[Any]]) -> None:
    """Megatron-LM #936: 0 / 0 is 0 here, and so is every gradient."""
    for loss, gradients in seen["nothing_counts"]:
        assert loss == 0.0
        assert gradients
        assert all(gradient.abs().max() == 0 for gradient in gradients.values())


@pytest.mark.parametrize("name", ["nine_then_five", "shapes_of_rounds", "a_chain_of_uneven_lengths"])
def test_shapes_differ_between_microbatches_rounds_and_steps(name: str, seen: dict[str, list[Any]]) -> None:
    """DeepSpeed #3195, #4777: lengths 9 and 5, then 5 and 9; gradients add up over both steps."""
    assert_parity(seen[name])


def test_documents_in_one_row_are_as_alone(seen: dict[str, list[Any]]) -> None:
    """Padding-free: position ids start again, and no document sees another, in either stage."""
    assert_parity(seen["packed_documents"])


def test_a_sparse_gradient_of_a_tied_weight_is_added_to_its_dense_one(seen: dict[str, list[Any]]) -> None:
    assert_parity(seen["a_tied_sparse_embedding"])


def test_ranks_with_batches_of_their_own_are_refused(seen: dict[str, list[Any]]) -> None:
    """DeepSpeed #3131, #5729: other samples, other lengths, another number; never a plausible loss."""
    first, last = seen["each_rank_draws"]
    for rank, (numbers, lengths, *others) in enumerate((first, last)):
        for said in (numbers, lengths, others[2]):
            assert said.startswith("ConfigError: every rank reads the same batch, and these ranks were given different")
        begin = "ConfigError: rank 1 refuses this step: " if rank == 0 else "ConfigError: "
        for said, problem in zip(
            (others[0], others[1], others[3], others[4]),
            (
                "a sequence is taken as the",
                "every microbatch needs a sample, and 2",
                "weights are frozen before the",
                "outputs is a function of",
            ),
            strict=True,
        ):
            assert said.startswith(begin + problem)
        assert others[5].startswith("ModelError: every stage reads 'input_ids' from each microbatch (it holds labels)")


def test_conjugated_and_negated_views_are_their_numbers(seen: dict[str, list[Any]]) -> None:
    for losses in seen["views_of_other_numbers"]:
        assert losses == [-3.5, -3.5]


def test_what_one_rank_alone_has_frozen_is_named_and_nobody_waits(seen: dict[str, list[Any]]) -> None:
    """Before the pipeline is built. What it freezes of another rank's afterwards changes nothing at other sizes."""
    wanted = (
        "ConfigError: every rank has the same model, but in front of layer '1' rank 0 expects [2, 4] torch.float32 "
        "(its gradient comes back), and rank 1 [2, 4] torch.float32 (no gradient comes back); build it alike"
    )
    for before, again, *after in seen["frozen_on_one_rank"]:
        assert before.startswith(wanted)
        assert again.startswith(wanted.split("[2, 4]")[0])
        assert after == ["nothing", "nothing"]


def test_what_fails_on_one_rank_alone_is_heard_by_the_others(seen: dict[str, list[Any]]) -> None:
    """A refusal of its arguments; in building; in reading a batch, whatever it raises. Nobody waits for it."""
    (cut, built, read, loss), (cut_there, built_there, read_there, loss_there) = seen["one_rank_fails"]
    assert cut_there.startswith("ConfigError: layers_per_stage needs 2 counts")
    assert cut == cut_there.replace("ConfigError: ", "ConfigError: rank 1 cannot begin: ")
    assert "the disk is gone" in built_there
    assert built.startswith("ConfigError: rank 1 cannot begin: ")
    assert "the disk is gone" in built
    assert read_there == "OSError: the disk is gone"
    assert read == "ConfigError: rank 1 refuses this step: OSError: the disk is gone"
    assert loss == loss_there


def test_evaluation_is_that_of_one_process_and_leaves_no_trace(seen: dict[str, list[Any]]) -> None:
    """Megatron-Bridge PR #6025, pytorch #162822: before the first step, between additions, of any size, with dropout in
    the model; the steps are the same bits as without it."""
    pairs: list[tuple[Evaluated, Evaluated]] = list(
        zip(seen["evaluated_in_between"], seen["not_evaluated"], strict=True)
    )
    for watched, alone in pairs:
        assert watched.evaluated[0] == pytest.approx(watched.expected, rel=1e-12)
        assert all(gradient.abs().max() == 0 for gradient in watched.held_after_evaluation.values())
        assert watched.losses == alone.losses
        assert watched.weights.keys() == alone.weights.keys()
        assert all(torch.equal(watched.weights[name], alone.weights[name]) for name in alone.weights)
    first, last = seen["evaluated_in_between"]
    assert first.evaluated == last.evaluated
    assert len(first.evaluated) == 1 + 3 * 2 * 3
    assert all(math.isfinite(loss) for loss in first.evaluated)


def test_extra_outputs_reach_every_rank(seen: dict[str, list[Any]]) -> None:
    """NeMo #9146: a non-loss output of an evaluation, on the ranks without the last stage too."""
    for watched in seen["evaluated_in_between"]:
        assert len(watched.predictions) == 3
        assert all(map(torch.equal, watched.predictions, watched.expected_predictions))
        assert watched.asked_again == []
    for kept, unasked in seen["outputs_of_a_step"]:
        assert kept == [[2.0 * number] for number in range(1, 7)]
        assert unasked == []


def test_a_narrow_evaluation_is_the_same_finite_number_everywhere(seen: dict[str, list[Any]]) -> None:
    """DeepSpeed #3045, PR #3316: bfloat16, twice the training's microbatch."""
    (first, expected, step), (last, _, other) = seen["narrow_evaluation"]
    assert first == last == pytest.approx(expected, rel=1e-6)
    assert step == other
    assert math.isfinite(first)


def test_the_loss_is_the_global_one_on_every_rank(seen: dict[str, list[Any]]) -> None:
    """torchtitan #547, #931, #1232: not -1 or None on the ranks without the last stage."""
    for name in ("labels_10_1_0", "nine_then_five", "shapes_of_rounds"):
        first, last = seen[name]
        assert first.losses == last.losses == pytest.approx(first.expected_losses)


def test_evaluation_at_any_time_under_torchrun(tmp_path: Path) -> None:
    """NeMo #9146, torchtitan PR #1490: before the first step, and of sizes that m does not divide, on both ranks."""
    script = ROOT / "tests" / "support" / "own_evaluation.py"
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ran = run([*torchrun, str(script), str(tmp_path)], env={"OMP_NUM_THREADS": "1"})
    assert ran.code == 0, ran.err
    first, last = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == last
    assert first["sizes"] == [3, 1]
    assert len(first["told"]) == 7
    assert all(math.isfinite(value) and value > 0 for value in first["told"])
    assert first["told"][0] == first["told"][2], "the first step has not been applied yet"
    assert first["told"][5] < first["told"][0]


@pytest.mark.parametrize(("ranks", "microbatches", "bubble"), [(2, 1, 1 / 2), (4, 2, 3 / 5)])
def test_fewer_microbatches_than_ranks_take_the_predicted_time(ranks: int, microbatches: int, bubble: float) -> None:
    """torchtitan #775: (m + p - 1) slots. That they run, with parity, is shown in test_first_step.py."""
    for name, entry in REGISTRY.items():
        if entry.chunks == 1 and not entry.splits_backward and entry.runnable:
            schedule = entry.build(ranks, num_microbatches=microbatches)
            found = bubble_of(simulate(schedule, costs=[StageCost(10, 10, 10)] * ranks))
            assert found.makespan_ns == (microbatches + ranks - 1) * 30, name
            assert found.bubble_fraction == pytest.approx(bubble), name


def test_every_schedule_runs_any_small_number_of_microbatches_or_says_which() -> None:
    for ranks, microbatches in ((2, 1), (4, 1), (4, 2), (4, 3), (8, 3)):
        for entry in REGISTRY.values():
            said = "use "
            try:
                entry.build(ranks, num_microbatches=microbatches)
            except ScheduleError as error:
                said = str(error)
            assert "use " in said
