"""`fullbore verify` on gloo processes: p = 1, 2, 4; every schedule; recomputation; tied and untied; both dtypes."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from fullbore.config.load import load_run
from fullbore.config.run import RunConfig
from fullbore.schedules.registry import REGISTRY
from tests.property.strategies import fits
from tests.support.command import TINY_LLAMA, fullbore
from tests.support.ranks import on_ranks
from tests.support.runnable import RUNNABLE

PAIRS = (
    ("none", "true", "float64"),
    ("full", "false", "float64"),
    ("full", "true", "float32"),
    ("none", "false", "float32"),
)


def cases(ranks: int) -> list[tuple[str, str, str, str]]:
    """Schedule, recomputation, tie, dtype. On one rank, and with several stages a rank, every two of them together."""
    every = list(product(("none", "full"), ("true", "false"), ("float64", "float32")))
    return [
        (name, *case)
        for name in RUNNABLE
        if fits(REGISTRY[name], ranks, 4, REGISTRY[name].chunks, {})
        for case in (every if ranks > 1 and REGISTRY[name].chunks == 1 else PAIRS)
    ]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text small enough to open 24 times."""
    folder = tmp_path_factory.mktemp("text")
    for number in range(4):
        lines = [f"line {line} of text {number}: {line * number % 97}\n" for line in range(200)]
        (folder / f"{number}.txt").write_text("".join(lines), encoding="utf-8")
    return folder


def config(text: Path, *more: str) -> RunConfig:
    tiny = [value for value in TINY_LLAMA if value != "--set"]
    return load_run(None, overrides=[*tiny, f"data.source={text}", "batch.microbatch_size=1", *more])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_parity_for_every_schedule_recomputation_tie_and_dtype(ranks: int, text: Path) -> None:
    configs = [
        config(
            text,
            *(f"pipeline.stages={ranks}", "pipeline.microbatches=4", "pipeline.partition=equal"),
            *(f"pipeline.schedule={name}", f"pipeline.recompute={recompute}"),
            *(f"model.config.tie_word_embeddings={tied}", f"model.dtype={dtype}"),
            f"model.config.num_hidden_layers={_blocks(name)}",
        )
        for name, recompute, tied, dtype in cases(ranks)
    ]
    reports = on_ranks("verify_all", configs, num_ranks=ranks)[0]
    for case, report in zip(cases(ranks), reports, strict=True):
        assert report.parity, (case, report.failures)
        tied = case[2] == "true"
        assert len(report.gradients) == 9 * _blocks(case[0]) + (2 if tied else 3)
        assert report.tolerance == {"float64": 1e-9, "float32": 1e-5}[case[3]]
        assert (report.optimizer, bool(report.adamw_parameters)) == (
            ("adamw", False) if case[3] == "float64" else ("sgd", True)
        )


def _blocks(name: str) -> int:
    """Enough for every stage of four ranks to have a layer; embedding and head are layers too."""
    return 4 * REGISTRY[name].chunks - 2 if REGISTRY[name].chunks > 1 else 4


def test_parity_with_uneven_chunks_groups_and_options(text: Path) -> None:
    """11 layers over 6 stages of two ranks; a last group shorter than the others; more warmup than Megatron-LM's."""
    configs = [
        config(
            text,
            *("pipeline.stages=2", "pipeline.partition=[1, 3, 2, 2, 2, 1]", "model.config.num_hidden_layers=9"),
            *("pipeline.chunks=3", "model.dtype=float64", *more),
        )
        for more in (
            ("pipeline.schedule=interleaved-1f1b", "pipeline.microbatches=5", "pipeline.options.group_size=3"),
            ("pipeline.schedule=interleaved-1f1b", "pipeline.microbatches=4", "pipeline.options.extra_warmup=2"),
            ("pipeline.schedule=looped-bfs", "pipeline.microbatches=1", "batch.accumulation=2"),
        )
    ]
    for report in on_ranks("verify_all", configs, num_ranks=2)[0]:
        assert report.parity, report.failures
        assert len(report.gradients) == 9 * 9 + 3


