"""What was given is echoed to be known again, not to fill the screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fullbore.ir.recipe import Layout, Recipe
from fullbore.plan.recipe_file import write_recipe
from tests.unit.cli.test_main import python, run

SIZES = ("1f1b", "-p", "2", "-m", "2")
END = "-omega"
WORD, WORDS = "n" * 10_000 + END, "n " * 5000 + END


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    layer = {"name": "a", "forward_ns": 1, "backward_input_ns": 1, "backward_weight_ns": 1}
    Path("costs.json").write_text(json.dumps({"layers": [layer, layer]}))
    Path("order.csv").write_text("0F0,0B0\n")
    write_recipe(Path("recipe.json"), Recipe(Layout(2), 1, 4, (1, 1), "1f1b"))


@pytest.mark.parametrize("value", [WORD, WORDS])
@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "--set", "{}"),
        ("train", "--set", "train.steps={}"),
        ("train", "--set", "pipeline.schedule={}"),
        ("partition", "costs.json", "-p", "2", "--schedule", "{}"),
        ("schedule", "show", *SIZES, "--cost", "{}"),
        ("schedule", "show", *SIZES, "--cost", "1,{},1"),
        ("schedule", "show", *SIZES, "--comm", "{}"),
        ("schedule", "show", *SIZES, "--option", "{}"),
        ("schedule", "show", *SIZES, "--option", "{}=1"),
        ("schedule", "show", *SIZES, "--option", "{}=1", "--option", "{}=1"),
        ("schedule", "check", "order.csv", "--in-flight", "{}"),
        ("train", "--recipe", "recipe.json", "--set", "pipeline.schedule={}"),
        ("verify", "--scale-gradient", "{}"),
    ],
)
def test_a_long_value_is_not_echoed_whole(
    arguments: tuple[str, ...], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *(argument.format(value) for argument in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert value[:100] in err
    assert END in err
    assert len(err) < 1000


@pytest.mark.parametrize(
    "arguments",
    [
        ("schedule", "show", WORD),
        ("schedule", "check", WORD),
        ("schedule", "show", *SIZES, "--csv", WORD),
        ("schedule", "show", *SIZES, "--svg", f"{WORD}/a.svg"),
        ("schedule", "export", WORD, "--csv", "a"),
        ("partition", WORD, "-p", "2"),
        ("partition", "costs.json", "-p", "2", "-o", WORD),
        ("partition", "costs.json", "-p", "9" * 4000 + "123456"),
        ("train", WORD),
        ("train", "--recipe", WORD),
        ("profile", WORD),
        ("trace", "export", WORD, "-o", "a"),
        ("schedule", "show", "1f1b", "-p", WORD, "-m", "2"),
        (WORD,),
        ("train", f"--{WORD}"),
    ],
)
def test_nor_is_a_long_path_or_what_click_refuses(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "the system refused" not in err
    long = max(arguments, key=len)
    assert long[-len(END) :] in err
    assert "..." in err
    assert len(err) < 1000


@pytest.mark.parametrize("value", [WORD, WORDS])
@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("0F0,{}\n", ("schedule", "check", "order.csv")),
        ("{}\n", ("schedule", "check", "order.txt")),
        ("fullbore schedule 1\n{}\n", ("schedule", "check", "order.txt")),
        ("fullbore schedule 1\nname {}  \n", ("schedule", "check", "order.txt")),
        (
            '{{"layers": [{{"name": "a", "forward_ns": "{}", "backward_input_ns": 1, "backward_weight_ns": 1}}]}}',
            ("partition", "-p", "2", "costs.json"),
        ),
        ('{{"layout": "{}"}}', ("train", "--recipe", "recipe.json")),
    ],
)
def test_nor_is_what_stands_in_a_file(
    text: str, arguments: tuple[str, ...], value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(arguments[-1]).write_text(text.format(value))
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert value[:100] in err
    assert END in err
    assert len(err) < 1000


def test_a_list_of_layers_is_not_echoed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "--set", f"pipeline.partition={[1] * 5000}")
    assert (code, len(err) < 1000) == (2, True)
    assert "for each of the 2 stages of 1f1b (5000 given: [1, 1, 1" in err


def test_a_number_of_many_digits_is_not_echoed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "train", "--set", f"pipeline.partition=[{'9' * 3000}, 1]")
    assert (code, len(err) < 1000) == (2, True)
    assert "pipeline.partition must add up to the model's 10 layers" in err
    assert f"(given [{'9' * 100}" in err
    assert f"{'9' * 20}, 1], which add up to 1{'0' * 100}" in err
    assert err.endswith(f"{'0' * 20}); an equal split is [5, 5]\n")


def test_nor_is_what_the_system_refuses() -> None:
    """In a process of its own: what refuses may have been stdout, and so it is let go."""
    done = python("from fullbore.cli.main import main; main()", "train", "--set", f"data.source={WORD}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("fullbore: the system refused: ")
    assert len(done.stderr) < 1000
