"""Sizes that users of other systems saw refused, hang or lose layers, and that simply run here: embedding and head are
layers, and a group of microbatches need not be the number of ranks (accelerate #2497; NeMo-RL PR #1126; pytorch PR
#137783). What is refused stands in tests/unit/cli/test_refused_before_start.py."""

from __future__ import annotations

from pathlib import Path

from fullbore.config.load import load_run
from tests.support.command import TINY_LLAMA
from tests.support.ranks import on_ranks

INTERLEAVED = ("pipeline.schedule=interleaved-1f1b", "pipeline.chunks=2")


def test_two_ranks_train_one_block_and_four_stages_train_three_exactly(tmp_path: Path) -> None:
    (tmp_path / "0.txt").write_text("".join(f"line {n} {n * n % 97}\n" for n in range(900)), encoding="utf-8")
    tiny = [value for value in TINY_LLAMA if value != "--set"]
    every = (f"data.source={tmp_path}", "batch.microbatch_size=1", "model.dtype=float64", "pipeline.stages=2")
    cases = {
        1: ("pipeline.microbatches=4",),
        2: (*INTERLEAVED, "pipeline.microbatches=3", "pipeline.options.group_size=3"),
        3: (*INTERLEAVED, "pipeline.microbatches=4"),
    }
    configs = [
        load_run(None, overrides=[*tiny, *every, f"model.config.num_hidden_layers={blocks}", *more])
        for blocks, more in cases.items()
    ]
    reports = on_ranks("verify_all", configs, num_ranks=2)[0]
    for blocks, report in zip(cases, reports, strict=True):
        assert report.parity, (blocks, report.failures)
        assert len(report.gradients) == 9 * blocks + 3
