"""Recomputation as an action, on gloo processes: the bits of recomputation inside the backward; and emulated, in the
bubble."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fullbore.report.run import predicted_timeline
from fullbore.runtime.processes.launch import launch
from fullbore.timeline.bubble import bubble_of
from fullbore.timeline.span import Row
from fullbore.trace.reader import read_trace
from tests.support.ahead_ranks import BLOCKS, Case, Compared
from tests.support.command import TINY_LLAMA, fullbore
from tests.support.ranks import PRELOAD
from tests.support.split_ranks import MODELS

MOSTLY = [name for name in MODELS if name != "unknown"]
SCHEDULES = [("1f1b", 3), ("zb-h1", 3), ("interleaved-1f1b", 4)]


def compare(cases: list[Case], *, num_ranks: int = 2) -> list[list[Compared]]:
    """By case and rank."""
    by_rank = launch("tests.support.ahead_ranks:compare_all", cases, num_ranks=num_ranks, preload=PRELOAD)
    return [list(ranks) for ranks in zip(*by_rank, strict=True)]


def assert_same(case: Case, ranks: list[Compared]) -> None:
    for rank, seen in enumerate(ranks):
        where = f"{case}, rank {rank}"
        ahead, inside = seen.ahead, seen.inside
        assert seen.different == (), where
        assert ahead.losses == inside.losses, where
        assert ahead.norm == inside.norm, where
        assert all(torch.equal(*pair) for pair in zip(ahead.outputs, inside.outputs, strict=True)), where
        assert len(ahead.outputs) == case.microbatches * case.accumulation
        assert ahead.peak == ahead.simulated_peak == inside.peak, where
        assert ahead.peak_held_bytes == inside.peak_held_bytes, where
        assert not inside.actions
        assert {row for row, _ in inside.recomputed} <= {Row.NESTED}, where
    assert sum(len(seen.ahead.gradients) for seen in ranks) > 0
    assert sum(len(seen.ahead.actions) for seen in ranks) > 0


@pytest.mark.parametrize(("schedule", "m"), [*SCHEDULES, ("dualpipe", 4)])
def test_two_ranks(schedule: str, m: int) -> None:
    """m odd or two stages a rank, of one stream or of two; lengths and numbers of samples uneven, two steps that add
    up; tied over ranks, frozen, adapters, dropout, a loss in chunks, bfloat16 and float16."""
    models = {"1f1b": MOSTLY, "dualpipe": ("dropped", "half")}.get(schedule, ("tied", "dropped", "adapted", "half"))
    cases = [Case(model, schedule, m) for model in models]
    for case, ranks in zip(cases, compare(cases), strict=True):
        assert_same(case, ranks)
        for seen in ranks:
            assert seen.ahead.recomputed == tuple((Row.COMPUTE, action) for action in seen.ahead.actions)


def test_some_layers_and_two_rounds_a_step() -> None:
    """One layer of the last stage: the first has nothing to recompute, and no R."""
    cases = [Case("tied", name, m, BLOCKS[-1:], accumulation=2) for name, m in SCHEDULES]
    for case, (first, last) in zip(cases, compare(cases), strict=True):
        assert_same(case, [first, last])
        assert not first.ahead.actions
        assert len(last.ahead.actions) == case.microbatches
        assert [row for row, _ in last.ahead.recomputed] == [Row.COMPUTE] * 2 * case.microbatches


def test_a_stage_and_its_mirror_recompute_the_same_layer() -> None:
    """One layer of the last stage, which either rank holds for one direction: half of the microbatches each."""
    cases = [Case("tied", name, 4, BLOCKS[-1:], accumulation=2) for name in ("dualpipe", "chimera")]
    for case, ranks in zip(cases, compare(cases), strict=True):
        assert_same(case, ranks)
        assert [{int(action[0]) for action in seen.ahead.actions} for seen in ranks] == [{2}, {1}]
        for seen in ranks:
            assert len(seen.ahead.actions) == case.microbatches // 2
            assert [row for row, _ in seen.ahead.recomputed] == [Row.COMPUTE] * case.microbatches


@pytest.mark.slow
def test_verify_finds_the_numbers_of_one_process() -> None:
    sets = [
        "pipeline.recompute=full",
        "pipeline.recompute_ahead=true",
        "model.dtype=float64",
        "pipeline.schedule=zb-h1",
    ]
    ran = fullbore("verify", "--steps", "1", *TINY_LLAMA, *(part for one in sets for part in ("--set", one)), "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["parity"] is True


def test_emulated_it_is_done_while_the_gradient_is_on_its_way(tmp_path: Path) -> None:
    """The drawing of `fullbore.schedules.recompute_ahead`, with real processes. Of time only the order is asserted: the
    rank has recomputed before the gradient is there, and waits for it after."""
    layer = {"forward_ns": 20_000_000, "backward_input_ns": 20_000_000, "backward_weight_ns": 0, "output_bytes": 8}
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"layers": [{"name": name, **layer} for name in ("a", "b")]}))
    found = {}
    for ahead in ("true", "false"):
        folder = tmp_path / ahead
        sets = ['pipeline.recompute=["a", "b"]', f"pipeline.recompute_ahead={ahead}", "pipeline.microbatches=2"]
        sets += ["train.steps=3", f"train.run_dir={folder}"]
        ran = fullbore("train", "--emulate", str(costs), *(part for one in sets for part in ("--set", one)), "--json")
        assert ran.code == 0, ran.err
        answer = json.loads(ran.out)
        predicted = predicted_timeline(folder)
        assert predicted is not None
        assert bubble_of(predicted).makespan_ns == answer["predicted_step_ns"]
        trace = read_trace(folder)
        spans = [s for s in trace.timeline(trace.steps[-1]).spans if s.rank == 0 and s.row in (Row.COMPUTE, Row.WAIT)]
        rank = [(span.row, str(span.action)) for span in sorted(spans, key=lambda span: span.start_ns)]
        found[ahead] = rank, answer["predicted_step_ns"]
    rank, predicted_ns = found["true"]
    assert [action for row, action in rank if row is Row.COMPUTE] == ["0F0", "0F1", "0R0", "0B0", "0R1", "0B1"]
    assert rank.index((Row.COMPUTE, "0R0")) < rank.index((Row.WAIT, "0B0")) < rank.index((Row.COMPUTE, "0B0"))
    assert predicted_ns == 160_000_000
    rank, predicted_ns = found["false"]
    assert [action for row, action in rank if row is Row.COMPUTE] == ["0F0", "0F1", "0B0", "0B1"]
    assert predicted_ns == 180_000_000
