"""`fullbore verify` on gloo processes: p = 1, 2, 4; every schedule; recomputation; tied and untied; both dtypes."""

from __future__ import annotations

import json
import re
import sys
from itertools import product
from pathlib import Path

import pytest

from fullbore.config.load import load_run
from fullbore.config.run import RunConfig
from fullbore.synthesis.catalogue import CATALOGUE
from tests.property.strategies import fits
from tests.support.command import TINY_LLAMA, fullbore, run
from tests.support.ranks import on_ranks
from tests.support.runnable import RUNNABLE, TWO_STREAMS

LONG = (pytest.mark.slow, pytest.mark.timeout(1800))
"""More than a hundred verifications in one group of processes."""

PAIRS = (
    ("none", "true", "float64"),
    ("full", "false", "float64"),
    ("full", "true", "float32"),
    ("none", "false", "float32"),
)


def cases(ranks: int, settings: str) -> list[tuple[str, str, str, str]]:
    """Schedule, recomputation, tie, dtype: for each schedule one of the pairs in turn, all of them (every two settings
    together; of those with two streams every second), or the whole product."""
    product_of_all = tuple(product(("none", "full"), ("true", "false"), ("float64", "float32")))
    found = []
    for number, name in enumerate(RUNNABLE):
        pairs = PAIRS[number % 2 :: 2] if name in TWO_STREAMS else PAIRS
        chosen = {"in turn": (PAIRS[(number + ranks) % 4],), "pairs": pairs, "product": product_of_all}[settings]
        if microbatches(name, ranks):
            found += [(name, *case) for case in chosen]
    return found


def microbatches(name: str, ranks: int) -> int | None:
    """Four, or eight for a schedule that needs more; None where it does not exist for so many ranks."""
    entry = CATALOGUE[name]
    return next((count for count in (4, 8) if fits(entry, ranks, count, entry.chunks, {})), None)


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


@pytest.mark.parametrize(
    ("ranks", "settings"),
    [
        pytest.param(2, "in turn", marks=pytest.mark.timeout(300)),
        *(pytest.param(ranks, "pairs", marks=LONG) for ranks in (1, 2, 4)),
        *(pytest.param(ranks, "product", marks=LONG) for ranks in (2, 4)),
    ],
)
def test_parity_for_every_schedule_recomputation_tie_and_dtype(ranks: int, settings: str, text: Path) -> None:
    configs = [
        config(
            text,
            *(f"pipeline.stages={ranks}", "pipeline.partition=equal"),
            *(f"pipeline.microbatches={microbatches(name, ranks)}",),
            *(f"pipeline.schedule={name}", f"pipeline.recompute={recompute}"),
            *(f"model.config.tie_word_embeddings={tied}", f"model.dtype={dtype}"),
            f"model.config.num_hidden_layers={_blocks(name)}",
        )
        for name, recompute, tied, dtype in cases(ranks, settings)
    ]
    reports = on_ranks("verify_all", configs, num_ranks=ranks)[0]
    for case, report in zip(cases(ranks, settings), reports, strict=True):
        assert report.parity, (case, report.failures)
        tied = case[2] == "true"
        assert len(report.gradients) == 9 * _blocks(case[0]) + (2 if tied else 3)
        assert report.tolerance == {"float64": 1e-9, "float32": 1e-5}[case[3]]
        assert (report.optimizer, bool(report.adamw_parameters)) == (
            ("adamw", False) if case[3] == "float64" else ("sgd", True)
        )


def _blocks(name: str) -> int:
    """Enough for every stage of four ranks to have a layer; embedding and head are layers too."""
    return 4 * CATALOGUE[name].chunks - 2 if CATALOGUE[name].chunks > 1 else 4


