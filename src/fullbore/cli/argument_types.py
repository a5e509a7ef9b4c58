"""What names a file, a folder or a schedule on the command line. Empty text names none, and says so at once.

Without it an empty path is the current folder: a shell's unset variable, as in ``-o "$OUT"``, would be told that ``.``
is a folder, or have the run in it read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fullbore.errors import ConfigError

__all__ = ["MODEL_TYPE", "PATH_TYPE", "SCHEDULE_TYPE", "NonEmptyPath", "is_there"]


class NonEmptyPath(click.Path):
    """A path, or a word that may be one; a shell completes it as a path."""

    def __init__(self, *, wanted: str, kind: type[Path | str]) -> None:
        super().__init__(path_type=kind, readable=kind is Path)
        self._wanted = wanted

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            assert param is not None, "it is the type of a parameter"
            assert ctx is not None, "of a command that runs"
            word = param.opts[0] if isinstance(param, click.Option) else param.make_metavar(ctx).strip("[]")
            raise ConfigError(f"{word} is empty; give {self._wanted}{'' if param.required else ', or leave it out'}")
        return super().convert(value, param, ctx)


PATH_TYPE = NonEmptyPath(wanted="a path", kind=Path)
SCHEDULE_TYPE = NonEmptyPath(wanted="a name that `fullbore schedule list` prints, or a file", kind=str)
MODEL_TYPE = NonEmptyPath(wanted="a run file, a folder with a config.json, or package.module:function", kind=str)


def is_there(path: str | Path, *, kind: Callable[[Path], bool] = Path.exists) -> bool:
    """Is there such a file, or what else ``kind`` asks for, as `Path.is_dir` does?

    What no file can be called, such as a name that is too long, is not there: `Path` raises OSError for it, and a
    command would end with what the system says before its own message could say what it takes.
    """
    try:
        return kind(Path(path))
    except OSError:
        return False
