"""The files of a run, and which run a path is of: nothing but that run writes there."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["CLAIM", "WRITTEN", "run_of"]

CLAIM = "run.toml"
"""By which a run takes its folder. A person too keeps one."""

_TRACE = "trace"

WRITTEN = ("profile.json", "plan.json", "schedule.txt", "metrics.jsonl", _TRACE)
"""What a run writes beside it once its ranks are together."""


def run_of(path: Path) -> Path | None:
    """The folder of the run that a file or folder is of, as it is named or where its links lead: one that a run writes,
    or anything below its ``trace``."""
    return _run_of(Path(os.path.abspath(path))) or _run_of(Path(os.path.realpath(path)))


def _run_of(path: Path) -> Path | None:
    if path.name in WRITTEN and _holds_run(path.parent, beside=path.name):
        return path.parent
    above = (folder.parent for folder in path.parents if folder.name == _TRACE)
    return next((folder for folder in above if _holds_run(folder, beside=_TRACE)), None)


def _holds_run(folder: Path, *, beside: str) -> bool:
    """Two files of a run beside the one named: a person may keep a profile.json made from a run.toml."""
    return (folder / CLAIM).exists() and any((folder / name).exists() for name in WRITTEN if name != beside)
