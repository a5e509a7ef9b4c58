from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from fullbore.cli.main import COMMANDS, cli, main
from fullbore.errors import RankFailed

_TORCH_FREE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REFUSED:
            raise AssertionError(f"imported {name}")

sys.meta_path.insert(0, Refuse())
"""


def python(code: str, *arguments: str, refused: str = "torch transformers") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"REFUSED = {refused.split()!r}\n{_TORCH_FREE}{code}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


@pytest.mark.parametrize(
    "arguments",
    [["schedule", "show", "1f1b", "-p", "4", "-m", "8"], ["schedule", "list"], ["--help"]],
)
def test_these_commands_import_neither_torch_nor_numpy(arguments: list[str]) -> None:
    """They answer at once."""
    code = "from fullbore.cli.main import main; main()"
    done = python(code, *arguments, refused="torch transformers numpy")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["tarce", "export", "runs/first"], "No such command 'tarce'. Did you mean 'trace'?"),
        (["schedule", "shwo"], "No such command 'shwo'. Did you mean 'show'?"),
        (["zzz"], "No such command 'zzz'."),
    ],
)
def test_a_mistyped_command_is_answered_with_the_nearest(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *given)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == f"Error: {said}"


def test_partition_imports_no_torch() -> None:
    """It simulates many cuts side by side, in numpy."""
    done = python("from fullbore.cli.main import main; main()", "partition", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_core_imports_no_torch() -> None:
    packages = ("config", "costs", "ir", "partition", "plan", "report", "schedules", "simulate", "timeline", "trace")
    code = f"""
import importlib, pkgutil
for package in {packages!r}:
    found = importlib.import_module("fullbore." + package)
    for module in pkgutil.iter_modules(found.__path__, found.__name__ + "."):
        importlib.import_module(module.name)
"""
    done = python(code)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_block_on_torch_works() -> None:
    assert "AssertionError: imported torch" in python("import torch").stderr


def test_help_lists_every_command_without_importing_one(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(f"\n  {name} " in out for name in COMMANDS)
    assert "Example:" in out


@pytest.mark.parametrize(
    "path", [["schedule"], ["schedule", "list"], ["schedule", "show"], ["partition"], ["trace", "export"]]
)
def test_every_command_has_an_example(path: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *path, "--help")
    assert code == 0
    assert f"fullbore {' '.join(path)}" in out.split("Example")[1]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("fullbore 0.")


@pytest.mark.parametrize(
    "arguments", [["nope"], ["schedule", "show", "1f1b", "-p", "x", "-m", "1"], ["schedule", "show"]]
)
def test_bad_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert "Error:" in err


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (RankFailed("rank 1 failed", rank=1, action="1F0"), 2, "fullbore: rank 1 failed\n"),
        (KeyboardInterrupt(), 130, "fullbore: interrupted\n"),
        (click.Abort(), 130, "fullbore: interrupted\n"),
        (BrokenPipeError(32, "Broken pipe"), 2, "fullbore: the system refused: [Errno 32] Broken pipe\n"),
    ],
)
def test_failures_end_with_one_message_and_their_code(
    raised: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(context: click.Context) -> None:
        raise raised

    monkeypatch.setattr(cli, "invoke", fail)
    monkeypatch.setattr("fullbore.cli.main._discard_stdout", lambda: None)
    assert run(capsys, "schedule") == (code, "", message)


@pytest.mark.parametrize("name", ["a\0b", "a\udcffb"])
@pytest.mark.parametrize(
    "arguments",
    [["schedule", "check"], ["schedule", "show", "1f1b", "--recipe"], ["partition"], ["trace", "export", "x", "-o"]],
)
def test_an_argument_that_is_no_text_is_one_message(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments, name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (
        f"fullbore: an argument is UTF-8 text without a NUL (given {name!r}); a file called so needs another name\n"
        in err
    )


def test_our_own_bugs_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(context: click.Context) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "invoke", fail)
    with pytest.raises(ZeroDivisionError):
        main(["schedule"])


def test_a_reader_that_leaves_early_is_no_failure(tmp_path: Path) -> None:
    code = "from fullbore.cli.main import main; main()"
    command = [sys.executable, "-c", code, "schedule", "show", "gpipe", "-p", "16", "-m", "500", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0
