"""Typed values out of files: a value that is not of its field's type is refused with the type in words."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

import msgspec

from fullbore.errors import InputError

__all__ = ["convert"]

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): ""}
_PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}


def convert(value: Any, *, kind: Any, name: str, where: str, error: type[InputError]) -> Any:
    """``value`` as a ``kind``, lists as tuples.

    Args:
        name: the key, as the file or the command line writes it.
        where: the file or the override.

    Raises:
        error: the value is of another type.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        unquoted = kind in (str, str | None) and not isinstance(value, str | list | dict) and len(repr(value)) <= 200
        quote = f'; write it in quotes: "{value}"' if unquoted else ""
        raise error(f"{where}: {name} must be {_describe(kind)} (given {value!r:.200}){quote}") from None


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
