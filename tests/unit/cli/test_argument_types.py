"""Empty text names no file: what a shell makes of a variable that is not set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fullbore.cli.main import cli
from fullbore.errors import ConfigError
from tests.unit.cli.test_main import run

SIZES = ("1f1b", "-p", "2", "-m", "2")
SCHEDULE = "a name that `fullbore schedule list` prints, or a file"
MODEL = "a run file, a folder with a config.json, or package.module:function"
GIVEN = [
    (("schedule", "show", ""), f"NAME|FILE is empty; give {SCHEDULE}"),
    (("schedule", "show", *SIZES, "--csv", ""), "--csv is empty; give a path, or leave it out"),
    (("schedule", "show", *SIZES, "--svg="), "--svg is empty; give a path, or leave it out"),
    (("schedule", "show", *SIZES, "--recipe", ""), "--recipe is empty; give a path, or leave it out"),
    (("schedule", "check", ""), "FILE is empty; give a path"),
    (("schedule", "export", "", "--csv", "a"), f"NAME|FILE is empty; give {SCHEDULE}"),
    (("schedule", "export", *SIZES, "--csv", ""), "--csv is empty; give a path, or leave it out"),
    (("schedule", "export", *SIZES, "--text", ""), "--text is empty; give a path, or leave it out"),
    (("partition", "", "-p", "2"), "COSTS.json|RUN_DIR is empty; give a path"),
    (("partition", "a", "-p", "2", "-o", ""), "-o is empty; give a path, or leave it out"),
    (("partition", "a", "-p", "2", "--schedule", ""), f"--schedule is empty; give {SCHEDULE}, or leave it out"),
    (("profile", ""), f"RUN.toml|MODEL is empty; give {MODEL}, or leave it out"),
    (("profile", "-o", ""), "-o is empty; give a path, or leave it out"),
    (("train", ""), "RUN.toml is empty; give a path, or leave it out"),
    (("train", "--recipe", ""), "--recipe is empty; give a path, or leave it out"),
    (("train", "--emulate", ""), "--emulate is empty; give a path, or leave it out"),
    (("verify", ""), "RUN.toml is empty; give a path, or leave it out"),
    (("verify", "--recipe", ""), "--recipe is empty; give a path, or leave it out"),
    (("trace", "export", "", "-o", "a"), "RUN_DIR is empty; give a path"),
    (("trace", "export", "a", "-o", ""), "-o is empty; give a path"),
]


@pytest.mark.parametrize(("arguments", "message"), GIVEN)
def test_an_empty_path_is_one_sentence(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was the current folder."""
    monkeypatch.chdir(tmp_path)
    assert run(capsys, *arguments) == (2, "", f"fullbore: {message}\n")
    assert not any(tmp_path.iterdir())


def paths(command: click.Command, context: click.Context) -> Iterator[tuple[click.Context, click.Parameter]]:
    """Every parameter of every command that takes a path."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from paths(inner, click.Context(inner, parent=context, info_name=name))
    yield from ((context, param) for param in command.params if isinstance(param.type, click.Path))


def test_no_command_takes_an_empty_path() -> None:
    found = list(paths(cli, click.Context(cli)))
    assert len(found) == len(GIVEN), "each has its sentence above"
    for context, param in found:
        with pytest.raises(ConfigError, match="is empty; give a"):
            param.type.convert("", param, context)


def test_a_word_may_be_the_name_of_a_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The names of schedules come first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    Path("1f1b").touch()
    assert run(capsys, "schedule", "show", *SIZES)[0] == 0
