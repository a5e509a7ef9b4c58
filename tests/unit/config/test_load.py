"""Reading a run file: every message names the file or the override, the key, the value and what is allowed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fullbore.bounded_file import MOST_BYTES
from fullbore.config.dump import dump_run
from fullbore.config.load import load_run
from fullbore.config.run import ModelConfig, RunConfig
from fullbore.errors import ConfigError


def run_file(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_nothing_given_is_every_default() -> None:
    assert load_run() == RunConfig()


def test_overrides_win_over_the_file_and_later_ones_over_earlier_ones(tmp_path: Path) -> None:
    path = run_file(tmp_path, "[train]\nsteps = 5\neval_every = 7\n[pipeline]\npartition = [5, 5]\n")
    config = load_run(path, overrides=["train.steps=6", "train.steps=8"])
    assert (config.train.steps, config.train.eval_every) == (8, 7)
    assert config.pipeline.partition == (5, 5)


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("pipeline.schedule=zb-h1", "pipeline", "schedule", "zb-h1"),
        ("pipeline.schedule=1f1b", "pipeline", "schedule", "1f1b"),
        ('pipeline.schedule="gpipe"', "pipeline", "schedule", "gpipe"),
        ("train.run_dir=2024-01-01", "train", "run_dir", "2024-01-01"),
        ("train.run_dir=a=b", "train", "run_dir", "a=b"),
        ("model.compile=true", "model", "compile", True),
        ("optimizer.lr=1", "optimizer", "lr", 1.0),
        ("optimizer.clip_norm=inf", "optimizer", "clip_norm", float("inf")),
        ("optimizer.betas=[0.8, 0.9]", "optimizer", "betas", (0.8, 0.9)),
        ('pipeline.recompute=["layers.0"]', "pipeline", "recompute", ("layers.0",)),
        ("pipeline.recompute_ahead=false", "pipeline", "recompute_ahead", False),
        ("model.config.num_hidden_layers=4", "model", "config", {"num_hidden_layers": 4}),
        ("pipeline.chunks=3", "pipeline", "chunks", 3),
        ("pipeline.options.group_size=8", "pipeline", "options", {"group_size": 8}),
        ("pipeline.options={ group_size = 8 }", "pipeline", "options", {"group_size": 8}),
        ("model.config.rope.factor=2.5", "model", "config", {"rope": {"factor": 2.5}}),
    ],
)
def test_override_values(override: str, section: str, key: str, value: object) -> None:
    assert getattr(getattr(load_run(overrides=[override]), section), key) == value


def test_an_override_inside_a_table_keeps_the_rest_of_it(tmp_path: Path) -> None:
    path = run_file(tmp_path, "[model]\nconfig = { hidden_size = 64, rope = { factor = 1.0, kind = 'x' } }\n")
    config = load_run(path, overrides=["model.config.rope.factor=2.0"])
    assert config.model.config == {"hidden_size": 64, "rope": {"factor": 2.0, "kind": "x"}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.step=3", r"--set train\.step=3: there is no key in \[train\] named step; did you mean steps\?"),
        ("trian.steps=3", r"no section named trian; did you mean train\?"),
        ("train.steps=abc", r"train\.steps must be a whole number \(given 'abc'\)"),
        ("train.steps=2.5", r"train\.steps must be a whole number \(given 2\.5\)"),
        ("train.steps=true", r"train\.steps must be a whole number \(given True\)"),
        ("model.dtype=fp16", r'one of "float32", "bfloat16", "float16", "float64" \(given \'fp16\'\)'),
        ("pipeline.partition=[1, 2.5]", r'"parameters" or a list of whole numbers \(given \[1, 2\.5\]\)'),
        ("optimizer.betas=[0.9]", r"a list of 2 numbers \(given \[0\.9\]\)"),
        (
            "pipeline.options={ group_size = 1.5 }",
            r"options must be a table of whole numbers \(given {'group_size': 1\.5}",
        ),
        ("train.run_dir=42", r'must be text \(given 42\); write it in quotes: "42"'),
        ("train.steps.x=1", r"train\.steps is not a table"),
        ("model.config.a.b.c=1", r"model\.config\.a is 3 and not a table"),
        ("train", r"has the form section\.key=value"),
        ("train=3", r"has the form section\.key=value"),
        ("train.=3", r"has the form section\.key=value"),
        ('model.hf=""', r"model\.hf is empty; give the folder of a config\.json, or leave it out"),
        ("train.run_dir=", r'the value is empty; write "" for empty text'),
        ("pipeline.partition=[1,", r"\[1, is not a TOML value"),
        ("optimizer.lr=-1", r"--set optimizer\.lr=-1: optimizer\.lr must be positive"),
        (
            "batch.global_batch=10",
            r"--set batch\.global_batch=10, .*run\.toml: batch\.global_batch must be a multiple of",
        ),
    ],
)
def test_a_bad_override_is_named(override: str, message: str, tmp_path: Path) -> None:
    path = run_file(tmp_path, "[model]\nconfig = { a = 3 }\n[pipeline]\nmicrobatches = 4\n")
    with pytest.raises(ConfigError, match=message):
        load_run(path, overrides=[override])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pipeline]\nmicrobatch = 4", r"run\.toml: there is no key in \[pipeline\] named microbatch; did you mean"),
        ("[pipelines]\nstages = 4", r"run\.toml: there is no section named pipelines; did you mean pipeline\?"),
        ("train = 3", r"run\.toml: train is a section; write its keys under \[train\] \(given 3\)"),
        ("[train]\nsteps = '3'", r"run\.toml: train\.steps must be a whole number \(given '3'\)"),
        ("[train]\nsteps = 0", r"run\.toml: train\.steps must be at least 1 \(steps=0\)"),
        ("[train\nsteps = 0", r"run\.toml is not valid TOML: .*line 1"),
        ("[model]\nconfig = { day = 2024-01-01 }", r"run\.toml: model\.config\.day holds"),
    ],
)
def test_a_bad_run_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_run(run_file(tmp_path, text))


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the run file .*none\.toml: No such file"):
        load_run(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load_run(tmp_path / "binary.toml")


def test_a_device_and_a_file_without_end_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the run file /dev/zero: it is a device and not a file"):
        load_run("/dev/zero")
    huge = tmp_path / "huge.toml"
    with huge.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ConfigError, match=r"cannot read the run file .*huge\.toml: it is larger than 256 MiB"):
        load_run(huge)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('[train]\nrun_dir = "a\\u0000b"', "train.run_dir"),
        ('[pipeline]\nrecompute = ["x", "a\\u0000b"]', "pipeline.recompute"),
        ('[model]\nconfig = { deep = [{ "a\\u0000b" = 1 }] }', "model.config"),
    ],
)
def test_a_text_that_no_file_can_be_called_is_refused_by_its_key(text: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"run\.toml: a text in {name} is Unicode without a NUL \(given 'a\\x00b'\)"):
        load_run(run_file(tmp_path, text))
    with pytest.raises(ConfigError, match=rf"a text in {name} is Unicode without a NUL"):
        load_run(overrides=["train.steps=1", text.replace("[", "", 1).replace("]\n", ".", 1).replace(" = ", "=", 1)])
    with pytest.raises(ConfigError, match=r"cannot read the run file .*: its name has a NUL"):
        load_run("a\0b")


def test_a_byte_order_mark_is_no_part_of_a_run_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[train]\nsteps = 5\n", encoding="utf-8-sig")
    assert load_run(tmp_path / "run.toml").train.steps == 5


def test_the_dump_says_every_key_that_has_a_value() -> None:
    text = dump_run(RunConfig(model=ModelConfig(config={"a b": 'say "hi"\n', "deep": {"list": [1, 2.0, True]}})))
    assert '[model]\nconfig = { "a b" = "say \\"hi\\"\\n", deep = { list = [1, 2.0, true] } }\n' in text
    assert "\n\n[train]\nsteps = 120\nseed = 0\n" in text
    assert "microbatches" not in text


def test_reading_a_run_file_does_not_import_torch() -> None:
    code = "import sys, fullbore.config.load, fullbore.config.dump, fullbore.data.corpus; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


LONG = "9" * 5000


@pytest.mark.parametrize(
    "overrides",
    [
        [f"train.steps={LONG}"],
        [f"data.source={'9' * 4000}"],
        [f"train.{LONG}=3"],
        [f"{LONG}.steps=3"],
        [LONG],
        [f"train.steps=[{LONG}"],
        [f"model.config.x={LONG}", "model.config.x.y=3"],
        [f"model.config.{LONG}=1", f"model.config.{LONG}.y=3"],
    ],
)
def test_what_is_refused_is_not_repeated_at_any_length(overrides: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_run(overrides=overrides)
    assert "9" * 150 in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("text", ["[train]\nsteps = " + "9" * 5000, "[train]\nsteps = " + "[" * 5000])
def test_what_the_parser_of_toml_stumbles_over_is_refused_by_the_name_of_the_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"the run file .*run\.toml is not valid TOML"):
        load_run(tmp_path / "run.toml")
    with pytest.raises(ConfigError, match=r"^--set train\.steps="):
        load_run(None, overrides=[text.removeprefix("[train]\n").replace("steps = ", "train.steps=")])


@pytest.mark.parametrize("depth", [51, 500, 5000])
def test_tables_in_tables_have_an_end(depth: int, tmp_path: Path) -> None:
    """From hundreds on a run ended in a RecursionError, some of them once it had started."""
    key = ".".join(["a"] * depth)
    said = r"model\.config is nested more than 50 deep, and no configuration is$"
    with pytest.raises(ConfigError, match=said):
        load_run(overrides=[f"model.config.{key}=1"])
    with pytest.raises(ConfigError, match=said):
        load_run(run_file(tmp_path, f"[model.config]\n{key} = 1\n"))


def test_tables_in_tables_are_written_again(tmp_path: Path) -> None:
    config = load_run(overrides=[f"model.config.{'.'.join(['a'] * 50)}=1"])
    assert load_run(run_file(tmp_path, dump_run(config))) == config
