"""Typed values out of files: a value that is not of its field's type is refused with the type in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec

from fullbore.errors import InputError
from fullbore.plain_text import is_plain
from fullbore.shown import shown

__all__ = ["convert"]

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): ""}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}

_MOST_NESTED = 50
"""Tables and lists in each other; the run file is written again, a few calls for each."""


def convert(value: Any, *, kind: Any, name: str, where: str, error: type[InputError]) -> Any:
    """``value`` as a ``kind``, lists as tuples.

    Args:
        name: the key, as the file or the command line writes it.
        where: the file or the override.

    Raises:
        error: the value is of another type, has a text that no file can be called, or tables in tables without end.
    """
    if _is_deeper(value, than=_MOST_NESTED):
        raise error(f"{where}: {name} is nested more than {_MOST_NESTED} deep, and no configuration is")
    try:
        found = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        unquoted = kind in (str, str | None) and not isinstance(value, str | list | dict) and len(repr(value)) <= 200
        quote = f'; write it in quotes: "{value}"' if unquoted else ""
        raise error(f"{where}: {name} must be {_describe(kind)} (given {shown(repr(value))}){quote}") from None
    for text in _texts(found):
        if not is_plain(text):
            raise error(f"{where}: a text in {name} is Unicode without a NUL (given {shown(repr(text))})")
    return found


def _is_deeper(value: Any, *, than: int) -> bool:
    """Without a call for each table in a table: that is what ends where there are too many."""
    level = [value]
    for _ in range(than + 1):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _texts(value: Any) -> Iterator[str]:
    """All of a plain value, keys of tables too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from (key, *_texts(inner))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _describe(kind: Any) -> str:
    """A field's type in words."""
    arguments = get_args(kind)
    if get_origin(kind) is Literal:
        return f"one of {', '.join(json.dumps(choice) for choice in arguments)}"
    if get_origin(kind) is dict:
        return f"a table of {_PLURALS[arguments[1]]}" if arguments[1] in _PLURALS else "a table"
    if get_origin(kind) is tuple:
        items = _PLURALS[arguments[0]]
        return f"a list of {items}" if arguments[-1] is Ellipsis else f"a list of {len(arguments)} {items}"
    if arguments:
        return " or ".join(words for words in map(_describe, arguments) if words)
    return _WORDS[kind]
