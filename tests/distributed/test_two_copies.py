"""The model held twice, in opposite directions: one process's numbers, and copies that stay equal bit by bit."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
import torch

from fullbore.schedules.registry import REGISTRY
from fullbore.simulate.memory import peak_activations
from tests.distributed.test_numbers import assert_parity
from tests.support import chains, copies_ranks
from tests.support.copies_ranks import MICROBATCHES, SCHEDULES, Looked, Survived, projected
from tests.support.ranks import SQUARED_ERROR
from tests.support.scenarios import run_scenarios
from tests.support.trained_run import Run

SCENARIOS = (
    copies_ranks.every_model,
    copies_ranks.two_steps_that_add_up,
    copies_ranks.outputs_in_order,
    copies_ranks.float16_with_a_skipped_step,
    copies_ranks.different_modules,
    copies_ranks.unusual_buffers,
    copies_ranks.refused_writes,
    copies_ranks.refused_weights,
    copies_ranks.refusals,
)


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 4])
def seen(request: pytest.FixtureRequest) -> dict[str, list[Any]]:
    """Two ranks hold the whole model each; four hold half of it."""
    return run_scenarios(*SCENARIOS, num_ranks=request.param)


def test_three_steps_are_those_of_one_process_and_the_copies_have_the_same_bits(seen: dict[str, list[Any]]) -> None:
    """Tied, untied, frozen, adapters, recomputed, dropout, a loss of a layer's own, a weight that only one stream uses,
    boundaries that are not alike: losses, gradients of the first step, parameters after three optimizer steps with
    clipping."""
    by_rank: list[dict[tuple[str, str], Run]] = seen["every_model"]
    for case in by_rank[0]:
        runs = [runs[case] for runs in by_rank]
        assert all(run.copies_equal == (True,) * 3 for run in runs), case
        assert all(run.norms == runs[0].norms for run in runs), case
        assert_parity(runs, within=1e-9)


def test_every_rank_holds_two_stages_and_counts_its_own_once(seen: dict[str, list[Any]]) -> None:
    runs = [by_case["untied", "dualpipe"] for by_case in seen["every_model"]]
    ranks = len(runs)
    holders = Counter(name for run in runs for name in run.seen.parameters)
    assert set(holders.values()) == {2}
    assert sum(run.num_states for run in runs) == len(holders) == len(runs[0].expected.parameters)
    assert all(run.num_states < run.num_weights for run in runs), "no rank owns all that it holds"
    tied = Counter(name for by_case in seen["every_model"] for name in by_case["tied", "dualpipe"].seen.parameters)
    assert tied["0.weight"] == 2, "embedding and head meet on the first rank and on the last, as one weight each"
    for schedule in SCHEDULES:
        expected = peak_activations(REGISTRY[schedule].build(ranks, num_microbatches=MICROBATCHES))
        assert tuple(by_case["untied", schedule].peak for by_case in seen["every_model"]) == expected


def test_a_weight_that_nothing_uses_has_no_gradient_and_keeps_its_value(seen: dict[str, list[Any]]) -> None:
    """A zero in its place would let AdamW's decay shrink it."""
    for by_case in seen["every_model"]:
        run: Run = by_case["used sometimes", "dualpipe"]
        never = [name for name in run.seen.parameters if name.endswith("never")]
        assert never
        assert all(torch.equal(run.seen.parameters[name], torch.ones(3, 3).double()) for name in never)
        assert not any(name in run.seen.gradients for name in never)
        assert any(name.endswith("seldom") for name in run.seen.gradients)


def test_what_earlier_steps_have_added_up_is_not_summed_again(seen: dict[str, list[Any]]) -> None:
    two, one = seen["two_steps_that_add_up"][0]
    assert two.keys() == one.keys()
    for name, gradient in one.items():
        torch.testing.assert_close(two[name], gradient, rtol=1e-9, atol=1e-14)


def test_evaluation_and_outputs_are_those_of_one_stream_in_the_order_of_the_batch(seen: dict[str, list[Any]]) -> None:
    rows = [1 + index % 5 for index in range(MICROBATCHES)]
    expected = [float(index) for index, count in enumerate(rows) for _ in range(count)]
    for by_schedule in seen["outputs_in_order"]:
        one: Looked = by_schedule["1f1b"]
        for schedule in SCHEDULES:
            two: Looked = by_schedule[schedule]
            assert two.outputs == one.outputs == [expected[: sum(rows[:5])], expected]
            assert two.evaluated == pytest.approx(one.evaluated, rel=1e-12)
            assert two.loss == pytest.approx(one.loss, rel=1e-12)
            assert two.asked_again == []