@pytest.mark.parametrize(
    ("ranks", "in_turn"),
    [
        pytest.param(2, True, marks=pytest.mark.timeout(300)),
        *(pytest.param(ranks, False, marks=LONG) for ranks in (2, 4)),
    ],
)
def test_parity_for_every_schedule_where_only_a_part_trains(ranks: int, in_turn: bool, text: Path) -> None:
    """Frozen stages and low-rank adapters, in turn or both; an odd number of microbatches, where the schedule exists
    for it."""
    asked = []
    for number, name in enumerate(RUNNABLE):
        sizes = [m for m in (2 * ranks + 1, 2 * ranks) if fits(CATALOGUE[name], ranks, m, CATALOGUE[name].chunks, {})]
        both = (("frozen", number // 2 % 2), ("adapted", (number // 2 + 1) % 2))
        for model, recompute in both[number % 2 :][:1] if in_turn else both:
            asked.append((name, sizes[0], model, ("none", "full")[recompute]))
    assert sum(microbatches % 2 for _, microbatches, *_ in asked) > len(asked) // 2
    configs = [
        undropped(
            text,
            *(f"pipeline.stages={ranks}", f"pipeline.microbatches={m}", "batch.microbatch_size=1"),
            *(
                f"pipeline.schedule={name}",
                f"pipeline.recompute={recompute}",
                "data.sequence_length=8",
                "model.dtype=float64",
            ),
            f"model.factory=tests.support.partly_trained:{model}",
        )
        for name, m, model, recompute in asked
    ]
    for case, report in zip(asked, on_ranks("verify_all", configs, num_ranks=ranks)[0], strict=True):
        assert report.parity, (case, report.failures)
        assert len(report.gradients) == {"frozen": 9 * 6 - 9 - 1 + 2, "adapted": 6 * 2 * 2}[case[2]]


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


def test_it_fails_where_nobody_reads_stderr(text: Path) -> None:
    """The command and its ranks say what they are at, before there is a verdict."""
    settings = ("--set", f"data.source={text}", "--set", "pipeline.microbatches=2")
    wrong = (*TINY_LLAMA, *settings, "--steps", "1", "--scale-gradient", "model.norm.weight=2")
    command = (sys.executable, "-m", "fullbore", "verify", *wrong)
    ran = run(["bash", "-c", 'exec "$@" 2> >(exec true)', "bash", *command])
    assert ran.code == 1, ran.out
    assert "NO parity in float32" in ran.out


def test_the_command_answers_with_the_contracts_keys(text: Path) -> None:
    options = (*TINY_LLAMA, "--set", f"data.source={text}", "--set", "pipeline.microbatches=2")
    ran = fullbore("verify", *options, "--steps", "2", "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert document["parity"] is True
    assert {"parity", "loss", "gradients", "parameters", "undivided_batch", "not_comparable"} <= document.keys()
    assert all(entry.keys() == {"name", "max_relative_error"} for entry in document["gradients"])
    said = [
        line for line in ran.err.splitlines() if not line.startswith("warning: the costs of some layers are uncertain")
    ]
    assert said[4:] == [
        "measuring 6 layers: to cut them",
        "looking for randomness",
        *(f"pipeline: step {step} of 2 with {name}" for name in ("sgd", "adamw") for step in (1, 2)),
        *(f"reference: step {step} of 2 with {name}" for name in ("sgd", "adamw") for step in (1, 2)),
        "reference: the batch undivided",
    ], "what takes long says where it is, on stderr"


def test_a_model_that_comes_with_weights_is_compared_from_its_own_weights(text: Path) -> None:
    """The pipeline trains the user's module in place; what it is compared with must start from before that."""
    options = ("--set", "model.factory=tests.support.faulty:with_weights", "--set", f"data.source={text}")
    ran = fullbore("verify", *options, "--set", "data.sequence_length=16", "--json")
    assert ran.code == 0, ran.out
    assert [entry["max_relative_error"] for entry in json.loads(ran.out)["initial_weights"]] == [0.0] * 5


def test_layers_that_are_cut_already_are_not_measured(text: Path) -> None:
    """Nobody compares times here, and the order of 1f1b does not depend on them."""
    options = (*TINY_LLAMA, "--set", f"data.source={text}", "--set", "pipeline.microbatches=2")
    ran = fullbore("verify", *options, "--steps", "1", "--set", "pipeline.partition=[2,4]")
    assert ran.code == 0, ran.err
    assert "measuring" not in ran.err
    assert "parity in float32" in ran.out


@pytest.mark.parametrize(("command", "cut"), [("train", "profile"), ("verify", "profile"), ("verify", "equal")])
def test_a_model_in_which_nothing_trains_is_refused(command: str, cut: str, text: Path, tmp_path: Path) -> None:
    """Whether its layers are measured or not."""
    settings = ("model.factory=tests.support.faulty:frozen", f"data.source={text}", "data.sequence_length=16")
    settings += (f"pipeline.partition={cut}",)
    more = (*settings, f"train.run_dir={tmp_path / 'run'}", "pipeline.microbatches=2", "train.device=cpu")
    ran = fullbore(command, *(part for setting in more for part in ("--set", setting)))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith(
        "fullbore: nothing in this model trains: none of its weights has requires_grad, so"
    )
    assert not (tmp_path / "run").exists(), "the same command runs once the model is mended"


def test_layers_that_do_not_fit_are_named(text: Path) -> None:
    settings = ("model.factory=tests.support.faulty:mismatched", f"data.source={text}", "data.sequence_length=16")
    more = (*settings, "pipeline.microbatches=2", "train.device=cpu")
    ran = fullbore("verify", *(part for setting in more for part in ("--set", setting)))
    assert (ran.code, ran.out) == (2, "")
    assert "layer '2' of Sequential cannot take what the layer before it gives" in ran.err.splitlines()[-1]


DROPPED = ("model.factory=tests.support.stochastic:functional_dropout", "data.sequence_length=16")
LLAMA = ("model.config.attention_dropout=0.3", "model.config.num_hidden_layers=2")


def undropped(text: Path, *more: str) -> RunConfig:
    """Configurations that keep every other default."""
    return load_run(None, overrides=[f"data.source={text}", "train.device=cpu", "pipeline.partition=equal", *more])


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, (4,)), (2, (2, 4))])
def test_dropout_is_on_and_there_is_parity(ranks: int, microbatches: tuple[int, ...], text: Path) -> None:
    """pytorch #55036. As a module, as a function call and in a Hugging Face block; kept and recomputed."""
    configs = [
        make(
            text,
            *(*more, f"pipeline.stages={ranks}", f"pipeline.microbatches={m}", f"pipeline.recompute={recompute}"),
            *("model.dtype=float64", f"train.seed={m}"),
        )
        for make, more in ((undropped, DROPPED), (config, LLAMA))
        for m in microbatches
        for recompute in ("none", "full")
    ]
    for report in on_ranks("verify_all", configs, num_ranks=ranks)[0]:
        assert report.parity, report.failures
        assert [note.what for note in report.not_comparable] == ["the batch undivided"]
        assert report.undivided_batch is None
        assert len(report.gradients) in (5, 21)


