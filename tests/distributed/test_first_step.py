"""One step on real gloo processes: known faults of other systems, each with its right value worked out by hand."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import torch

from fullbore.costs.streams import stages_over
from fullbore.errors import ScheduleError
from fullbore.ids import StageIndex
from fullbore.models.sequential import sequential_model
from fullbore.simulate.memory import peak_activations
from fullbore.synthesis.catalogue import CATALOGUE
from tests.property.strategies import fits
from tests.support.held import peak_held_bytes
from tests.support.ranks import MODELS, Stepped, mlp4_batch, on_ranks
from tests.support.runnable import RUNNABLE

ONE_STAGE = [name for name in RUNNABLE if CATALOGUE[name].chunks == 1]
CHAIN_CASES = [(name, m) for name in ONE_STAGE for m in (1, 2, 4) if fits(CATALOGUE[name], 2, m, 1, {})]


@pytest.fixture(scope="module")
def chain() -> list[list[Stepped]]:
    return on_ranks("first_steps", "chain", CHAIN_CASES, 1.0, num_ranks=2)


def test_the_gradient_does_not_grow_with_the_number_of_microbatches(chain: list[list[Stepped]]) -> None:
    """DeepSpeed #7773: 270, 270, 180 for every m; summed instead of averaged it would be 1080 and 720."""
    for case in range(len(CHAIN_CASES)):
        first, last = chain[0][case], chain[1][case]
        assert (first.loss, last.loss) == (270.0, 270.0)
        assert first.gradients["0.weight"].item() == pytest.approx(270.0)
        assert last.gradients["1.weight"].item() == pytest.approx(180.0)


def test_clipping_uses_the_norm_over_all_stages(chain: list[list[Stepped]]) -> None:
    """torchtitan #596: 2-norms add in squares over stages, infinity norms take the maximum."""
    total = math.hypot(270.0, 180.0)
    for by_rank, name, gradient in ((chain[0], "0.weight", 270.0), (chain[1], "1.weight", 180.0)):
        for seen in by_rank:
            assert seen.norm == pytest.approx(total)
            assert seen.inf_norm == pytest.approx(270.0)
            assert seen.clipped[name].item() == pytest.approx(gradient / total, rel=1e-5)


