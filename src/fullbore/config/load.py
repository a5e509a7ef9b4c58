"""Reads a run file and its overrides into a RunConfig.

A run file is TOML; an override is ``section.key=value``, the value written as in TOML (bare words may go without
quotes). Each key is checked where it was written, so a message can say which file or which override to mend.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_origin

import msgspec

from fullbore.bounded_file import read_bounded
from fullbore.config.convert import convert
from fullbore.config.run import RunConfig
from fullbore.errors import ConfigError
from fullbore.nearest import nearest
from fullbore.shown import shown

__all__ = ["load_run"]

_SECTIONS: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(RunConfig)}
_TYPES = {
    section: {field.name: field.type for field in msgspec.structs.fields(struct)}
    for section, struct in _SECTIONS.items()
}


def load_run(path: str | Path | None = None, *, overrides: Sequence[str] = ()) -> RunConfig:
    """The run file at ``path`` (none: every default), changed by ``overrides``; a later one wins."""
    values: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    key_origin: dict[str, str] = {}
    """``section.key`` -> where it was written last."""

    section_origins: dict[str, list[str]] = {section: [] for section in _SECTIONS}
    for section, table in ({} if path is None else _read(Path(path))).items():
        _need_known(section, known=_SECTIONS, what="section", where=str(path))
        if not isinstance(table, dict):
            given = shown(repr(table))
            raise ConfigError(f"{path}: {section} is a section; write its keys under [{section}] (given {given})")
        for key, value in table.items():
            _need_known(key, known=_TYPES[section], what=f"key in [{section}]", where=str(path))
            values[section][key] = value
            key_origin[f"{section}.{key}"] = str(path)
            section_origins[section] = [str(path)]
    for override in overrides:
        section, key = _apply(override, values)
        key_origin[f"{section}.{key}"] = f"--set {shown(override)}"
        section_origins[section].append(f"--set {shown(override)}")

    sections = {}
    for section, table in values.items():
        fields = {
            key: convert(
                value,
                kind=_TYPES[section][key],
                name=f"{section}.{key}",
                where=key_origin[f"{section}.{key}"],
                error=ConfigError,
            )
            for key, value in table.items()
        }
        try:
            sections[section] = _SECTIONS[section](**fields)
        except ConfigError as error:
            raise ConfigError(f"{', '.join(section_origins[section])}: {error}") from None
    try:
        return RunConfig(**sections)
    except ConfigError as error:
        wheres = dict.fromkeys(origin for section in ("batch", "pipeline") for origin in section_origins[section])
        raise ConfigError(f"{', '.join(wheres)}: {error}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_bounded(path).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"cannot read the run file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the run file {path} is not UTF-8 text; a run file is TOML") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a thousand brackets
        raise ConfigError(f"the run file {path} is not valid TOML: {error}") from None


def _apply(override: str, values: dict[str, dict[str, Any]]) -> tuple[str, str]:
    """Puts one override into ``values``; returns its section and key."""
    where = f"--set {shown(override)}"
    name, equals, text = override.partition("=")
    section, *path = (part.strip() for part in name.split("."))
    if not equals or not path or not all(path):
        raise ConfigError(f"{where}: an override has the form section.key=value, such as train.steps=200")
    _need_known(section, known=_SECTIONS, what="section", where=where)
    key = path[0]
    _need_known(key, known=_TYPES[section], what=f"key in [{section}]", where=where)
    if len(path) > 1 and get_origin(_TYPES[section][key]) is not dict:
        raise ConfigError(f"{where}: {section}.{key} is not a table, so nothing can be set inside it")
    table: dict[str, Any] = values[section]
    for depth, part in enumerate(path[:-1], start=1):
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            name, given = shown(".".join([section, *path[:depth]])), shown(repr(inner))
            raise ConfigError(f"{where}: {name} is {given} and not a table, so nothing can be set inside it")
        table = inner
    table[path[-1]] = _parse(text.strip(), where=where)
    return section, key


def _parse(text: str, *, where: str) -> Any:
    """A TOML value. What is not one and does not begin like one is a bare word."""
    if not text:
        raise ConfigError(f'{where}: the value is empty; write "" for empty text')
    try:
        value = tomllib.loads(f"value = {text}") if "\n" not in text else {}
    except (ValueError, RecursionError) as error:
        if text[0] in "[{\"'":
            raise ConfigError(f"{where}: {shown(text)} is not a TOML value: {error}") from None
        return text
    plain = isinstance(value.get("value"), bool | int | float | str | list | dict)
    return value["value"] if plain else text


def _need_known(name: str, *, known: Iterable[str], what: str, where: str) -> None:
    names = list(known)
    if name not in names:
        near = nearest(name, names)
        advice = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"{where}: there is no {what} named {shown(name)}{advice} ({', '.join(names)})")
