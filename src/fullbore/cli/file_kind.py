"""The kinds of file that commands write, and how one that is there is told to be of a kind.

Only its beginning is looked at, so that a large file costs nothing. What fullbore wrote, in any version, is of its
kind, and so is what a person wrote for fullbore to read. What merely has a word in common with it is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["COSTS", "PICTURE", "RECIPE", "SCHEDULE", "TIMELINE", "FileKind"]

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a command writes."""

    noun: str
    is_beginning: Callable[[str], bool]
    """Is this how such a file begins? The text has no byte order mark."""

    def is_of(self, path: Path) -> bool:
        """Is the file of this kind? Raises OSError where it cannot be read."""
        return self.is_beginning(_head(path))


def _head(path: Path) -> str:
    """The beginning, without the word or number in which it was cut."""
    with path.open("rb") as file:
        held = file.read(_HEAD_BYTES + 1)
    text = held.decode("utf-8-sig", errors="replace")
    if len(held) <= _HEAD_BYTES:
        return text
    return text[: max(text.rfind(","), text.rfind("\n")) + 1]


_INDEX = "(?:0|[1-9][0-9]{0,8})"
_ACTION = f"{_INDEX}[FBIW]{_INDEX}"
_CELL = re.compile(
    rf"{_ACTION}|{_INDEX}(?:SEND|RECV)_[FB]{_INDEX}|{_INDEX}(?:UNSHARD|RESHARD|REDUCE_GRAD)"
    rf"|\(\s*{_ACTION}\s*;\s*{_ACTION}\s*\)OVERLAP_F_B"
)


def _is_schedule(head: str) -> bool:
    """fullbore text; or PyTorch's CSV, in which every word is a cell, or nothing, as an idle slot is."""
    if head.startswith("fullbore schedule 1\n"):
        return True
    words = [word for word in (part.strip(' \t"') for part in re.split(r"[,\r\n]", head)) if word]
    return bool(words) and all(map(_CELL.fullmatch, words))


_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.?)*"?|[{}\[\]:]', re.DOTALL)


def _keys(head: str) -> frozenset[tuple[str, ...]]:
    """Where a JSON object, of which there may be only a beginning, has keys: each behind those that it stands under.

    ``{"a": [{"b": 1``: ``("a",)`` and ``("a", "", "b")``, as what is in a list stands under no key.
    """
    found: set[tuple[str, ...]] = set()
    path: list[str] = []
    key = word = ""
    if not head.lstrip().startswith("{"):
        return frozenset()
    for token in _JSON_TOKEN.findall(head):
        if token == ":":
            key = word
            found.add((*path[1:], key))
        elif token in "{[":
            path.append(key)
            key = ""
        elif token not in "}]":
            word = token[1:-1]
        elif path:
            path.pop()
            key = ""
    return frozenset(found)


def _is_costs(head: str) -> bool:
    """A list of layers with times."""
    return ("layers", "", "forward_ns") in _keys(head)


def _is_recipe(head: str) -> bool:
    """What every recipe has, as far as it stands before a list that may be long."""
    return {("layout",), ("microbatch_size",), ("microbatches",), ("layers_per_stage",)} <= _keys(head)


def _is_picture(head: str) -> bool:
    return re.match(r"\s*(?:<[?!][^>]*>\s*)*<svg[\s>]", head) is not None


def _is_timeline(head: str) -> bool:
    return re.match(r'\s*\{\s*"displayTimeUnit"', head) is not None


COSTS = FileKind("costs file", _is_costs)
RECIPE = FileKind("recipe", _is_recipe)
PICTURE = FileKind("picture", _is_picture)
SCHEDULE = FileKind("schedule", _is_schedule)
TIMELINE = FileKind("timeline", _is_timeline)