def test_a_skipped_step_in_float16_is_skipped_by_both_copies(seen: dict[str, list[Any]]) -> None:
    first: Survived = seen["float16_with_a_skipped_step"][0]
    assert first.finite[2] is False
    assert first.finite[3] is True
    assert first.scales[3] == first.scales[2] / 2
    for survived in seen["float16_with_a_skipped_step"]:
        assert survived == first
        assert (survived.untouched, survived.equal, survived.changed) == (True, True, True)


def test_copies_of_a_users_own_module_are_made_equal(seen: dict[str, list[Any]]) -> None:
    """And the loss is one process's with the weights that all have then."""
    held: dict[str, torch.Tensor] = {}
    owners: Counter[str] = Counter()
    for _, weights, owned in seen["different_modules"]:
        owners.update(name for name, mine in owned.items() if mine)
        for name, weight in weights.items():
            assert torch.equal(held.setdefault(name, weight), weight), name
    assert len(held) == 12, "weights, biases and buffers of four layers"
    assert set(owners.values()) == {1}
    model = projected()
    model.load_state_dict(held)
    batch = chains.batch()
    with torch.no_grad():
        expected = float(SQUARED_ERROR.loss_sum(model(batch["inputs"]), batch)) / SQUARED_ERROR.count(batch)
    (loss,) = {loss for loss, _, _ in seen["different_modules"]}
    assert loss == pytest.approx(expected, rel=1e-12)


def test_buffers_that_not_every_operation_takes_are_made_equal_and_watched(seen: dict[str, list[Any]]) -> None:
    values: dict[str, torch.Tensor] = {}
    holders: Counter[str] = Counter()
    for held, losses, (first, *changed, layout, form) in seen["unusual_buffers"]:
        for name, buffer in held.items():
            assert torch.equal(values.setdefault(name, buffer), buffer), name
            holders[name] += 1
        assert (first, losses) == ("nothing", seen["unusual_buffers"][0][1])
        for said, name in zip(changed, ("repeated", "conjugated"), strict=True):
            assert f"ModelError: dualpipe holds the model twice, and a forward changes Unusual.{name}: each" in said
        refused = "dualpipe holds the model twice, and Unusual.sparse is of layout torch.sparse_coo, in which one copy"
        assert re.match(rf"ModelError: {refused}|ConfigError: rank \d cannot begin: {refused}", layout)
        assert re.match(
            r"ModelError: dualpipe holds the model twice, and 1\.repeated has another form on rank \d \(\[8, 8\]\) "
            r"than on rank \d \(\[8, 8\], expanded over dimension 1\); build the same model on every rank",
            form,
        )
    assert sorted(holders.values()) == [2, 2]


def test_a_forward_that_writes_into_a_buffer_is_refused_by_every_rank(seen: dict[str, list[Any]]) -> None:
    """What no class says beforehand is seen in the first step, however it is written, and no loss is given. What is
    made anew and comes to the same is as it was."""
    for by_way in seen["refused_writes"]:
        for how, written in by_way.items():
            first, *others = written.said
            if how == "the same":
                assert written.losses == pytest.approx([written.one_way] * 2, rel=1e-9)
                continue
            assert written.losses == (), how
            assert first.startswith(
                "ModelError: dualpipe holds the model twice, and a forward changes Averaging.mean: each copy sees"
            ), how
            assert all("this pipeline has failed in an earlier step" in after for after in others)


def test_a_forward_that_writes_into_a_weight_with_copies_is_refused_by_every_rank(seen: dict[str, list[Any]]) -> None:
    """One copy would be renormalized by its own tokens: they drift, and nothing says so."""
    known = "0.weight lives on several ranks (it is tied, or the model is held twice), and Embedding(max_norm=1) writes"
    for at_once, first, second, loss in seen["refused_weights"]:
        assert re.match(
            rf"ModelError: {re.escape(known)}|ConfigError: rank \d cannot begin: {re.escape(known)}", at_once
        )
        assert first.startswith(
            "ModelError: a weight that lives on several ranks (it is tied, or the model is held twice)"
        )
        assert "something wrote into 3.weight in this one" in first
        assert second.startswith("ConfigError: this pipeline has failed in an earlier step")
        assert loss == seen["refused_weights"][0][3]


def test_what_cannot_be_held_twice_is_refused_by_every_rank(seen: dict[str, list[Any]]) -> None:
    last = len(seen["refusals"]) - 1
    twice = "dualpipe holds the model twice, and BatchNorm1d keeps running statistics"
    for counting, partly, one_way, counting_later in seen["refusals"]:
        assert re.match(rf"ModelError: {twice}|ConfigError: rank \d cannot begin: {twice}", counting)
        assert re.match(rf"ModelError: {twice}|ConfigError: rank \d refuses this step: {twice}", counting_later)
        assert partly.startswith(f"ConfigError: all ranks freeze the same weights, but rank {last} and rank 0 hold 0.")
        assert one_way.startswith("ScheduleError: to run, both streams have microbatches")
