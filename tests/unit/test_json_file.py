"""Every reader of a JSON file says what is wrong with it, also where Python's own reader gives up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fullbore.config.run import ModelConfig
from fullbore.costs.emulation import read_emulation
from fullbore.costs.layer import read_costs, read_microbatch_size
from fullbore.errors import CostsError, RecipeError, TraceError
from fullbore.json_file import parse_json, read_json, write_json
from fullbore.plan.known_layers import known_layers
from fullbore.plan.recipe_file import read_recipe
from fullbore.trace.format import trace_path
from fullbore.trace.reader import read_trace

DEEP = "[" * 100_000


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"a": [1, 2.5, None]}, what="recipe", error=RecipeError)
    assert read_json(tmp_path / "a.json", what="recipe", error=RecipeError) == {"a": [1, 2.5, None]}


@pytest.mark.parametrize("text", [DEEP, "{", "9" * 5000, "", r'{"a\ud800": 1}', r'["\udfff"]'])
def test_a_text_that_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]", encoding="utf-8-sig")
    assert read_json(tmp_path / "a.json", what="recipe", error=RecipeError) == [1]


def test_a_whole_surrogate_pair_is_a_character() -> None:
    assert parse_json(r'["\ud83d\ude00"]') == ["\U0001f600"]


@pytest.mark.parametrize("read", [read_costs, read_microbatch_size, read_emulation, read_recipe])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (DEEP.encode(), r"file\.json is not JSON: it is nested too deeply"),
        (b"{", r"file\.json is not JSON: Expecting"),
        (b"\xff\xfe", r"file\.json is not JSON: 'utf-8' codec"),
        (None, r"cannot read the (recipe|costs file) .*file\.json: No such file"),
    ],
)
def test_a_file_that_is_no_json_is_named(
    read: Callable[[Path], object], content: bytes | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((CostsError, RecipeError), match=message):
        read(path)


def test_a_model_configuration_that_is_nested_too_deeply_is_left_to_transformers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(DEEP)
    assert known_layers(ModelConfig(hf=str(tmp_path))) is None


def test_a_model_configuration_without_end_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").symlink_to("/dev/zero")
    assert known_layers(ModelConfig(hf=str(tmp_path))) is None


def test_a_trace_line_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    path = trace_path(tmp_path, rank=0)
    path.parent.mkdir(parents=True)
    path.write_text(f"{DEEP}\n{{}}\n")
    with pytest.raises(TraceError, match=r"line 1: it is nested too deeply"):
        read_trace(tmp_path)