@pytest.mark.parametrize(
    ("layers", "ranks", "microbatches"),
    [(4, 1, 4), (4, 2, 1), (4, 4, 2), (4, 2, 4), (4, 4, 4), (4, 4, 8), (8, 4, 4), (8, 4, 2)],
)
def test_loss_gradients_and_weights_are_those_of_one_process(layers: int, ranks: int, microbatches: int) -> None:
    """Several forwards before a backward (DeepSpeed #3900), m < p (torchtitan #775), equal weights (pytorch #139304).

    Where there are layers for it, also with several stages a rank. Evaluation gives the loss of the step.
    """
    cases = [(name, microbatches) for name in names_for(ranks, microbatches, layers=layers)]
    by_rank = on_ranks("first_steps", f"mlp{layers}", cases, 1.0, num_ranks=ranks)
    for case in range(len(cases)):
        initial = {key: value for rank in range(ranks) for key, value in by_rank[rank][case].initial.items()}
        loss, reference = _one_process(initial, microbatches)
        gradients = {key: value for rank in range(ranks) for key, value in by_rank[rank][case].gradients.items()}
        assert gradients.keys() == reference.keys()
        for key, gradient in reference.items():
            torch.testing.assert_close(gradients[key], gradient, rtol=1e-12, atol=1e-14)
        for rank in range(ranks):
            assert by_rank[rank][case].loss == pytest.approx(loss, rel=1e-13)
            assert by_rank[rank][case].evaluated == pytest.approx(loss, rel=1e-13)
            schedule = by_rank[rank][case].schedule
            assert by_rank[rank][case].peak_activations == peak_activations(schedule)[rank]
            held = {
                StageIndex(stage): number * 2 * (8 // microbatches) * 8 * 8  # input, output gradient
                for stage, number in enumerate(stages_over(by_rank[rank][case].layers_per_stage, schedule.placement))
            }
            assert by_rank[rank][case].peak_held_bytes == peak_held_bytes(schedule, held=held)[rank]


def names_for(ranks: int, microbatches: int, *, layers: int) -> list[str]:
    """Schedules that exist for these sizes and have a layer for each stage."""
    found = []
    for name in RUNNABLE:
        with suppress(ScheduleError):
            schedule = CATALOGUE[name].build(ranks, num_microbatches=microbatches)
            if schedule.placement.stages_per_stream <= layers:
                found.append(name)
    return found


def test_the_cases_above_have_several_stages_a_rank() -> None:
    for ranks, layers in ((1, 4), (2, 4), (4, 8)):
        assert {"1f1b", "interleaved-1f1b", "looped-bfs", "1f1b-v"} <= set(names_for(ranks, 4, layers=layers))
    assert {"looped-bfs", "1f1b-v"} <= set(names_for(2, 1, layers=4))
    for ranks, microbatches in ((2, 4), (4, 8)):
        assert {"dualpipe", "chimera"} <= set(names_for(ranks, microbatches, layers=4)), (
            "a rank holds two of its stages"
        )


TIED = [
    ("tied4", [("0.weight", "2.weight"), ("1.weight",), ("3.weight",)]),
    ("tied4-meta", [("0.weight", "1.weight", "2.weight"), ("3.weight",)]),
]


@pytest.mark.parametrize(("model", "weights"), TIED, ids=["0 and 2", "0, 1 and 2, from meta"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_stages_of_one_rank_that_share_a_weight_have_one(
    model: str, weights: list[tuple[str, ...]], ranks: int
) -> None:
    """Value, gradient summed over all uses once, one optimizer entry, counted once in the norm."""
    cases = [("interleaved-1f1b", 4), ("looped-bfs", 4)]
    by_rank = on_ranks("first_steps", model, cases, 1.0, num_ranks=ranks)
    for case in range(len(cases)):
        initial = {key: value for rank in range(ranks) for key, value in by_rank[rank][case].initial.items()}
        assert sorted(initial) == sorted(users[0] for users in weights)
        reference = _tied_in_one_process(model, initial)
        norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in reference.values()))
        for rank in range(ranks):
            seen = by_rank[rank][case]
            here = [users for users in weights if ranks == 1 or any(int(user[0]) % 2 == rank for user in users)]
            assert seen.num_parameters == len(here)
            assert sorted(seen.gradients) == sorted(users[0] for users in here)
            for name, gradient in seen.gradients.items():
                assert torch.equal(seen.initial[name], initial[name])
                torch.testing.assert_close(gradient, reference[name], rtol=1e-12, atol=1e-14)
            assert seen.norm == pytest.approx(norm, rel=1e-12)


def _tied_in_one_process(model: str, initial: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gradients under the names of the weights' first users."""
    module = sequential_model(MODELS[model][0]()).whole().module
    assert len(list(module.parameters())) == len(initial), "the reference has lost a tie"
    with torch.no_grad():
        for name, weight in module.named_parameters():
            weight.copy_(initial[name])
    batch = mlp4_batch()
    for rows in torch.arange(8).chunk(4):
        (((module(batch["inputs"][rows]) - batch["targets"][rows]) ** 2).sum() / 64).backward()
    return {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}


def test_identical_layers_start_differently_and_the_same_for_every_number_of_ranks() -> None:
    """pytorch #139304: each stage seeding itself alike makes stages start equal."""
    drawn = {
        ranks: {
            key: value
            for seen in on_ranks("first_steps", "mlp4", [("1f1b", 4)], 1.0, num_ranks=ranks)
            for key, value in seen[0].initial.items()
        }
        for ranks in (1, 2, 4)
    }
    weights = [value for key, value in drawn[1].items() if key.endswith("0.weight")]
    assert len(weights) == 4
    assert all(not torch.equal(a, b) for i, a in enumerate(weights) for b in weights[:i])
    for ranks in (2, 4):
        assert drawn[ranks].keys() == drawn[1].keys()
        assert all(torch.equal(drawn[ranks][key], drawn[1][key]) for key in drawn[1])


def _one_process(initial: dict[str, torch.Tensor], microbatches: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Plain PyTorch on the same weights and microbatches: tanh of linear, layer after layer."""
    weights = {key: value.clone().requires_grad_() for key, value in initial.items()}
    batch = mlp4_batch()
    total = 0.0
    for rows in torch.arange(8).chunk(microbatches):
        value = batch["inputs"][rows]
        for layer in range(len(initial) // 2):
            value = torch.tanh(value @ weights[f"{layer}.0.weight"].T + weights[f"{layer}.0.bias"])
        loss = ((value - batch["targets"][rows]) ** 2).sum() / 64
        loss.backward()
        total += float(loss.detach())
    return total, {key: weight.grad for key, weight in weights.items() if weight.grad is not None}


def test_a_tied_weight_counts_once_and_norms_cover_all_stages() -> None:
    """Gradients 3 and 4 give 5 and a factor of 0.2 (not 1/3 and 1/4); a tied scalar's true gradient is 7."""
    for rank, seen in enumerate(on_ranks("tied_scalar", num_ranks=2)):
        assert seen.norms_3_and_4 == (5.0, 4.0)
        assert seen.clipped == pytest.approx((0.6, 0.8)[rank], rel=1e-6)
        assert seen.reduced == 7.0
        assert seen.norm == pytest.approx(7.0), "not 5, and not 9.899"
        assert not any(math.isfinite(norm) for norm in seen.norm_with_nan), "every rank sees that one is not finite"
        assert seen.owns is (rank == 0)


def test_copies_of_a_users_tied_weight_are_made_equal() -> None:
    """Without a seed each rank built another value; the owner's counts from the start."""
    (first, gradients), (last, other_gradients) = on_ranks("unseeded_tied", False, num_ranks=2)
    assert first == last
    assert torch.equal(gradients["0.weight"], other_gradients["0.weight"])


def test_a_frozen_tied_weight_gets_no_gradient() -> None:
    for weights, gradients in on_ranks("unseeded_tied", True, num_ranks=2):
        assert len(weights) == 16
        assert "0.weight" not in gradients


def test_a_failed_pipeline_says_so_and_a_narrow_one_refuses_torchs_optimizers() -> None:
    failed, again, narrow = on_ranks("reused_after_failure", num_ranks=1)[0]
    assert failed.startswith("RankFailed: rank 0 failed in 0F0")
    assert "ValueError: no loss today" in failed
    assert again == "ConfigError: this pipeline has failed in an earlier step and cannot go on; build a new one"
    assert narrow.startswith("ConfigError: a torch optimizer cannot update torch.bfloat16 weights")
    assert "fullbore.MasterOptimizer" in narrow


def test_a_stage_may_overwrite_what_it_receives() -> None:
    """As the unsplit model may; a received tensor is a leaf, which autograd lets nobody overwrite."""
    (loss, first, weights), (_, last, other_weights) = on_ranks("in_place_at_the_cut", num_ranks=2)
    held = {name: value.clone().requires_grad_() for name, value in {**weights, **other_weights}.items()}
    inputs = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4)
    hidden = torch.relu(inputs @ held["0.weight"].T + held["0.bias"] + 1.0)
    expected = ((hidden @ held["2.weight"].T + held["2.bias"]) ** 2).sum() / 16
    expected.backward()
    assert loss == pytest.approx(float(expected.detach()), rel=1e-12)
    for name, gradient in {**first, **last}.items():
        torch.testing.assert_close(gradient, held[name].grad, rtol=1e-12, atol=1e-14)


def test_gradients_of_a_tied_weight_add_up_over_steps() -> None:
    """What was summed over ranks in the first step is not summed again in the second."""
    alone = on_ranks("two_steps_of_a_tied_weight", 1, num_ranks=1)[0]
    for by_rank in on_ranks("two_steps_of_a_tied_weight", 2, num_ranks=2):
        torch.testing.assert_close(by_rank["0.weight"], alone["0.weight"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("cut", "ConfigError: all ranks need the same layers_per_stage"),
        ("batch", "ConfigError: every rank reads the same batch, and these ranks were given different ones"),
    ],
)
def test_ranks_that_were_given_different_things_are_refused(what: str, said: str) -> None:
    """DeepSpeed #3131: mixed samples give a plausible loss; two cuts lose a layer."""
    assert all(answer.startswith(said) for answer in on_ranks("disagreement", what, num_ranks=2))


def test_what_does_not_fit_the_announced_boundary_is_never_sent() -> None:
    """Under autocast a layer gives bfloat16 where float32 was announced; half a buffer would be filled."""
    first, _ = on_ranks("disagreement", "autocast", num_ranks=2)
    assert first.startswith("RankFailed: rank 0 made [8, 8] torch.bfloat16 as the activation of stage 0, microbatch 0")
    assert "expects [8, 8] torch.float32" in first


def test_the_first_step_and_evaluation_of_compiled_layers_may_take_as_long_as_start_up() -> None:
    """Each rank compiles when it comes to it, and others wait. Afterwards the timeout counts again."""
    first, second = on_ranks("slow_to_compile", num_ranks=2)
    assert first[:3] == second[:3] == ["270.0"] * 3
    assert first[3] == "TransferStalled"
