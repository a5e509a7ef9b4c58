"""The files that a command writes: looked at before anything is made, so that nothing else is lost.

One rule for every option that names a file to write. It is a file and no folder, ``-`` is stdout where the option says
so, no two options of a command are one file, and a file that is there is written over only if it is empty or of the
kind that is written, and not part of a run. `fullbore.written_file` then writes it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fullbore.cli.file_kind import FileKind
from fullbore.config.run_files import run_of
from fullbore.errors import ConfigError

__all__ = ["STDOUT", "Output", "require_outputs"]

STDOUT = Path("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """An option that names a file to write, None where it was not given."""

    option: str
    path: Path | None
    kind: FileKind
    takes_dash: bool = False
    """Is ``-`` stdout?"""


def require_outputs(*outputs: Output, inputs: Mapping[str, Path | None] | None = None, as_json: bool = False) -> None:
    """Raises ConfigError unless every file can be written by the rule above.

    Args:
        inputs: what the command reads, by option or argument.
        as_json: does the answer on stdout have to be one JSON document?
    """
    _require_different({**(inputs or {}), **{output.option: output.path for output in outputs}})
    for output in outputs:
        if output.path is None:
            continue
        if output.path == STDOUT:
            if as_json and output.takes_dash:
                raise ConfigError(
                    f"--json and {output.option} - would both write to stdout; give the {output.kind.noun} a file"
                )
            if not output.takes_dash:
                raise ConfigError(
                    f"the answer goes to stdout, and {output.option} - cannot; give the {output.kind.noun} a file"
                )
            continue
        try:
            _require_free(output, output.path)
        except OSError as error:
            raise ConfigError(
                f"{output.option}: cannot write the {output.kind.noun} {output.path}: {error.strerror}"
            ) from error


def _require_different(files: Mapping[str, Path | None]) -> None:
    """Two options that are one file: the second would replace the first."""
    seen: dict[str, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        before = seen.setdefault(os.path.realpath(path), option)  # resolve() raises on a loop of links
        if before != option:
            raise ConfigError(f"{before} and {option} are one file, {path}; name two")


def _require_free(output: Output, path: Path) -> None:
    """Raises OSError for what cannot even be looked at."""
    option, kind = output.option, output.kind
    held = None
    with suppress(FileNotFoundError):
        held = path.stat()
    if held is not None and stat.S_ISDIR(held.st_mode):
        raise ConfigError(f"{option} is the file to write ({path} is a folder); name one in it")
    run = run_of(path)
    if run is not None:
        raise ConfigError(f"{option} {path} belongs to the run in {os.path.realpath(run)}; name another file")
    if held is None or not stat.S_ISREG(held.st_mode):
        return
    stream = _stream_into(held)
    if stream is not None:
        dash = f", or {option} -" if output.takes_dash and stream == "stdout" else ""
        raise ConfigError(f"{option} {path} is the file that {stream} goes into; name another{dash}")
    if held.st_size == 0:
        return
    if not kind.is_of(path):
        raise ConfigError(f"{option} {path} exists and is no {kind.noun}; name another file, or remove it")


def _stream_into(held: os.stat_result) -> str | None:
    """Where a shell sent stdout or stderr into this file, which of them: another file in its place would lose it."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        with suppress(OSError):  # it is closed
            if os.path.samestat(held, os.fstat(descriptor)):
                return name
    return None
