"""Configurations that users of other systems saw hang, drop samples, or fail deep in a library after start-up.

Here each is refused by the command itself, with the nearest values that would do, before a worker is forked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fullbore.cli.main import main
from tests.unit.cli.test_main import run

_STARTS = "multiprocessing.popen_forkserver"
"""What starting a worker imports."""


@pytest.fixture(autouse=True)
def no_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of None fails: a command that came as far as starting a worker would end in an ImportError."""
    monkeypatch.setitem(sys.modules, _STARTS, None)


def refused(capsys: pytest.CaptureFixture[str], folder: Path, command: str, *pairs: str) -> str:
    """What the command says, having left nothing behind."""
    run_dir = () if command == "verify" else (f"train.run_dir={folder / 'run'}",)
    sets = tuple(part for pair in (*pairs, *run_dir) for part in ("--set", pair))
    code, out, err = run(capsys, command, *sets)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert not (folder / "run").exists()
    return err


def test_a_configuration_that_runs_does_come_to_starting_a_worker(tmp_path: Path) -> None:
    """Or the fixture would prove nothing."""
    with pytest.raises(ImportError, match="popen_forkserver"):
        main(["train", "--set", f"train.run_dir={tmp_path / 'run'}"])


@pytest.mark.parametrize("command", ["train", "verify"])
@pytest.mark.parametrize(
    ("pairs", "problem", "instead"),
    [
        pytest.param(
            ("pipeline.stages=4", "model.config.num_hidden_layers=1"),
            "(embed and head count as one each), and 4 stages are too many for 3 layers",
            "(pipeline.stages=4, pipeline.chunks=1); use at most pipeline.stages=3",
            id="accelerate 2497: more ranks than layers",
        ),
        pytest.param(
            ("pipeline.stages=2", "pipeline.chunks=4"),
            "1f1b has 1 stage per rank (num_chunks=4)",
            "use 1",
            id="torchtitan PR 568: a schedule of single stages with looped chunks",
        ),
        pytest.param(
            ("pipeline.schedule=interleaved-1f1b", "pipeline.stages=2", "pipeline.microbatches=3"),
            "interleaved-1f1b needs num_microbatches divisible by num_ranks (num_microbatches=3, num_ranks=2)",
            "use 2 or 4; or group_size=3, with which 3 fit",
            id="pytorch PR 137783: microbatches that no group of ranks divides",
        ),
        pytest.param(
            ("pipeline.schedule=interleaved-1f1b", "model.config.num_hidden_layers=1"),
            "4 stages are too many for 3 layers (pipeline.stages=2, pipeline.chunks=2)",
            "use at most pipeline.stages=1 or pipeline.chunks=1",
            id="NeMo-RL PR 1126: fewer layers than chunks of all ranks",
        ),
        pytest.param(
            ("pipeline.schedule=zb-v", "model.config.num_hidden_layers=1"),
            "4 stages are too many for 3 layers (pipeline.stages=2, pipeline.chunks=2)",
            "use at most pipeline.stages=1\n",
            id="a schedule that always has two stages a rank is not advised to have one",
        ),
        pytest.param(
            ("batch.global_batch=10", "batch.microbatch_size=4"),
            "batch.global_batch must be a multiple of batch.microbatch_size * batch.accumulation * mesh.data = 4",
            "use batch.global_batch=8 or 12, or batch.microbatch_size=2 or 5",
            id="ms-swift 5737: a global batch that microbatches do not fill",
        ),
        pytest.param(
            ("pipeline.partition=[4, 4]",),
            "pipeline.partition must add up to the model's 10 layers",
            "an equal split is [5, 5]",
            id="Megatron-LM 1304: a layout that leaves layers out",
        ),
    ],
)
def test_refused_with_the_nearest_values_that_would_do(
    command: str,
    pairs: tuple[str, ...],
    problem: str,
    instead: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    err = refused(capsys, tmp_path, command, *pairs)
    assert problem in err
    assert instead in err


def test_the_layers_of_a_folder_are_counted_in_its_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1})
    )
    err = refused(capsys, tmp_path, "train", f"model.hf={tmp_path}", "pipeline.stages=4")
    assert "4 stages are too many for 3 layers" in err


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("data.source=missing.jsonl", "data.source missing.jsonl does not exist"),
        ("data.tokenizer=missing.json", "data.tokenizer missing.json is not a file"),
        ("model.hf=missing", "model.hf is a local folder with a config.json (missing has none)"),
    ],
)
def test_files_that_are_not_there(pair: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, tmp_path, "train", pair)


@pytest.mark.parametrize(
    ("world_size", "message"),
    [
        ("3", "the configuration needs 2 processes (pipeline.stages * mesh axes); torchrun started 3; "),
        ("1", "use --nproc-per-node 2 or change pipeline.stages"),
        ("two", "the environment variable WORLD_SIZE is a whole number (WORLD_SIZE='two'); torchrun sets it"),
    ],
)
def test_a_group_of_another_size_is_refused_by_every_process(
    world_size: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """accelerate #2497: processes that have no stage."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", world_size)
    assert message in refused(capsys, tmp_path, "train")
