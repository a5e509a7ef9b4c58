"""The run folder: named and taken in one go, so that two runs started at once never write into the same one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TextIO

from fullbore.config.dump import dump_run
from fullbore.config.run import RunConfig
from fullbore.config.run_files import CLAIM, WRITTEN, run_of
from fullbore.errors import ConfigError
from fullbore.session.ranks import in_a_group

__all__ = ["run_folder"]


@contextmanager
def run_folder(config: RunConfig) -> Iterator[Path]:
    """``train.run_dir``, or a new folder under ``runs/`` named by the clock, taken by its ``run.toml``.

    A run that ends before it has written anything else leaves the folder as it was. In a group that was there before,
    rank 0 takes the folder, and its word counts for all.

    Raises:
        ConfigError: the folder holds a run already, or cannot be made.
    """
    if in_a_group() and os.environ["RANK"] != "0":
        given = config.train.run_dir
        if given is not None:
            _require_free(Path(given))
        yield Path("runs" if given is None else given)
        return
    try:
        folder, made = _new_folder() if config.train.run_dir is None else _given_folder(Path(config.train.run_dir))
    except OSError as error:
        raise ConfigError(f"cannot make the run folder {error.filename}: {error.strerror}") from error
    try:
        claim = (folder / CLAIM).open("x", encoding="utf-8")
    except FileExistsError as error:
        raise _taken(folder) from error
    except OSError as error:
        if made:
            with suppress(OSError):
                folder.rmdir()
        raise ConfigError(f"cannot write into the run folder {folder}: {error.strerror}") from error
    try:
        _write(config, claim, folder)
        yield folder
    finally:
        if not _holds(folder, WRITTEN):
            (folder / CLAIM).unlink(missing_ok=True)
            if made and not any(folder.iterdir()):
                folder.rmdir()


def _write(config: RunConfig, claim: TextIO, folder: Path) -> None:
    """The one place where a run writes down its configuration."""
    try:
        with claim:
            claim.write(dump_run(config))
    except OSError as error:  # a full disk, which does not say of which file it speaks
        raise ConfigError(f"cannot write into the run folder {folder}: {error.strerror}") from error


def _new_folder() -> tuple[Path, bool]:
    """Of two runs that ask within one second, the second gets a number."""
    name = datetime.now().strftime("%Y%m%d-%H%M%S")
    for number in count(1):
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder, True
    raise AssertionError("numbers do not end")


def _given_folder(folder: Path) -> tuple[Path, bool]:
    """With whether it was made here."""
    _require_free(folder)
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise ConfigError(f"train.run_dir is a folder ({folder} is a file); choose another name") from None
        return folder, False
    return folder, True


def _require_free(folder: Path) -> None:
    if _holds(folder, WRITTEN):
        raise _taken(folder)
    other = run_of(folder)
    if other is not None and any((other / "trace").glob("rank-*")):  # a person's own files look like a run's at most
        raise ConfigError(f"train.run_dir {folder} lies in the run in {other}; choose another folder")


def _holds(folder: Path, names: tuple[str, ...]) -> bool:
    return any((folder / name).exists() for name in names)


def _taken(folder: Path) -> ConfigError:
    return ConfigError(f"train.run_dir {folder} already holds a run; choose another folder, or remove it")
