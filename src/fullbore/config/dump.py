"""Writes a RunConfig as TOML, so that every run folder holds the configuration it really ran with.

The standard library reads TOML and does not write it. ``load_run`` of the text gives the same RunConfig back.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from fullbore.config.run import RunConfig

__all__ = ["dump_run"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dump_run(config: RunConfig) -> str:
    """Every key of every section with its value; a key whose value is None (fullbore chooses) is left out."""
    lines: list[str] = []
    for section in msgspec.structs.fields(config):
        lines += ["", f"[{section.name}]"]
        for key, value in msgspec.structs.asdict(getattr(config, section.name)).items():
            if value is not None:
                lines.append(f"{key} = {_value(value)}")
    return "\n".join(lines[1:]) + "\n"


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value)
        case str():
            return _text(value)
        case list() | tuple():
            return f"[{', '.join(_value(item) for item in value)}]"
        case dict():
            items = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
            return f"{{ {items} }}" if items else "{}"
    raise AssertionError(f"a RunConfig holds only what TOML can hold, not {value!r}")


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    """A TOML basic string: JSON's escapes, and delete, which JSON leaves alone."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
