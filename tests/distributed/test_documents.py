"""Documents of uneven length through `fullbore verify` and `fullbore train`: however they are grouped, one loss."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from fullbore.config.load import load_run
from fullbore.data.corpus import open_corpus
from fullbore.labels import IGNORED_LABEL
from tests.support.command import TINY_LLAMA, fullbore
from tests.support.ranks import on_ranks

GROUPINGS = ("padded", "packed", "balanced")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short documents and long ones, of 1 to some 200 bytes."""
    source = random.Random(3)
    lengths = [max(1, int(source.lognormvariate(3, 0.8))) for _ in range(150)]
    path = tmp_path_factory.mktemp("documents") / "documents.jsonl"
    lines = [json.dumps({"text": "".join(source.choices("abcdefgh ", k=length))}) for length in lengths]
    path.write_text("\n".join(lines))
    return path


def options(text: Path, grouping: str, *more: str) -> list[str]:
    sizes = ("batch.microbatch_size=3", "pipeline.microbatches=4", "batch.accumulation=2", "data.sequence_length=48")
    return [f"data.source={text}", f"data.documents={grouping}", *sizes, *more]


def test_stages_see_each_document_alone_however_they_are_grouped(text: Path) -> None:
    """Parity with the same microbatches, and, in the row below, with each document in a microbatch of its own."""
    tiny = [value for value in TINY_LLAMA if value != "--set"]
    configs = [load_run(None, overrides=[*tiny, *options(text, g, "model.dtype=float64")]) for g in GROUPINGS]
    for grouping, report in zip(GROUPINGS, on_ranks("verify_all", configs, num_ranks=2)[0], strict=True):
        assert report.parity, (grouping, report.failures)
        assert report.undivided_batch.loss_relative_error < 1e-12, grouping
        assert report.undivided_batch.gradient_relative_error < 1e-12, grouping


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], list[Any], str]]:
    """(answer, lines of metrics, what was said) of three steps, by grouping."""
    found = {}
    for grouping in GROUPINGS:
        folder = tmp_path_factory.mktemp("runs") / grouping
        run = ("train.steps=3", "train.eval_every=3", "train.eval_batches=1", f"train.run_dir={folder}")
        pairs = [part for pair in options(text, grouping, *run) for part in ("--set", pair)]
        ran = fullbore("train", *TINY_LLAMA, *pairs, "--json")
        assert ran.code == 0, ran.err
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found[grouping] = (json.loads(ran.out), lines, ran.err)
    return found


def test_the_shown_loss_is_the_same_however_documents_are_grouped(
    trained: dict[str, tuple[dict[str, Any], list[Any], str]],
) -> None:
    """torchtitan #547, ColossalAI #5683: the loss that is printed and written is the global one, of rank 1's stage."""
    losses = [[line["loss"] for line in lines if "loss" in line] for _, lines, _ in trained.values()]
    held_out = [[line["eval_loss"] for line in lines if "eval_loss" in line] for _, lines, _ in trained.values()]
    assert all(5.4 < loss < 5.7 for loss in losses[0]), "log(256) = 5.545 before anything is learned"
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], rel=1e-5)
    for other in held_out[1:]:
        assert other == pytest.approx(held_out[0], rel=1e-5)
    for answer, lines, said in trained.values():
        assert answer["loss"] == [line["loss"] for line in lines if "loss" in line][-1]
        assert f"step 3/3  loss {answer['loss']:.4f}" in said
        assert f"held-out loss {answer['eval_loss']:.4f} over" in said
        assert "24 documents a step = 3 a microbatch" in said


def test_tokens_are_those_that_count(trained: dict[str, tuple[dict[str, Any], list[Any], str]], text: Path) -> None:
    """Padding is no token: the rate is of what the loss counts."""
    config = load_run(None, overrides=options(text, "padded"))
    order = open_corpus(config.data).training_order(config.data)
    for _, lines, _ in trained.values():
        for step, line in enumerate(line for line in lines if "loss" in line):
            rows = order.microbatches(24 * step, count=24, num_microbatches=8)
            counted = sum(int((row.labels != IGNORED_LABEL).sum()) for row in rows)
            assert line["tokens_per_s"] * line["step_ns"] / 1e9 == pytest.approx(counted)


def test_a_chain_of_modules_takes_no_packed_documents(text: Path) -> None:
    more = [part for pair in options(text, "packed") for part in ("--set", pair)]
    ran = fullbore("train", "--set", "model.factory=tests.support.faulty:with_weights", *more)
    assert ran.code == 2
    assert 'use data.documents = "padded", or "joined"' in ran.err
    assert "Traceback" not in ran.err