def test_random_numbers_that_no_key_reaches_are_named_and_never_called_a_fault(text: Path) -> None:
    """Verified without them, in evaluation mode; refused where it is random in evaluation as well."""
    configs = [
        undropped(text, f"model.factory=tests.support.stochastic:{name}", "data.sequence_length=16")
        for name in ("own_generator", "between_layers")
    ]
    own, between = on_ranks("verify_all", configs, num_ranks=2)[0]
    for report, what in (
        (own, "random numbers that are not drawn from torch's own generators"),
        (between, "random numbers drawn outside of the layers (before 'block')"),
    ):
        assert report.parity, report.failures
        assert [note.what for note in report.not_comparable] == [what]
        assert report.undivided_batch is not None
    always = ("--set", "model.factory=tests.support.stochastic:always_random", "--set", "data.sequence_length=16")
    ran = fullbore("verify", *always, "--set", f"data.source={text}")
    assert ran.code == 2
    assert "a model that is random in evaluation mode as well cannot be compared" in ran.err


def test_batch_statistics_are_said_and_compared_with_the_same_microbatches(text: Path) -> None:
    """torchgpipe #9, #14: running statistics too. A bias that a BatchNorm takes away has no gradient to compare."""
    factory = ("--set", "model.factory=tests.support.faulty:batch_normed", "--set", f"data.source={text}")
    ran = fullbore("verify", *factory, "--set", "data.sequence_length=16", "--set", "pipeline.microbatches=2", "--json")
    assert ran.code == 0, ran.out
    document = json.loads(ran.out)  # whatever user code prints, stdout is the answer alone
    said = {note["what"]: note["why"] for note in document["not_comparable"]}
    assert "compared against one process running the same microbatches" in said["BatchNorm1d"]
    assert "2.bias" not in [entry["name"] for entry in document["gradients"]]
    kept = {entry["name"]: entry["max_relative_error"] for entry in document["buffers"]}
    assert kept.keys() == {"3.running_mean", "3.running_var", "3.num_batches_tracked"}
    assert max(kept.values()) <= 1e-5


def test_clipping_in_every_step_of_twenty_is_within_the_tolerance(text: Path) -> None:
    """torchtitan PR #4312, #4711: it says where the first bit differs, and never that all are equal."""
    options = (*TINY_LLAMA, "--set", f"data.source={text}", "--set", "pipeline.microbatches=2")
    ran = fullbore("verify", *options, "--set", "optimizer.clip_norm=0.05", "--steps", "20")
    assert ran.code == 0, ran.out
    assert "parity in float32" in ran.out
    assert re.search(
        r"^first difference: the (loss|gradient|initial|parameter).* within the 1e-05 .* same bits$",
        ran.out,
        re.MULTILINE,
    )
    assert "bitwise" not in ran.out


def test_a_fault_without_a_factor_is_refused() -> None:
    ran = fullbore("verify", "--scale-gradient", "model.norm.weight")
    assert ran.code == 2
    assert "NAME=FACTOR" in ran.err
