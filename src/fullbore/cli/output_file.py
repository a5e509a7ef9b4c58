"""The files that a command writes: looked at before anything is made, so that nothing else is lost.

One rule for every option that names a file to write. It is a file and no folder, ``-`` is stdout where the option says
so, no two options of a command are one file, and a file that is there is written over only if it is empty or of the
kind that is written, and not part of a run. `fullbore.written_file` then writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fullbore.errors import ConfigError

__all__ = ["COSTS", "PICTURE", "RECIPE", "SCHEDULE", "STDOUT", "TIMELINE", "Output", "require_outputs"]

STDOUT = Path("-")

_HEAD_BYTES = 1 << 16
_RUN_FILES = ("run.toml", "profile.json", "plan.json", "schedule.txt", "metrics.jsonl")


@dataclass(frozen=True, slots=True)
class _FileKind:
    noun: str
    looks: re.Pattern[str]
    """What the beginning of every such file matches."""


COSTS = _FileKind("costs file", re.compile(r'\s*\{.*"forward_ns"', re.DOTALL))
RECIPE = _FileKind("recipe", re.compile(r'\s*\{.*"layers_per_stage"', re.DOTALL))
PICTURE = _FileKind("picture", re.compile(r"\s*<(\?xml.*?<)?svg\b", re.DOTALL))
SCHEDULE = _FileKind("schedule", re.compile(r"\ufeff?(fullbore schedule\b|[\s,\"]*\(?[0-9]+[A-Z])"))
TIMELINE = _FileKind("timeline", re.compile(r'\s*\{\s*"displayTimeUnit"'))


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """An option that names a file to write, None where it was not given."""

    option: str
    path: Path | None
    kind: _FileKind
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
        _require_free(output.option, output.path, output.kind)


def _require_different(files: Mapping[str, Path | None]) -> None:
    """Two options that are one file: the second would replace the first."""
    seen: dict[str, str] = {}
    for option, path in files.items():
        if path is None:
            continue
        before = seen.setdefault(os.path.realpath(path), option)  # resolve() raises on a loop of links
        if before != option:
            raise ConfigError(f"{before} and {option} are one file, {path}; name two")


def _require_free(option: str, path: Path, kind: _FileKind) -> None:
    if path.is_dir() or not path.name:
        raise ConfigError(f"{option} is the file to write ({path} is a folder); name one in it")
    if not path.is_file() or path.stat().st_size == 0:
        return
    folder = path.resolve().parent
    if path.resolve().name in _RUN_FILES and all((folder / name).exists() for name in ("run.toml", "metrics.jsonl")):
        raise ConfigError(f"{option} {path} belongs to the run in {folder}; name another file")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode(errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot write the {kind.noun} {path}: {error.strerror}") from error
    if kind.looks.match(head) is None:
        raise ConfigError(f"{option} {path} exists and is no {kind.noun}; name another file, or remove it")