@pytest.mark.parametrize("more", [("pipeline.microbatches=1",), ("pipeline.microbatches=3", "batch.accumulation=2")])
def test_parity_with_fewer_microbatches_than_ranks_and_with_accumulation(more: tuple[str, ...], text: Path) -> None:
    four = config(text, "pipeline.stages=4", "model.dtype=float64", "pipeline.partition=equal", *more)
    report = on_ranks("verify_all", [four], num_ranks=4)[0][0]
    assert report.parity, report.failures


def test_one_gradient_scaled_on_purpose_fails(text: Path) -> None:
    """The proof can fail: 1.001 on one gradient of 39, in float32, and the loss hardly moves."""
    options = (*TINY_LLAMA, "--set", f"data.source={text}", "--set", "pipeline.microbatches=2")
    ran = fullbore("verify", *options, "--scale-gradient", "model.layers.1.mlp.up_proj.weight=1.001", "--json")
    assert ran.code == 1, ran.err
    document = json.loads(ran.out)
    assert document["parity"] is False
    assert document["loss"]["max_relative_error"] < 1e-5
    wrong = [entry["name"] for entry in document["gradients"] if entry["max_relative_error"] > 1e-5]
    assert wrong == ["model.layers.1.mlp.up_proj.weight"]
    assert "gradient model.layers.1.mlp.up_proj.weight: 1.00e-03" in document["failures"]


def test_the_command_answers_with_the_contracts_keys(text: Path) -> None:
    options = (*TINY_LLAMA, "--set", f"data.source={text}", "--set", "pipeline.microbatches=2")
    ran = fullbore("verify", *options, "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["parity"] is True
    assert {"parity", "loss", "gradients", "parameters", "undivided_batch", "not_comparable"} <= document.keys()
    assert all(entry.keys() == {"name", "max_relative_error"} for entry in document["gradients"])


def test_a_model_that_comes_with_weights_is_compared_from_its_own_weights(text: Path) -> None:
    """The pipeline trains the user's module in place; what it is compared with must start from before that."""
    options = ("--set", "model.factory=tests.support.faulty:with_weights", "--set", f"data.source={text}")
    ran = fullbore("verify", *options, "--set", "data.sequence_length=16", "--json")
    assert ran.code == 0, ran.out
    assert [entry["max_relative_error"] for entry in json.loads(ran.out)["initial_weights"]] == [0.0] * 5


def test_dropout_of_the_models_own_configuration_is_turned_off_and_said(text: Path, tmp_path: Path) -> None:
    """Attention dropout is a function call in transformers, so only the configuration tells."""
    config = {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "attention_dropout": 0.3}
    (tmp_path / "config.json").write_text(json.dumps({**config, **heads}))
    options = ("--set", f"model.hf={tmp_path}", "--set", f"data.source={text}", "--set", "data.sequence_length=16")
    ran = fullbore("verify", *options, "--set", "pipeline.microbatches=2", "--json")
    assert ran.code == 0, ran.out
    assert [note["what"] for note in json.loads(ran.out)["not_comparable"]] == ["dropout"]


@pytest.mark.parametrize(("factory", "noted"), [("batch_normed", "BatchNorm1d"), ("dropping", "dropout")])
def test_what_cannot_be_compared_is_said_and_never_called_a_fault(factory: str, noted: str, text: Path) -> None:
    options = ("--set", f"model.factory=tests.support.faulty:{factory}", "--set", f"data.source={text}")
    more = ("--set", "data.sequence_length=16", "--set", "pipeline.microbatches=2")
    ran = fullbore("verify", *options, *more, "--json")
    assert ran.code == 0, ran.out
    document = json.loads(ran.out)  # whatever user code prints, stdout is the answer alone
    assert noted in [note["what"] for note in document["not_comparable"]]
    assert "2.bias" not in [entry["name"] for entry in document["gradients"]] or factory == "dropping"


def test_a_fault_without_a_factor_is_refused() -> None:
    ran = fullbore("verify", "--scale-gradient", "model.norm.weight")
    assert ran.code == 2
    assert "NAME=FACTOR" in ran.err
