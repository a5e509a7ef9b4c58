"""A command whose readers have left answers as it would have. Each case is a process: the streams are its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

INVALID = "fullbore schedule 1\nname swapped\nplacement 0\nmicrobatches 1\nrank 0: 0B0 0F0\n"


@pytest.fixture
def no_reader() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.fixture
def invalid(tmp_path: Path) -> str:
    """A schedule of which `fullbore schedule check` says no, on stdout and on stderr."""
    path = tmp_path / "swapped.txt"
    path.write_text(INVALID)
    return str(path)


@pytest.fixture
def full() -> Iterator[int]:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


def fullbore(
    *arguments: str, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE, closed: str = ""
) -> tuple[int, str | None, str | None]:
    """Exit code, stdout and stderr. ``closed``: redirections of a shell."""
    command = [sys.executable, "-m", "fullbore", *arguments]
    if closed:
        command = ["sh", "-c", f'exec "$@" {closed}', "sh", *command]
    done = subprocess.run(command, stdout=stdout, stderr=stderr, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def test_stderr_without_a_reader_changes_no_verdict(invalid: str, no_reader: int, full: int) -> None:
    code, out, err = fullbore("schedule", "check", invalid)
    assert (code, err) == (1, f"{invalid} breaks own-forward-first\n")
    for stderr in (no_reader, full):
        assert fullbore("schedule", "check", invalid, stderr=stderr) == (1, out, None)
    assert fullbore("schedule", "check", invalid, closed="2>&-") == (1, out, "")


def test_stderr_without_a_reader_is_no_failure(tmp_path: Path, no_reader: int, full: int) -> None:
    written = tmp_path / "order.csv"
    for stderr in (no_reader, full):
        export = ("schedule", "export", "1f1b", "-p", "2", "-m", "2", "--csv", str(written))
        assert fullbore(*export, stderr=stderr) == (0, "", None)


def test_stdout_without_a_reader_changes_no_verdict(invalid: str, no_reader: int) -> None:
    said = f"{invalid} breaks own-forward-first\n"
    assert fullbore("schedule", "check", invalid, stdout=no_reader) == (1, None, said)
    assert fullbore("schedule", "check", invalid, stdout=no_reader, stderr=no_reader) == (1, None, None)
    assert fullbore("schedule", "check", invalid, closed=">&-") == (1, "", said)


def test_nothing_open_is_no_failure() -> None:
    assert fullbore("schedule", "list", closed=">&- 2>&-") == (0, "", "")


def test_an_answer_that_finds_no_room_is_a_failure(full: int) -> None:
    said = "fullbore: the system refused: [Errno 28] No space left on device\n"
    assert fullbore("schedule", "list", stdout=full) == (2, None, said)


def after_outliving(code: str, **environment: str) -> tuple[bytes, bytes]:
    """What is on stdout and stderr of a process that ends without cleaning up, as a killed one does."""
    code = (
        f"import os, sys\nfrom fullbore.standard_streams import outlive_readers\noutlive_readers()\n{code}\nos._exit(0)"
    )
    given = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    given.update(environment, PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, timeout=60, check=True)
    return done.stdout, done.stderr


def test_unbuffered_streams_stay_so() -> None:
    """What a script had printed before it was killed was lost, though PYTHONUNBUFFERED was set."""
    said = "print('said', end='')\nprint('wrong', end='', file=sys.stderr)"
    assert after_outliving(said, PYTHONUNBUFFERED="1") == (b"said", b"wrong")


def test_stderr_is_written_by_the_line() -> None:
    assert after_outliving("print('lost')\nprint('wrong', file=sys.stderr)") == (b"", b"wrong\n")


def test_the_encoding_stays_and_what_it_does_not_have() -> None:
    said = "print('\\xfc\\u20ac', flush=True)\nprint('\\xfc\\u20ac', file=sys.stderr)"
    out, err = after_outliving(said, PYTHONIOENCODING="latin-1:replace")
    assert (out, err) == (b"\xfc?\n", b"\xfc\\u20ac\n")
